package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/skim"
	"holdfast/jsonrpc"
)

// A webSocket is the [muxConn] that carries one message in each text frame. Its handshake
// names the session; calls are resumed by their resume tokens (SEP-975).
type webSocket struct {
	c   *Conn
	url *url.URL

	mu      sync.Mutex
	conn    *websocket.Conn
	longest []byte // the longest message that was written on conn
}

func newWebSocket(c *Conn) *webSocket {
	u := *c.remote.url
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	}
	return &webSocket{c: c, url: &u}
}

// plain returns a WebSocket's URL with the scheme of HTTP.
func plain(u *url.URL) *url.URL {
	v := *u
	switch v.Scheme {
	case "ws":
		v.Scheme = "http"
	case "wss":
		v.Scheme = "https"
	}
	return &v
}

// resumes implements [muxConn].
func (s *webSocket) resumes() bool { return true }

// open implements [muxConn].
func (s *webSocket) open(ctx context.Context, within time.Duration) (id string, resumed bool, err error) {
	c := s.c
	c.mu.Lock()
	old, last := c.session, c.standalone.lastEventID
	c.mu.Unlock()
	if old.revision == "" {
		old.id = "" // initialize was not answered: another session begins
	}
	conn, id, err := s.dial(ctx, exchange{session: &old, last: last, wait: within})
	if last != "" && forgotten(err) {
		conn, id, err = s.dial(ctx, exchange{session: &old, wait: within}) // the server may have forgotten the event only
	}
	if old.id != "" && forgotten(err) {
		old.id = ""
		conn, id, err = s.dial(ctx, exchange{session: &session{}, wait: within})
	}
	if err != nil {
		return "", false, err
	}
	conn.SetReadLimit(-1) // read bounds messages itself
	s.mu.Lock()
	s.conn, s.longest = conn, nil
	s.mu.Unlock()
	return id, old.id != "" && (id == "" || id == old.id), nil
}

// forgotten reports whether an error may mean that the server has forgotten the session.
func forgotten(err error) bool {
	var no *refusal
	return errors.As(err, &no) &&
		(no.status == http.StatusNotFound || no.status == http.StatusGone || no.status == http.StatusBadRequest)
}

// dial makes the handshake, once more if it was refused with 401 or 403. It returns the id
// of the session.
func (s *webSocket) dial(ctx context.Context, x exchange) (_ *websocket.Conn, id string, err error) {
	authorized, proven := false, false
	for {
		req := &http.Request{Method: http.MethodGet, URL: plain(s.url), Header: make(http.Header)}
		if err := s.c.remote.head(ctx, req, x); err != nil {
			return nil, "", &refusal{text: err.Error(), why: err}
		}
		patience, stop := context.WithTimeoutCause(ctx, x.wait, errSilent)
		conn, resp, err := s.c.remote.dialSocket(patience, s.url.String(), &websocket.DialOptions{ //nolint:bodyclose // "you never need to"
			HTTPClient: s.c.remote.http, HTTPHeader: req.Header, Subprotocols: []string{"mcp"},
		})
		silent := errors.Is(context.Cause(patience), errSilent)
		stop()
		switch {
		case panicked(err):
			return nil, "", &refusal{text: err.Error(), why: err}
		case err == nil:
			s.c.remote.answered(req, resp)
			s.c.remote.taken(req.Header)
			return conn, resp.Header.Get(protocol.HeaderSession), nil
		case silent:
			s.c.remote.http.CloseIdleConnections() // they are likely to be as dead
			return nil, "", errSilent
		case resp == nil || resp.StatusCode == http.StatusSwitchingProtocols:
			if in, ok := errors.AsType[*url.Error](err); ok {
				err = in.Err // without the URL
			}
			return nil, "", s.c.remote.secrets.Error(err)
		case resp.StatusCode < 300:
			return nil, "", fmt.Errorf("no WebSocket here: the server answered %s", resp.Status)
		}
		if again := s.c.remote.answered(req, resp); again && !proven {
			proven = true
			continue
		}
		if (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden) && s.c.opts.Auth != nil && !authorized {
			authorized = true
			if err := s.c.remote.authorize(ctx, false, req, resp); err != nil {
				return nil, "", &refusal{status: resp.StatusCode, text: fmt.Sprintf("not authorized: %v", err), why: err}
			}
			continue
		}
		r := &response{Response: resp, cancel: func(error) {}, watch: time.NewTimer(time.Hour), ctx: ctx}
		no := s.c.remote.refused(r)
		if no.status >= 500 && no.status != 503 {
			return nil, "", errors.New(no.Error())
		}
		if no.status < 400 {
			no.text = "no WebSocket here: the server answered " + resp.Status
		}
		return nil, "", no
	}
}

