package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A person who opens an address in a browser gets a page that explains it. All requests of clients pass.
func TestInBrowser(t *testing.T) {
	t.Parallel()
	h := inBrowser(func(path string) bool { return path == "/mcp" }, "/mcp", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, c := range []struct {
		method, target, accept, session string
		page                            bool
	}{
		{"GET", "/mcp", browser, "", true},
		{"GET", "/", browser, "", true},
		{"HEAD", "/mcp", browser, "", true},
		{"GET", "/other", browser, "", false},
		{"POST", "/mcp", browser, "", false},
		{"GET", "/mcp", "text/event-stream", "", false},
		{"GET", "/mcp", browser + ", text/event-stream", "", false},
		{"GET", "/mcp", "*/*", "", false},
		{"GET", "/mcp", "", "", false},
		{"GET", "/mcp", browser, "a", false},
	} {
		r := httptest.NewRequest(c.method, "http://x.example"+c.target, nil)
		r.Host = "x<y.example"
		r.Header.Set("Accept", c.accept)
		if c.session != "" {
			r.Header.Set("Mcp-Session-Id", c.session)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if page := w.Code == http.StatusOK; page != c.page {
			t.Errorf("%+v: status %d", c, w.Code)
		}
		if text := w.Body.String(); c.page && (!strings.Contains(text, "holdfast tools http://x&lt;y.example/mcp") || strings.Contains(text, "x<y")) {
			t.Errorf("%+v: %s", c, text)
		}
	}
}
