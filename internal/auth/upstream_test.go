package auth

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mcptest"
)

// A token is kept, and renewed when the server refuses it. If there is no token, the client gets 403.
func TestTransport(t *testing.T) {
	t.Parallel()
	var asked, withdrawn atomic.Int32
	var down atomic.Bool
	tokens := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() || strings.HasPrefix(r.FormValue("subject_token"), keyPrefix) {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"%s-%d","token_type":"Bearer","expires_in":600}`, r.FormValue("subject_token"), asked.Add(1))
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, n, _ := strings.Cut(r.Header.Get("Authorization"), "-")
		if n == fmt.Sprint(withdrawn.Load()) || withdrawn.Load() < 0 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, r.Header.Get("Authorization"), " ", string(body))
	}))
	t.Cleanup(server.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: NewTransport(base, server.URL+"/mcp", Grant{TokenURL: tokens, ID: "h", Exchange: true}, slog.New(slog.DiscardHandler))}
	expect := func(what, at, token, want string) {
		t.Helper()
		req := mcptest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader("body")))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			if want != "error" {
				t.Errorf("%s: %v", what, err)
			}
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if got := fmt.Sprint(resp.StatusCode, " ", string(text)); !strings.HasPrefix(got, want) || resp.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %s; want %s", what, got, want)
		}
	}
	expect("the first request", server.URL, "ada", "200 Bearer ada-1 body")
	expect("the second", server.URL, "ada", "200 Bearer ada-1 body")
	expect("another client", server.URL, "bob", "200 Bearer bob-2 body")
	withdrawn.Store(1)
	expect("a token that is withdrawn", server.URL, "ada", "200 Bearer ada-3 body")
	expect("a static key", server.URL, keyPrefix+"x", "403 ")
	expect("another server", tokens, "ada", "error")
	withdrawn.Store(-1)
	expect("a server that refuses all", server.URL, "ada", "403 ")
	down.Store(true)
	expect("no authorization server", server.URL, "eve", "403 ")
}
