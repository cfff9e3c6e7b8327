package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A stranger is a client with its own IP address.
type stranger struct {
	t    *testing.T
	p    *program
	http *http.Client
}

func (p *program) stranger(t *testing.T, address string) *stranger {
	return &stranger{t, p, clientAt(t, address)}
}

// clientAt returns an HTTP client with its own IP address. It trusts each server.
func clientAt(t *testing.T, address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own servers
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// post posts a message in a session, or in none. It returns the answer with the beginning of the body, which may be long, or status 0.
func (s *stranger) post(url, session, body string) mcptest.Reply {
	res, err := (&mcptest.Client{URL: url, Session: session, HTTP: s.http}).Send(s.t.Context(), http.MethodPost, body)
	if err != nil {
		return mcptest.Reply{Body: err.Error()}
	}
	defer res.Body.Close()
	var head bytes.Buffer
	if _, err := io.CopyN(&head, res.Body, 8<<10); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
	}
	return mcptest.Reply{Status: res.StatusCode, Header: res.Header, Body: head.String()}
}

// begin begins a session, and makes a request in it if used is set.
func (s *stranger) begin(used bool) string {
	s.t.Helper()
	r := s.post(s.p.URL, "", strangeInit)
	if r.Status != http.StatusOK || r.Session() == "" {
		s.t.Fatalf("initialize: %d %s", r.Status, r.Body)
	}
	if used {
		s.works(r.Session())
	}
	return r.Session()
}

// works makes a request in a session.
func (s *stranger) works(session string) {
	s.t.Helper()
	if r := s.post(s.p.URL, session, strangePing); r.Status != http.StatusOK || !strings.Contains(r.Body, `"result"`) {
		s.t.Errorf("ping: %d %s", r.Status, r.Body)
	}
}

// refused checks that a message is refused with a Retry-After, and that the error contains words.
func (s *stranger) refused(url, session, body string, words ...string) {
	s.t.Helper()
	r := s.post(url, session, body)
	if r.Status != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" {
		s.t.Errorf("%d %v %s", r.Status, r.Header, r.Body)
	}
	wantAll(s.t, "the refusal", r.Body, words...)
}

// No client can start processes without bound, or take all of them from other clients.
func TestMaxProcesses(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" stdio`, os.Args[0])
	p := serve(t, append([]string{"--max-processes", "4", "--drain", "1s"}, command...)...)
	a, b, c := p.stranger(t, "127.0.0.1"), p.stranger(t, "127.0.0.2"), p.stranger(t, "127.0.0.3")

	// A client that only opens a stream or a WebSocket starts no process.
	get, err := a.http.Get(p.SSE)
	if err != nil {
		t.Fatal(err)
	}
	defer get.Body.Close()
	event := make([]byte, 4096)
	n := mcptest.Must(get.Body.Read(event))(t)
	_, path, _ := strings.Cut(string(event[:n]), "data: ")
	messages := "http://" + p.Addr + "/" + strings.TrimPrefix(strings.TrimSpace(path), "/")
	ws, _, err := websocket.Dial(t.Context(), "ws://"+p.Addr+"/mcp", nil) //nolint:bodyclose // "you never need to"
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if got := pids(); len(got) > 0 {
		t.Errorf("%d processes run before any initialize", len(got))
	}

	sessions := []string{a.begin(true), a.begin(true), a.begin(true)}
	a.refused(p.URL, "", strangeInit, "--max-share", "3 server processes")
	a.refused(messages, "", strangeInit, "--max-share")
	mcptest.Check(t, ws.Write(t.Context(), websocket.MessageText, []byte(strangeInit)))
	if _, text, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(text), "--max-share") {
		t.Errorf("over the WebSocket: %s %v", text, err)
	}
	// A process that no client has used yet makes room for another, and is started again for a request.
	unused := b.begin(false)
	used := c.begin(false)
	b.works(unused)
	if got := pids(); len(got) > 4 {
		t.Errorf("%d processes run of 4", len(got))
	}
	c.refused(p.URL, "", strangeInit, "--max-processes", "4 server processes")
	c.refused(p.URL, used, strangePing, "--max-processes")
	for _, id := range sessions {
		a.works(id)
	}
	if got := pids(); len(got) > 4 {
		t.Errorf("%d processes run of 4", len(got))
	}
	ended, err := (&mcptest.Client{URL: p.URL, Session: sessions[0], HTTP: a.http}).Exchange(t.Context(), http.MethodDelete, "")
	if err != nil || ended.Status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %v", ended.Status, err)
	}
	c.works(used) // waits for the process to end, if need be
}

// The process of a session without requests ends, and another is started for the session's
// first request.
func TestUnusedProcess(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" stdio`, os.Args[0])
	p := serve(t, append([]string{"--unused-process", "200ms", "--drain", "1s"}, command...)...)
	s := p.stranger(t, "127.0.0.1")
	used, unused := s.begin(true), s.begin(false)
	mcptest.Eventually(t, "the unused process to end", time.Minute, func() bool { return len(pids()) == 1 })
	s.works(unused)
	if got := pids(); len(got) != 2 {
		t.Errorf("%d processes run for two sessions", len(got))
	}
	s.works(used)
}

// A connection is closed if its request header does not arrive, or if it is idle.
func TestSlowConnections(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it waits for two minutes")
	p := serve(t, "--demo")
	var all sync.WaitGroup
	for what, c := range map[string]struct {
		says string
		most time.Duration // the server's bound
	}{
		"a header that does not come to its end": {"POST /mcp HTTP/1.1\r\nHost: " + p.Addr + "\r\nX-Slow: ", 10 * time.Second},
		"a connection that is not used":          {"GET /nothing HTTP/1.1\r\nHost: " + p.Addr + "\r\n\r\n", 2 * time.Minute},
	} {
		all.Go(func() {
			conn, err := net.Dial("tcp", p.Addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			began := time.Now()
			_, _ = conn.Write([]byte(c.says))
			_ = conn.SetReadDeadline(began.Add(c.most + 5*time.Minute))
			_, err = io.Copy(io.Discard, conn)
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: after %v: %v", what, time.Since(began), err)
			}
			if took := time.Since(began); took < c.most/2 {
				t.Errorf("%s was closed after %v", what, took)
			}
		})
	}
	all.Wait()
}
