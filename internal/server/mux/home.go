package mux

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/stream"
)

// A home is a connection's own session, and its client. Its methods may be called concurrently.
type home struct {
	client   *client
	key      stream.SessionKey
	sessions *session.Manager
	local    atomic.Pointer[session.Session] // nil while it is on another node
	remote   *remoteSession                  // nil if it was not on another node at first
}

// session returns the connection's own session, or nil if that is on another node.
func (h *home) session() *session.Session { return h.local.Load() }

// settle notes that a session has come to this node, maybe for the second time. If it is the connection's, later messages are served
// here. If the client can connect again, the connection ends when its session has left.
func (h *home) settle(key stream.SessionKey) {
	old := h.session()
	if key != h.key || old != nil && (h.client.returns || !old.Moved()) {
		return
	}
	if s, err := h.sessions.FindName(string(key), h.client.principal); err == nil {
		h.local.CompareAndSwap(old, s)
	}
}

// showsIDs reports whether the client gets event ids. A client that has not initialized a
// session here gets them too, as it could not ask for them.
func (h *home) showsIDs() bool {
	s := h.session()
	if s == nil {
		return h.remote.eventIDs
	}
	return s.Resumes().EventIDs() || !h.begun()
}

// begun reports whether the session is initialized, or about to be.
func (h *home) begun() bool {
	s := h.session()
	return s == nil || s.Initializing() != nil || s.Revision() != "" // in this order
}

// touch notes that the connection's session is in use. A session on another node has a reader instead.
func (h *home) touch() {
	if s := h.session(); s != nil {
		s.Touch()
	}
}

// isMoved reports whether the connection's session was here, and has left.
func (h *home) isMoved() bool {
	s := h.session()
	return s != nil && s.Moved()
}

// A standalone copies the standalone stream of a connection's session, if that was on this node at first.
type standalone struct{ *carried }

// listen attaches to the stream, after the last message that was delivered.
func (x standalone) listen(ctx context.Context) error {
	return x.Standalone(ctx, x.m.front.Logger, x.Session.Resumes().EventIDs(), x.m.showsIDs())
}

// resume attaches to the stream after the Last-Event-ID of a handshake, or as listen does.
func (x standalone) resume(r *http.Request) error {
	last := r.Header[protocol.HeaderLastEventID]
	if len(last) == 0 || last[0] == "" {
		return x.listen(r.Context())
	}
	at, err := streaming.CursorOf(x.Session, last[0])
	if err == nil && at.Stream.Number != 0 {
		err = errOfCall
	}
	if err != nil {
		return err
	}
	return x.Read(r.Context(), at, x.m.showsIDs())
}

// copy writes the stream's events. more says that there may be more. It detaches from a stream that has ended, or is read
// elsewhere.
func (x standalone) copy(ctx context.Context) (more bool, err error) {
	if x.Reader == nil {
		return false, nil
	}
	gone := x.Reader.Gone() // first, so that all events before are written
	more, err = x.Turn(ctx)
	trimmed := errors.Is(err, stream.ErrTrimmed) || errors.Is(err, stream.ErrNotFound)
	if trimmed && !x.Session.Moved() {
		more, err = true, x.reattach(ctx)
	}
	switch {
	case err != nil && x.Session.Moved() && ctx.Err() == nil:
		if !x.m.follows() {
			return false, streaming.ErrComeBack
		}
		x.detach(false) // the rest is for the session's next client
		return true, nil
	case err == nil && !trimmed && (x.IsRead() || gone && !more):
		x.detach(false)
	}
	return more, err
}

// reattach continues the stream where part of it is no longer stored.
func (x standalone) reattach(ctx context.Context) error {
	x.detach(false)
	s := x.Session
	if s.Ended() {
		return nil
	}
	x.m.front.Logger.Warn("messages of the standalone stream were dropped unread", "session", s.Name())
	return x.Read(ctx, stream.Cursor{Seq: s.Streams().Oldest(ctx, reading.Standalone)}, x.m.showsIDs())
}

// A client is the client of a mux.
type client struct {
	principal caller.Principal
	values    context.Context // of the request that began the connection, without its end
	header    http.Header     // of that request
	address   string          // of that request
	returns   bool            // the client can connect again, to the same session
	door      observe.Door
	rights    streaming.Rights // nil: they do not change
}

// request stands for the request that began the connection.
func (c *client) request() *http.Request {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: c.header, RemoteAddr: c.address, Host: "localhost"}
	return r.WithContext(c.values)
}

// watchRights signals ready when the client's rights may have changed.
func (c *client) watchRights(ready chan struct{}) (stop func()) {
	if c.rights == nil {
		return func() {}
	}
	return c.rights.Watch(func() { reading.Wake(ready) })
}

// isGone returns the error to close the connection with if the client's credential is no longer valid, or nil.
func (c *client) isGone() error {
	if why := streaming.Denial(c.rights); why != nil && why.Status == http.StatusUnauthorized {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}

// mayHear returns an error if the client has lost the right to get messages, or nil.
func (c *client) mayHear() error {
	if why := streaming.Denial(c.rights); why != nil {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}
