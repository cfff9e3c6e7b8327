package remote_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/jsonrpc"
)

// instead answers with a status and a text where the server would say that it does not know a session.
func instead(h http.Handler, status int, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Header.Get("Mcp-Session-Id") == "" {
			h.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code == http.StatusNotFound {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, text, status)
			return
		}
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

// A restarted server of the go-sdk reports in various ways that it does not know a session any more. The client's session
// goes on, and its call runs once, also where the client's own Authorization is passed on. An error of the tool is not
// taken for such a report.
func TestUpstreamForgets(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		for _, status := range []int{400, 401, 403, 404, 410, 422, 500, 503} {
			t.Run(fmt.Sprint(status, ", Authorization passed on: ", pass), func(t *testing.T) {
				t.Parallel()
				w := begin(t, nil, streamable)
				w.become(instead(streamable(w.server()), status, "Session expired"))
				w.url = front(t, w.upstream, &remote.Options{PassAuthorization: pass}, &holdfast.Options{})
				c := open(t, w.url, "Authorization", "Bearer token")
				if m := response(c.Post(t, tool("1", "count", `{"To":0}`))); m.Result == nil {
					t.Fatalf("before: %s", m.Raw)
				}
				w.runs.Store(0)
				w.kill(instead(streamable(w.server()), status, "Session expired"))
				if m := response(c.Post(t, `{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{"name":"x"}}`)); m.Error == nil ||
					string(jsonrpc.Field(m.Error, "code")) == "-32000" {
					t.Errorf("an error of the server is %s", m.Raw)
				}
				w.kill(instead(streamable(w.server()), status, "Session expired"))
				if m := response(c.Post(t, tool("3", "count", `{"To":0}`))); m.Result == nil || w.runs.Load() != 1 {
					t.Errorf("after %d runs it is %s", w.runs.Load(), m.Raw)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if pass && slices.ContainsFunc(w.seen, func(h http.Header) bool { return h.Get("Authorization") != "Bearer token" }) {
					t.Errorf("a request without the client's Authorization")
				}
			})
		}
	}
}