// read implements [muxConn].
func (s *webSocket) read(take func(jsonrpc.Message)) error {
	ctx, stop := context.WithCancel(s.c.ctx)
	defer stop()
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	var came atomic.Int64
	s.c.spawn(func() { s.ping(ctx, conn, &came) })
	unreadable := rpc.NewUnreadable(&s.c.calls)
	defer unreadable.Close()
	arrival := s.c.account.Arrive(s.c.ctx.Done())
	defer arrival.Done()
	for {
		kind, r, err := conn.Reader(ctx)
		if err != nil {
			return s.ended(err)
		}
		r = counter{r, &came}
		data, err := arrival.ReadAll(r, -1, int64(s.c.opts.MaxMessage)+1)
		full := budget.Full(err)
		if err == nil && len(data) > s.c.opts.MaxMessage {
			err, full = s.c.errTooLong(), true
		}
		if full {
			var found skim.Message
			_, _ = found.Write(data)
			if _, cut := io.Copy(&found, r); cut != nil {
				return s.ended(cut)
			}
			unreadable.Read()
			s.c.skipped(&found, err, s.write, take)
			data, err = nil, nil
		}
		if err != nil {
			return s.ended(err)
		}
		if kind != websocket.MessageText || data == nil {
			arrival.Done()
			continue
		}
		msgs, err := rpc.Parse(data)
		unreadable.Read() // a frame is a message as a whole
		if err != nil {
			s.c.dropped(data, err)
			unreadable.Take(data, err)
		}
		for _, m := range msgs {
			take(m)
		}
		arrival.Done()
	}
}

// ended returns why a connection ended: a message may have been too large for the server.
func (s *webSocket) ended(err error) error {
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &oversize{raw: s.longest} // if any was too large, then the longest
}

// confirm implements [muxConn]: a server that answers a ping has read the messages before it.
func (s *webSocket) confirm(ctx context.Context) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, s.c.opts.Silence)
	defer stop()
	return conn.Ping(ctx)
}

// ping ends the connection when the server does not answer a ping in time. As long as bytes come, the answer may be behind them.
func (s *webSocket) ping(ctx context.Context, conn *websocket.Conn, came *atomic.Int64) {
	within := s.c.opts.quick / 2
	t := time.NewTicker(within)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		before := came.Load()
		patience, stop := context.WithTimeout(ctx, within)
		err := conn.Ping(patience)
		stop()
		if err != nil && (came.Load() == before || ctx.Err() != nil) {
			_ = conn.CloseNow()
			return
		}
	}
}

// A counter counts the bytes that are read.
type counter struct {
	io.Reader
	came *atomic.Int64 // bytes
}

// Read implements [io.Reader].
func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.came.Add(int64(n))
	return n, err
}

// write implements [muxConn].
func (s *webSocket) write(ctx context.Context, raw []byte) error {
	s.mu.Lock()
	conn := s.conn
	if len(raw) > len(s.longest) {
		s.longest = raw
	}
	s.mu.Unlock()
	// The end of the caller's ctx must not end the connection, as it would in the middle of
	// a frame: all calls share it.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), s.c.opts.ConnectTimeout)
	defer stop()
	return conn.Write(ctx, websocket.MessageText, raw)
}

// close implements [muxConn].
func (s *webSocket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.CloseNow()
	}
}
