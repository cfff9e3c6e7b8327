package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A socket is a WebSocket that carries one message in each text frame. The session
// is named in its handshake; calls are gone on with by their resume tokens
// (SEP-975).
type socket struct {
	c   *Conn
	url *url.URL

	mu   sync.Mutex
	conn *websocket.Conn
	most []byte // the longest message that was written on it
}

func newSocket(c *Conn) *socket {
	u := *c.remote.url
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	}
	return &socket{c: c, url: &u}
}

// plain returns the URL with the scheme of HTTP.
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
func (s *socket) resumes() bool { return true }

// open implements [muxConn].
func (s *socket) open(ctx context.Context, within time.Duration) (id string, resumed bool, err error) {
	c := s.c
	c.mu.Lock()
	old, last := c.session, c.standalone.lastEventID
	c.mu.Unlock()
	if old.revision == "" {
		old.id = "" // who has not begun begins anew
	}
	conn, id, err := s.dial(ctx, exchange{session: &old, last: last, wait: within})
	if last != "" && forgotten(err) {
		conn, id, err = s.dial(ctx, exchange{session: &old, wait: within}) // it may be the event
	}
	if old.id != "" && forgotten(err) {
		old.id = ""
		conn, id, err = s.dial(ctx, exchange{session: &session{}, wait: within})
	}
	if err != nil {
		return "", false, err
	}
	conn.SetReadLimit(-1) // read knows better what to do
	s.mu.Lock()
	s.conn, s.most = conn, nil
	s.mu.Unlock()
	return id, old.id != "" && (id == "" || id == old.id), nil
}

// forgotten says whether the server may not know the session any more.
func forgotten(err error) bool {
	var no *refusal
	return errors.As(err, &no) &&
		(no.status == http.StatusNotFound || no.status == http.StatusGone || no.status == http.StatusBadRequest)
}

// dial makes a handshake, twice if it was refused for want of authorization, and
// returns the id that the server gives the session.
func (s *socket) dial(ctx context.Context, x exchange) (_ *websocket.Conn, id string, err error) {
	for try := 0; ; try++ {
		req := &http.Request{Method: http.MethodGet, URL: plain(s.url), Header: make(http.Header)}
		if err := s.c.head(ctx, req, x); err != nil {
			return nil, "", &refusal{text: err.Error(), why: err}
		}
		patience, stop := context.WithTimeoutCause(ctx, x.wait, errSilent)
		conn, resp, err := s.c.dialSocket(patience, s.url.String(), &websocket.DialOptions{ //nolint:bodyclose // "you never need to"
			HTTPClient: s.c.remote.http, HTTPHeader: req.Header, Subprotocols: []string{"mcp"},
		})
		silent := errors.Is(context.Cause(patience), errSilent)
		stop()
		switch {
		case panicked(err):
			return nil, "", &refusal{text: err.Error(), why: err}
		case err == nil:
			return conn, resp.Header.Get(protocol.HeaderSession), nil
		case silent:
			s.c.remote.http.CloseIdleConnections() // which are likely to be as dead
			return nil, "", errSilent
		case resp == nil || resp.StatusCode == http.StatusSwitchingProtocols:
			var in *url.Error
			if errors.As(err, &in) {
				err = in.Err // without the URL
			}
			return nil, "", s.c.remote.secrets.Error(err)
		case resp.StatusCode < 300:
			return nil, "", fmt.Errorf("no WebSocket here: the server answered %s", resp.Status)
		}
		if (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden) && s.c.opts.Auth != nil && try == 0 {
			if err := s.c.authorize(ctx, req, resp); err != nil {
				return nil, "", &refusal{status: resp.StatusCode, text: fmt.Sprintf("not authorized: %v", err), why: err}
			}
			continue
		}
		r := &response{Response: resp, cancel: func(error) {}, watch: time.NewTimer(time.Hour), ctx: ctx}
		no := s.c.refused(r)
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
func (s *socket) read(take func(jsonrpc.Message)) error {
	ctx, stop := context.WithCancel(s.c.ctx)
	defer stop()
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	s.c.spawn(func() { s.ping(ctx, conn) })
	for {
		kind, r, err := conn.Reader(ctx)
		if err != nil {
			return s.ended(err)
		}
		data, err := io.ReadAll(io.LimitReader(r, int64(s.c.opts.MaxMessage)+1))
		if err == nil && len(data) > s.c.opts.MaxMessage {
			err = s.tooLarge(data, r, take)
			data = nil
		}
		if err != nil {
			return s.ended(err)
		}
		if kind != websocket.MessageText || data == nil {
			continue
		}
		msgs, _, err := jsonrpc.ParseBody(data)
		if err != nil {
			s.c.logger.Warn("message of the server dropped", "error", err)
		}
		for _, m := range msgs {
			take(m)
		}
	}
}

// tooLarge lets a message go by of which only the beginning was read. The server
// would send it again over the next connection: so what waits for it is told here.
func (s *socket) tooLarge(data []byte, rest io.Reader, take func(jsonrpc.Message)) error {
	var g glance
	_, _ = g.Write(data)
	if _, err := io.Copy(&g, rest); err != nil {
		return err
	}
	c, id := s.c, g.of()
	err := fmt.Errorf("a message of the server is larger than %d bytes", c.opts.MaxMessage)
	c.logger.Warn("message of the server dropped", "error", err)
	switch {
	case g.method && id != nil:
		raw := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeInternal, "the request is larger than %d bytes", c.opts.MaxMessage))
		c.spawn(func() { _ = s.write(c.ctx, raw) })
	case g.method: // nobody waits for it
	case g.answer && id != nil:
		raw := jsonrpc.AppendError(nil, id, failure(&unknownOutcome{err}, false))
		if m, err := jsonrpc.Parse(raw); err == nil {
			take(m)
		}
	default:
		c.failSent(err) // it may answer any of them
	}
	return nil
}

// ended says why a connection ended: the server may not have taken something.
func (s *socket) ended(err error) error {
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &oversize{raw: s.most} // if any was too large the longest was
}

// confirm implements [muxConn]: who answers a ping has read what came before it.
func (s *socket) confirm(ctx context.Context) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, s.c.opts.Silence)
	defer stop()
	return conn.Ping(ctx)
}

// ping looks now and then whether the server is still there.
func (s *socket) ping(ctx context.Context, conn *websocket.Conn) {
	t := time.NewTicker(s.c.opts.Silence)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		patience, stop := context.WithTimeout(ctx, s.c.opts.Silence)
		err := conn.Ping(patience)
		stop()
		if err != nil {
			_ = conn.CloseNow()
			return
		}
	}
}

// write implements [muxConn].
func (s *socket) write(ctx context.Context, raw []byte) error {
	s.mu.Lock()
	conn := s.conn
	if len(raw) > len(s.most) {
		s.most = raw
	}
	s.mu.Unlock()
	// The end of the caller's ctx must not end the connection of all, as it would
	// in the middle of a frame.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), s.c.opts.ConnectTimeout)
	defer stop()
	return conn.Write(ctx, websocket.MessageText, raw)
}

// close implements [muxConn].
func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.CloseNow()
	}
}
