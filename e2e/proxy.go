package e2e

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"time"

	"holdfast/internal/testport"
)

// A Cut says how an event stream is to end: whichever of After and Bytes comes
// first. The zero value cuts nothing.
type Cut struct {
	// After is the time from the stream's header to the cut, or, if there is a Since,
	// from where that text has passed.
	After time.Duration
	Since string
	// Bytes is how many bytes of the response pass before the cut.
	Bytes int
	// Body counts Bytes from the end of the response's header.
	Body bool
	// Reset cuts with RST, not FIN.
	Reset bool
	// HalfOpen leaves the server's side of the connection open, and takes what
	// comes from there: the server does not learn of the cut.
	HalfOpen bool
}

// A Proxy carries TCP connections to a server of HTTP/1.1, and cuts event
// streams. Other responses pass whole, because no client asks again for what it
// was told in part. The methods of a Proxy may be called concurrently.
type Proxy struct {
	testport.Relay
	plan func(head string) Cut

	mu   sync.Mutex
	cuts int
}

// NewProxy starts a proxy on a port of its own. plan is called, one call at a
// time, with the beginning of every request: as much of it as was read at once,
// which is at least its first line if the client is not malicious.
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

// carry carries one connection until either side ends it or it is cut.
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
	head  []byte // of its response, until that is complete
	body  bool   // it is complete
	left  int    // bytes of a stream until the cut; negative: no limit
	since string // it is to be cut some time after this text, which is yet to come
	timer *time.Timer
	isCut bool
}

// requests carries what the client says.
func (l *line) requests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			if isHead(buf[:n]) {
				l.begin(string(buf[:n]))
			}
			_, _ = l.up.Write(buf[:n]) // what fails here fails the responses too
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

// isHead says whether data begins a request, and not the JSON of its body.
func isHead(data []byte) bool {
	return slices.ContainsFunc(methods, func(m []byte) bool { return bytes.HasPrefix(data, m) })
}

// begin notes that a request has arrived.
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

// responses carries what the server says.
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

// pass hands data to the client, up to the place of a cut. The lock is held while
// it is written: the client of a test reads.
func (l *line) pass(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return // a server that was not told talks on
	}
	if !l.body {
		l.head = append(l.head, data...)
		end := bytes.Index(l.head, []byte("\r\n\r\n"))
		if end < 0 {
			return // held back until it is known what it is
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
		l.spare() // it has ended by itself
	}
	if _, err := l.client.Write(data); err != nil {
		_ = l.up.Close()
	}
}

// arm prepares the cut of a response whose header is complete. l.mu is held.
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
		if l.timer == timer { // or it fired while it was called off
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
		// What the client still sends must not turn the FIN into an RST.
		_ = l.client.CloseWrite()
		_ = l.client.SetReadDeadline(time.Now().Add(time.Second))
	}
	if !l.cut.HalfOpen {
		_ = l.up.Close()
	}
}
