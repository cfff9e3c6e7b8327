package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// stream answers a POST with the stream of the call that its messages have begun, from
// its beginning. If they are held they go to the backend once the client can ask for the
// call again, and not at all if there is no stream to ask for. An error says that
// nothing was answered: the session has left this node, and the call may be made where
// that is now.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, call *session.Call, msgs []jsonrpc.Message, batch, held bool) error {
	c, began, err := h.beginStream(w, r, call, msgs, batch, held)
	if c == nil {
		return err
	}
	if began == nil {
		began = c.copy(r.Context())
	}
	c.close(began)
	return nil
}

// beginStream does what comes before the copying, and returns with which error that
// begins. Without a connection the error is what [Handler.stream] returns. It is a function
// of its own so that the stack of a call that waits stays small.
//
//go:noinline
func (h *Handler) beginStream(w http.ResponseWriter, r *http.Request, call *session.Call, msgs []jsonrpc.Message, batch, held bool) (_ *events, began, err error) {
	s := call.Session()
	c := h.newConn(w, r, s)
	if call.Method() == "initialize" {
		c.primes = false // the revision is not settled
		c.wants = wantsInitialize
	}
	cursor := stream.Cursor{Stream: stream.ID{Number: call.Number()}}
	if err := c.read(r.Context(), cursor); err != nil {
		if held {
			return nil, nil, h.undelivered(w, call, msgs, err)
		}
		if call.Retriable() {
			return nil, nil, session.ErrMoved
		}
		call.ConnectionLost()
		h.logger.Warn("stream of a call not opened", "session", s.Name(), "error", err)
		h.failErrand(w, fmt.Errorf("%w: %w", errUnknown, err), &errand{msgs: msgs, batch: batch})
		return nil, nil, nil
	}
	c.link()
	gone := c.gone()
	began = c.open(nil)
	if gone || r.Context().Err() != nil {
		c.shown.Store(shownUnseen)
	}
	if held {
		call.Deliver(context.WithoutCancel(r.Context()), msgs, r.Header)
	}
	if !h.sessions.Shared() { // else a note may need them yet
		clear(msgs) // the call may last for long, and must not hold the body
	}
	return c, began, nil
}

// link offers the URL at which the stream can be resumed from where it is now
// (SEP-1335, `rel="stream"` URL). It is relative to the request's own, so that
// it is right behind proxies that rewrite paths.
func (c *events) link() {
	if c.name == "" {
		return
	}
	id := c.eventID()
	c.w.Header().Set("Link", `<?stream=`+c.s.Name()+"."+string(id)+`>; rel="stream"`)
}

// get opens the standalone stream, or resumes a stream (2025-11-25, Transports,
// "Listening for Messages from the Server", "Resumability and Redelivery").
func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	if !accepts(r.Header["Accept"], "text/event-stream") {
		h.reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream"))
		return
	}
	if streamParam(r) != "" {
		h.inStream(w, r, errand{}, func(s *session.Session, at stream.Cursor) error { return h.getStream(w, r, s, at) })
		return
	}
	h.inSession(w, r, errand{}, func(s *session.Session) error {
		last := lastEventID(r)
		if last == "" {
			return h.listen(w, r, s)
		}
		cursor, err := s.ParseEventID(last)
		if err != nil {
			return err
		}
		return h.resume(w, r, h.newGuest(w, r, s), cursor)
	})
}

// listen opens the standalone stream, and with it continues calls whose client
// has lost their connection and knows nothing but its session ("Disconnection
// Recovery Mode").
func (h *Handler) listen(w http.ResponseWriter, r *http.Request, s *session.Session) error {
	c := h.newConn(w, r, s)
	if err := c.standalone(r.Context()); err != nil {
		return err
	}
	s.ReturnedWithoutID()
	c.continueLost(r.Context())
	err := c.open(nil)
	if err == nil {
		err = c.copy(r.Context())
	}
	c.close(err)
	return nil
}

// standalone attaches to the standalone stream. Who knows how to resume, and shows no
// id, has heard nothing of it.
func (c *events) standalone(ctx context.Context) error {
	whole := c.s.EventIDs() || c.s.Resumable()
	return c.copier.standalone(ctx, c.h.logger, whole, !c.h.opts.Stateless)
}

// resume continues a stream from a cursor. A client that resumes the standalone
// stream may, with another connection, have lost track of a call: some forget
// the id that they resumed with when the connection ends before the next one, and
// come back with nothing but the session. Both then read the standalone stream in
// turns, and either may continue the call.
func (h *Handler) resume(w http.ResponseWriter, r *http.Request, c *events, cursor stream.Cursor) error {
	err := c.read(r.Context(), cursor)
	if errors.Is(err, io.EOF) {
		w.WriteHeader(http.StatusNoContent) // all was said; do not come back
		return nil
	}
	if err != nil {
		return err
	}
	c.link()
	if cursor.Stream.Number != 0 {
		c.wants = wantsResume
	} else {
		c.continueLost(r.Context())
	}
	err = c.open(nil)
	if err == nil {
		err = c.copy(r.Context())
	}
	c.close(err)
	return nil
}

// streamName is the parameter of a stream URL that names the stream.
const streamName = "stream"

// streamParam returns the stream that a stream URL names, or "".
func streamParam(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return r.URL.Query().Get(streamName)
}

