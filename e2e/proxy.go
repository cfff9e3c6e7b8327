package e2e

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"time"

	"holdfast/internal/testport"
)

// A Cut says how an event stream is cut: at the time After or after Bytes, if that is earlier. The
// zero value cuts nothing.
type Cut struct {
	// After is the time from the stream's header to the cut, or, if Since is not "", from the time
	// at which that text has passed.
	After time.Duration
	Since string
	// Bytes is how many bytes of the response pass before the cut.
	Bytes int
	// Body counts Bytes from the end of the response's header.
	Body bool
	// Reset cuts with RST, not FIN.
	Reset bool
	// HalfOpen leaves the server's side of the connection open, and reads on from it: the server
	// does not notice the cut.
	HalfOpen bool
}

// A Proxy carries TCP connections to an HTTP/1.1 server, and cuts event streams. Other responses
// pass whole, because a client cannot ask for the rest of one. The methods of a Proxy may be called
// concurrently.
type Proxy struct {
	testport.Relay
	plan func(head string) Cut

	mu   sync.Mutex
	cuts int
}

// NewProxy starts a proxy on a port of its own. plan is called, one call at a time, with the
// beginning of every request: the bytes of the first read, at least the request line if the client
// is not malicious.
func NewProxy(target string, plan func(head string) Cut) (*Proxy, error) {
	p := &Proxy{plan: plan}
	p.Relay = testport.Relay{Target: target, Carry: p.carry}
	return p, p.Start()
}

// Cuts returns how many connections have been cut so far.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// carry carries one connection, until it is cut or either side ends it.
func (p *Proxy) carry(_ uint64, client *net.TCPConn) {
	up := p.Dial()
	if up == nil {
		return
	}
	defer p.Drop(up)
	l := &line{p: p, client: client, up: up}
	var both sync.WaitGroup
	both.Go(l.requests)
	both.Go(l.responses)
	both.Wait()
	l.finish()
}

// A line is one connection from a client through the proxy.
type line struct {
	p      *Proxy
	client *net.TCPConn
	up     net.Conn

	mu    sync.Mutex
	cut   Cut    // of the request under way
	head  []byte // header of its response, until that is complete
	body  bool   // the header is complete
	left  int    // bytes of a stream until the cut; negative: no limit
	since string // text that has not come yet, after which the cut is timed; or ""
	timer *time.Timer
	isCut bool
}

// requests carries the client's bytes to the server.
func (l *line) requests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			if isHead(buf[:n]) {
				l.begin(string(buf[:n]))
			}
			_, _ = l.up.Write(buf[:n]) // an error here fails the responses too
		}
		if err != nil {
			l.mu.Lock()
			if !l.isCut || !l.cut.HalfOpen {
				_ = l.up.Close()
			}
			l.mu.Unlock()
			_ = l.client.Close()
			return
		}
	}
}

var methods = [][]byte{[]byte("GET "), []byte("POST "), []byte("DELETE "), []byte("OPTIONS ")}

// isHead reports whether data is the beginning of a request, not of its JSON body.
func isHead(data []byte) bool {
	return slices.ContainsFunc(methods, func(m []byte) bool { return bytes.HasPrefix(data, m) })
}

// begin notes a new request, and its plan.
func (l *line) begin(request string) {
	l.p.mu.Lock()
	cut := l.p.plan(request)
	l.p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return
	}
	l.spare()
	l.cut, l.head, l.body = cut, nil, false
}

// spare calls the cut off. l.mu is held.
func (l *line) spare() {
	l.left, l.since = -1, ""
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *line) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare()
}

// responses carries the server's bytes to the client.
func (l *line) responses() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.up.Read(buf)
		if n > 0 {
			l.pass(buf[:n])
		}
		if err != nil {
			l.mu.Lock()
			if !l.isCut {
				_ = l.client.Close()
			}
			l.mu.Unlock()
			return
		}
	}
}

// pass writes data to the client, up to the place of a cut. It holds the lock while it writes, as a
// test's client always reads.
func (l *line) pass(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return // with HalfOpen the server goes on to send
	}
	if !l.body {
		l.head = append(l.head, data...)
		end := bytes.Index(l.head, []byte("\r\n\r\n"))
		if end < 0 {
			return // held back until the header is complete
		}
		data, l.head, l.body = l.head, nil, true
		l.arm(data, end+len("\r\n\r\n"))
	}
	if l.left >= 0 && l.left <= len(data) {
		_, _ = l.client.Write(data[:l.left])
		l.sever()
		return
	}
	if l.left >= 0 {
		l.left -= len(data)
	}
	if l.since != "" && bytes.Contains(data, []byte(l.since)) {
		l.since = ""
		l.cutAfter()
	}
	if bytes.HasSuffix(data, []byte("\n0\r\n\r\n")) || string(data) == "0\r\n\r\n" {
		l.spare() // the response has ended by itself
	}
	if _, err := l.client.Write(data); err != nil {
		_ = l.up.Close()
	}
}

// arm prepares the cut of a response after its header. l.mu is held.
func (l *line) arm(data []byte, header int) {
	if !bytes.Contains(data[:header], []byte("text/event-stream")) {
		return
	}
	if l.cut.Bytes > 0 {
		l.left = l.cut.Bytes
		if l.cut.Body {
			l.left += header
		}
	}
	switch {
	case l.cut.Since != "":
		l.since = l.cut.Since
	case l.cut.After > 0:
		l.cutAfter()
	}
}

// cutAfter cuts the connection some time from now. l.mu is held.
func (l *line) cutAfter() {
	var timer *time.Timer
	timer = time.AfterFunc(l.cut.After, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer == timer { // else it fired while it was called off
			l.sever()
		}
	})
	l.timer = timer
}

// sever cuts the connection. l.mu is held.
func (l *line) sever() {
	l.isCut = true
	l.spare()
	l.p.mu.Lock()
	l.p.cuts++
	l.p.mu.Unlock()
	if l.cut.Reset {
		_ = l.client.SetLinger(0)
		_ = l.client.Close()
	} else {
		// Bytes that the client still sends must not turn the FIN into an RST.
		_ = l.client.CloseWrite()
		_ = l.client.SetReadDeadline(time.Now().Add(time.Second))
	}
	if !l.cut.HalfOpen {
		_ = l.up.Close()
	}
}
