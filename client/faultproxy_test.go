package client_test

import (
	"bytes"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testport"
)

// faultProxy is a proxy of TCP connections that makes all errors which connections can have. They
// are cut at any byte of a request or a response, by FIN or RST, with one side or both not
// noticing. They are late, so that others overtake them. Requests are answered with an error in the
// server's place, before or after they were passed on. A GET is sent on twice, as HTTP lets proxies
// do (RFC 9110, section 9.2.2).
//
// The fault of a request follows from the seed, the number of its connection, and its own number there.
type faultProxy struct {
	testport.Relay
	seed  uint64
	trace *trace
	done  chan struct{}
	bad   atomic.Uint64 // how many of 1000 requests are faulty
	kind  bool          // a client that can't come back yet always notices a cut

	mu      sync.Mutex
	counts  map[string]int
	posts   map[int][]*post // the requests that call tools, by the number of their call
	orphans int             // sessions that the server may know and no client knows
	begun   bool            // an initialize has been hit by a fault
	row     int             // lines hit by a fault in a row
}

// A post is the fate of a request that calls a tool, or resumes such a call at its stream URL.
type post struct {
	passed []byte // the beginning of its response, as far as it came through
	struck bool   // the request was cut
	reset  bool   // the cut may have lost bytes that were passed on before it
	// refused says that the proxy told the client to send the request again.
	refused bool
}

func newFaultProxy(t testing.TB, target string, seed uint64, tr *trace) *faultProxy {
	t.Helper()
	w := &faultProxy{seed: seed, trace: tr, done: make(chan struct{}), counts: make(map[string]int), posts: make(map[int][]*post)}
	w.Relay = testport.Relay{Target: target, Carry: func(number uint64, c *net.TCPConn) {
		(&faultConn{w: w, number: number, client: c, left: -1}).carry()
	}}
	mcptest.Check(t, w.Start())
	return w
}

// close ends the proxy and all its connections.
func (w *faultProxy) close() {
	close(w.done)
	w.Close()
}

// hurt says whether one of the connections over which a call was made or resumed was
// cut in the way that so describes, or before any request of the call was passed on.
func (w *faultProxy) hurt(call int, so func(p *post) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := false
	for _, p := range w.posts[call] {
		seen = seen || !p.refused
	}
	if !seen {
		return true
	}
	for _, p := range w.posts[call] {
		if p.struck && so(p) {
			return true
		}
	}
	return false
}

// resumes returns the call that a request to a stream URL resumes.
func (w *faultProxy) resumes(line string) int {
	url := streamURL.FindString(line)
	if url == "" {
		return noCall
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for call, posts := range w.posts {
		for _, p := range posts {
			if bytes.Contains(p.passed, []byte(url)) {
				return call
			}
		}
	}
	return noCall
}

// streamURL finds the part of a stream URL that stays the same.
var streamURL = regexp.MustCompile(`stream=[^.]+\.[^.]+\.`)

// note notes a request that calls a tool.
func (w *faultProxy) note(call int, p *post) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if call != noCall {
		w.posts[call] = append(w.posts[call], p)
	}
}

func (w *faultProxy) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-w.done:
		return false
	}
}

// shadow sends a request on a second time, and listens to the answer for a while.
func (w *faultProxy) shadow(raw []byte, after time.Duration) {
	if !w.sleep(after) {
		return
	}
	c := w.Dial()
	if c == nil {
		return
	}
	defer w.Drop(c)
	_, _ = c.Write(raw)
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, _ = io.Copy(io.Discard, c)
}