// inStream does what a request wants at a stream URL, wherever its session is. do
// is given the session and the place that the URL names, and answers the request
// unless it returns an error. The URL is enough: whoever has it was given it, but
// must still be the same principal.
func (h *Handler) inStream(w http.ResponseWriter, r *http.Request, e errand, do func(*session.Session, stream.Cursor) error) {
	if !h.version(w, r) {
		return
	}
	name, id, _ := strings.Cut(streamParam(r), ".")
	e.key = stream.SessionKey(name)
	here := func(s *session.Session) error {
		at, err := h.place(r, s, id)
		if err != nil {
			return err
		}
		return do(s, at)
	}
	s, err := h.sessions.FindName(name, h.principal(r))
	if err == nil {
		err = here(s)
	} else {
		err = errNotHere
	}
	if err != nil {
		h.chase(w, r, e, s, err, here)
	}
}

// place returns the place in a session's stream that a stream URL names.
func (h *Handler) place(r *http.Request, s *session.Session, id string) (at stream.Cursor, err error) {
	if s.SingleStream() || !h.may(r, h.principal(r), s) {
		return at, session.ErrNotFound // a session of 2024-11-05 speaks through the other doors
	}
	at, err = s.ParseEventID(id)
	if errors.Is(err, session.ErrBadID) {
		return at, session.ErrNotFound // who guesses URLs learns nothing
	}
	if last := lastEventID(r); err == nil && last != "" {
		number := at.Stream.Number
		at, err = s.ParseEventID(last)
		if err == nil && at.Stream.Number != number {
			err = session.ErrBadID
		}
	}
	return at, err
}

// may says whether the session header of a request, if it has one, lets it have a
// stream of s: it must not be another client's. A named principal may come with
// another of its sessions, and so may a client that resumes its requests (SEP-975).
func (h *Handler) may(r *http.Request, principal string, s *session.Session) bool {
	own := r.Header[protocol.HeaderSession]
	if len(own) == 0 || s.HasID(own[0]) {
		return true
	}
	_, err := h.sessions.Find(own[0], principal)
	if err != nil && h.peers != nil {
		_, _, err = h.sessions.Locate(r.Context(), session.KeyOf(own[0]), principal)
	}
	return err == nil && (principal != "" || s.Resumable())
}

// newGuest prepares an event stream of a session that need not be the one that the
// client is in: it is spoken to as its own revision has it.
func (h *Handler) newGuest(w http.ResponseWriter, r *http.Request, s *session.Session) *events {
	c := h.newConn(w, r, s)
	if v := h.visit(r); v != nil && v.Revision != "" {
		c.primes = protocol.Primes(v.Revision)
		return c
	}
	own := r.Header[protocol.HeaderSession]
	if len(own) == 0 || s.HasID(own[0]) {
		return c
	}
	if v := r.Header[protocol.HeaderVersion]; len(v) > 0 {
		c.primes = protocol.Primes(v[0])
	} else if mine, err := h.sessions.Find(own[0], h.principal(r)); err == nil {
		c.primes = protocol.Primes(mine.Revision())
	}
	return c
}

// getStream resumes a stream at its URL. A call that waits for input and has
// nothing to say answers 204, which asks the client to POST what it has. A client
// that does not say how far it has come may not have heard the question: if it comes
// back though nobody sent it away, or after that 204, it is told again.
func (h *Handler) getStream(w http.ResponseWriter, r *http.Request, s *session.Session, cursor stream.Cursor) error {
	told, shown := cursor, lastEventID(r) != ""
	if !shown && !s.HasReader(cursor.Stream.Number) {
		told = s.DeliveredAt(cursor)
	}
	switch {
	case !s.AwaitsInputAt(told):
	case shown || s.SignalInputOnce(cursor.Stream.Number):
		w.WriteHeader(http.StatusNoContent)
		return nil
	case s.AwaitsInputAt(cursor): // nothing follows the place that the URL names
		cursor.Seq, cursor.Epoch = s.OldestOf(r.Context(), cursor.Stream.Number), 0
	}
	c := h.newGuest(w, r, s)
	c.url = true
	return h.resume(w, r, c, cursor)
}

// postStream takes the answers that a client has gathered, and goes on with the
// stream (SEP-1335, "Multi-turn requests").
func (h *Handler) postStream(w http.ResponseWriter, r *http.Request) {
	if h.opts.Stateless {
		h.reject(w, http.StatusNotFound, errf(codeInvalid, "a stateless endpoint has no stream URLs"))
		return
	}
	msgs, batch, ok := h.messages(w, r)
	if !ok {
		return
	}
	for i := range msgs {
		if msgs[i].Kind != jsonrpc.Response {
			h.reject(w, http.StatusBadRequest, errf(codeInvalid, "only responses can be posted to a stream URL"))
			return
		}
	}
	h.inStream(w, r, errand{msgs: msgs, batch: batch}, func(s *session.Session, cursor stream.Cursor) error {
		if len(r.Header[protocol.HeaderLastEventID]) == 0 {
			cursor = s.DeliveredAt(cursor)
		}
		if err := h.send(r, s, msgs); err != nil {
			return err
		}
		c := h.newGuest(w, r, s)
		c.url = true
		return h.resume(w, r, c, cursor)
	})
}
