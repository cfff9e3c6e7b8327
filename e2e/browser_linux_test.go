package e2e

import (
	"embed"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// pages are the web pages that the browser opens.
//
//go:embed pages
var pages embed.FS

// A site serves the pages, and receives their reports.
type site struct {
	port    string
	reports chan []byte
}

func newSite(t *testing.T) *site {
	s := &site{reports: make(chan []byte, 1)}
	mux := http.NewServeMux()
	mux.Handle("GET /pages/", http.FileServerFS(pages))
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		s.reports <- text
	})
	s.port = strings.TrimPrefix(mcptest.Serve(t, mux), "http://127.0.0.1:")
	return s
}

// browse has a browser open a page of the site, under a host name that the browser resolves to
// the site, and returns the page's report.
func (s *site) browse(t *testing.T, browser, name, page, server string) []byte {
	t.Helper()
	at := url.URL{Scheme: "http", Host: net.JoinHostPort(name, s.port), Path: "/pages/" + page,
		RawQuery: url.Values{"server": {server}}.Encode()}
	// Not t.TempDir: the browser's child processes may still write here for a moment after it has ended.
	dir := mcptest.Must(os.MkdirTemp("", "holdfast-browser-"))(t)
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-dev-shm-usage", "--remote-debugging-port=0", "--user-data-dir="+dir,
		"--host-resolver-rules=MAP *.example 127.0.0.1", at.String())
	var said strings.Builder
	cmd.Stderr = &said
	mcptest.Check(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill() // this also ends its child processes
		_ = cmd.Wait()
	}()
	select {
	case report := <-s.reports:
		return report
	case <-time.After(2 * time.Minute):
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%s reported nothing:\n%s", at.String(), said.String())
		return nil
	}
}

// In a real browser, a page of another site can neither start a backend nor read a byte. A page
// of an allowed origin can do all that a client does (failure 14).
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser, err := exec.LookPath("chromium")
	testlong.Needs(t, err == nil, "chromium: install Debian's package")
	site := newSite(t)
	started := filepath.Join(t.TempDir(), "started")
	traces := t.TempDir()
	app := "http://app.example:" + site.port
	p := serve(t, "--allow-origin", app, "--drain", "1s", "--upgrade-after", "1m", "--",
		"sh", "-c", `echo started >> "$1"; exec "$2" worker "$3"`, "sh", started, os.Args[0], traces)
	server := "http://" + p.Addr
	starts := func() int {
		text, err := os.ReadFile(started)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "started")
	}

	var read []string
	mcptest.Check(t, json.Unmarshal(site.browse(t, browser, "evil.example", "other.html", server), &read))
	for _, what := range read {
		t.Errorf("a page of another site could read: %s", what)
	}
	if n := starts(); n > 0 {
		t.Errorf("a page of another site has started %d processes", n)
	}

	var done map[string]any
	mcptest.Check(t, json.Unmarshal(site.browse(t, browser, "app.example", "own.html", server), &done))
	for what, want := range map[string]any{
		"failed": nil, "initialize": "2025-11-25", "session": true, "version": "2025-11-25", "link": true, "told": "1 2 3 4 5",
		"answer": "did page", "error": "400 -32700", "deleted": 204.0, "gone": 404.0, "endpoint": true, "socket": true,
	} {
		if done[what] != want {
			t.Errorf("%s: %v, want %v", what, done[what], want)
		}
	}
	if n := starts(); n != 2 { // one for the session, and one for the WebSocket's session
		t.Errorf("a page that is allowed has started %d processes", n)
	}
}
