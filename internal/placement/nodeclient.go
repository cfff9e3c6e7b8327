package placement

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// idleNodeConns is how many idle connections to a node are kept, and idleNodeFor
	// is for how long.
	idleNodeConns = 128
	idleNodeFor   = time.Minute

	// mostDirect is how many bytes the body of a nodeClient's request may have: so few
	// that a connection's buffers take them before the other node reads.
	mostDirect = 64 << 10
)

// A nodeClient sends small requests to other nodes, as HTTP/1.1, and reads the answers on
// the goroutine of the caller. An [http.Transport] has two goroutines for each connection; they
// would be the greatest cost of forwarding a light call. The methods may be called concurrently.
type nodeClient struct {
	transport *http.Transport // dials nodes

	mu     sync.Mutex
	idle   map[string][]*nodeConn // by node; the connection used last is at the end
	look   *time.Timer            // when idle is looked at; nil: it is empty
	closed bool
}

// A nodeConn is a connection that carries one request at a time.
type nodeConn struct {
	net.Conn
	node  string
	r     *bufio.Reader
	since time.Time // when its last request ended
}

// requestTexts are buffers for requests as text.
var requestTexts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// roundTrip sends a request to a node, and returns the beginning of the answer. The caller
// must close its body. dialled says that the node may have the request. The error is the
// context's, if that has ended, or the connection's.
func (t *nodeClient) roundTrip(req *http.Request, node string) (res *http.Response, dialled bool, err error) {
	ctx := req.Context()
	req.Close = t.transport.DisableKeepAlives
	for {
		c, waited := t.take(node), true
		if c == nil {
			conn, err := t.transport.DialContext(ctx, "tcp", net.JoinHostPort(node, "80"))
			if err != nil {
				return nil, false, err
			}
			c, waited = &nodeConn{Conn: conn, node: node, r: bufio.NewReader(conn)}, false
		}
		b := &nodeBody{t: t, c: c, stop: context.AfterFunc(ctx, func() { _ = c.Close() })}
		var sent bool
		if res, sent, err = c.exchange(req); err == nil {
			b.answer(res)
			return res, true, nil
		}
		b.finish(false)
		switch {
		case ctx.Err() != nil:
			return nil, sent, ctx.Err()
		case sent || !waited:
			return nil, true, err
		}
		// The idle connection has ended. Another is tried.
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, false, err
			}
		}
	}
}

// exchange writes a request, and reads the header of the answer. sent says that at least a
// part of the request was written.
func (c *nodeConn) exchange(req *http.Request) (res *http.Response, sent bool, err error) {
	text := requestTexts.Get().(*bytes.Buffer)
	defer requestTexts.Put(text)
	text.Reset()
	if err := req.Write(text); err != nil {
		return nil, false, err
	}
	if n, err := c.Write(text.Bytes()); err != nil {
		return nil, n > 0, err
	}
	for {
		res, err := http.ReadResponse(c.r, req)
		if err != nil || res.StatusCode >= http.StatusOK {
			return res, true, err
		}
	}
}

// A nodeBody is the body of an answer. At its end the connection is free for the next
// request.
type nodeBody struct {
	t    *nodeClient
	c    *nodeConn
	body io.ReadCloser
	keep bool        // the connection may be used again
	stop func() bool // of the context: its end closes the connection no more
	once sync.Once
}

// answer makes b the body of an answer.
func (b *nodeBody) answer(res *http.Response) {
	b.keep = !res.Close && !res.Request.Close
	if res.Body == http.NoBody {
		b.finish(true)
		return
	}
	b.body, res.Body = res.Body, b
}

func (b *nodeBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil {
		b.finish(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close ends the connection if the body was not read to its end.
func (b *nodeBody) Close() error {
	b.finish(false)
	return nil
}

// finish keeps the connection if the body was read to its end (whole), or closes it. Calls
// after the first do nothing.
func (b *nodeBody) finish(whole bool) {
	b.once.Do(func() {
		if b.stop() && whole && b.keep && b.c.r.Buffered() == 0 && b.t.put(b.c) {
			return
		}
		_ = b.c.Close()
	})
}

// take returns an idle connection to a node, or nil.
func (t *nodeClient) take(node string) *nodeConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.idle[node]
	if len(all) == 0 || time.Since(all[len(all)-1].since) > idleNodeFor {
		return nil
	}
	c := all[len(all)-1]
	all[len(all)-1] = nil
	t.idle[node] = all[:len(all)-1]
	return c
}

// put keeps a connection for the next request, unless idleNodeConns are kept, and reports
// whether it did.
func (t *nodeClient) put(c *nodeConn) bool {
	c.since = time.Now()
	t.mu.Lock()
	all := t.idle[c.node]
	var old *nodeConn
	if len(all) > 0 && c.since.Sub(all[0].since) > idleNodeFor { // more are kept than are used
		old, all = all[0], append(all[:0], all[1:]...)
	}
	ok := !t.closed && len(all) < idleNodeConns
	if ok {
		all = append(all, c)
	}
	if t.idle == nil {
		t.idle = make(map[string][]*nodeConn)
	}
	t.idle[c.node] = all
	if ok && t.look == nil {
		t.look = time.AfterFunc(idleNodeFor, t.closeOld)
	}
	t.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
	return ok
}

// closeOld closes the connections that have been idle for idleNodeFor: a request to a node that is gone may have ended after
// [nodeClient.forget], and none follows.
func (t *nodeClient) closeOld() {
	var old []*nodeConn
	now := time.Now()
	t.mu.Lock()
	for node, all := range t.idle {
		n := 0 // how many are old: the connections are ordered by their time
		for n < len(all) && now.Sub(all[n].since) >= idleNodeFor {
			n++
		}
		old = append(old, all[:n]...)
		if t.idle[node] = slices.Delete(all, 0, n); n == len(all) {
			delete(t.idle, node)
		}
	}
	t.look = nil
	if len(t.idle) > 0 && !t.closed {
		t.look = time.AfterFunc(idleNodeFor, t.closeOld)
	}
	t.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// forget closes the idle connections to a node.
func (t *nodeClient) forget(node string) {
	t.mu.Lock()
	all := t.idle[node]
	delete(t.idle, node)
	t.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// close closes all idle connections; put keeps none afterwards.
func (t *nodeClient) close() {
	t.mu.Lock()
	t.closed = true
	if t.look != nil {
		t.look.Stop()
	}
	nodes := slices.Collect(maps.Keys(t.idle))
	t.mu.Unlock()
	for _, node := range nodes {
		t.forget(node)
	}
}
