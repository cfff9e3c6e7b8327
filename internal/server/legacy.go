package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// sessionParam is the query parameter that names the session in the URL that an
// endpoint event gives.
const sessionParam = "sessionId"

// SSE returns the pair of doors of revision 2024-11-05: GET opens the session's
// one stream, and POST, at the URL that the stream's first event gives, takes
// messages. messages is that URL, relative to the GET's.
//
// Unlike others of its kind the stream can be resumed: event ids name the
// session.
func (h *Handler) SSE(messages string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allow := "GET, POST, OPTIONS"
		if h.opts.Stateless {
			allow = "OPTIONS" // the pair is nothing without a session
		}
		defer h.caught(w)
		h.limit(w, r)
		if !h.guard(w, r, allow) {
			return
		}
		if h.opts.Stateless || r.Method != http.MethodGet && r.Method != http.MethodPost {
			w.Header().Set("Allow", allow)
			h.reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "method %s is not allowed here", r.Method))
			return
		}
		h.pair(w, r, messages)
	})
}

// pair serves a request whose Host and Origin are in order.
func (h *Handler) pair(w http.ResponseWriter, r *http.Request, messages string) {
	if r.Method == http.MethodGet {
		h.getSSE(w, r, messages)
	} else {
		h.postSSE(w, r)
	}
}

// getSSE opens a session, or resumes the one that the last event id names.
func (h *Handler) getSSE(w http.ResponseWriter, r *http.Request, messages string) {
	if a := r.Header["Accept"]; len(a) > 0 && !accepts(a, "text/event-stream") {
		h.reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream"))
		return
	}
	e := errand{pair: true, where: messages}
	last := lastEventID(r)
	if last == "" {
		if s := h.beginSession(w, r, h.sessions.Reserve, true, e); s != nil {
			if err := h.openSSE(w, r, s, stream.Cursor{}, messages); err != nil {
				h.sessions.End(s) // nobody was told of it
				h.fail(w, err)
			}
		}
		return
	}
	name, id, _ := strings.Cut(last, ".")
	e.key = stream.SessionKey(name)
	do := func(s *session.Session) error {
		cursor, err := s.ParseEventID(id)
		if err == nil && (!s.SingleStream() || cursor.Stream.Number != 0) {
			err = session.ErrBadID
		}
		if err != nil {
			return err
		}
		return h.openSSE(w, r, s, cursor, messages)
	}
	s, err := h.sessions.FindName(name, h.principal(r))
	if err == nil {
		err = do(s)
	} else {
		err = errNotHere
	}
	if err != nil {
		h.chase(w, r, e, s, err, do)
	}
}

// openSSE answers with a session's one stream. If its client leaves before it has
// initialized the session, that ends: there is nothing to come back for.
func (h *Handler) openSSE(w http.ResponseWriter, r *http.Request, s *session.Session, cursor stream.Cursor, messages string) error {
	c := h.newConn(w, r, s)
	c.primes = false
	if err := c.read(r.Context(), cursor); err != nil {
		return err
	}
	c.name = s.Name() + "." + c.name
	// The endpoint event carries the first id, so that the stream can be resumed
	// before its first message.
	first := append([]byte("id: "), c.eventID()...)
	first = append(first, '\n')
	first = sse.AppendEvent(first, "endpoint", messages+"?"+sessionParam+"="+url.QueryEscape(s.ID()))
	c.shown.write()
	err := c.open(first)
	if err == nil {
		err = c.copy(r.Context())
	}
	c.close(err)
	if !errors.Is(err, errComeBack) && !errors.Is(err, errSuperseded) && !s.Moved() {
		h.sessions.Abandon(s)
	}
	return nil
}

// postSSE takes messages. What they are answered with goes to the stream.
func (h *Handler) postSSE(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get(sessionParam)
	if id == "" {
		h.reject(w, http.StatusBadRequest, errf(codeInvalid,
			"missing %s: POST to the URL that the stream's endpoint event gives", sessionParam))
		return
	}
	principal := h.principal(r)
	s, err := h.sessions.Find(id, principal)
	if err == nil && !s.SingleStream() || err != nil && h.peers == nil {
		h.fail(w, session.ErrNotFound)
		return
	}
	msgs, batch, ok := h.body(w, r)
	if !ok {
		return
	}
	do := func(s *session.Session) error { return h.takeSSE(w, r, s, msgs, batch) }
	if err == nil {
		err = do(s)
	} else {
		err = errNotHere
	}
	if err != nil {
		h.chase(w, r, errand{key: session.KeyOf(id), pair: true, msgs: msgs, batch: batch}, s, err, do)
	}
}

// takeSSE gives a session what was POSTed to it.
func (h *Handler) takeSSE(w http.ResponseWriter, r *http.Request, s *session.Session, msgs []jsonrpc.Message, batch bool) error {
	if !s.SingleStream() {
		return session.ErrNotFound
	}
	if err := checkMessages(msgs, batch, stageOf(s), s.Revision()); err != nil {
		return err
	}
	ctx := context.WithoutCancel(r.Context())
	var calls []jsonrpc.Message
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			calls = append(calls, msgs[i])
		} else if err := s.Send(ctx, msgs[i], r.Header); errors.Is(err, session.ErrMoved) {
			return err
		} else if err != nil {
			h.logger.Warn("message not delivered", "session", s.Name(), "method", msgs[i].Method, "error", err)
		}
	}
	if len(calls) > 0 {
		var once runOnce
		if v := h.visit(r); v != nil {
			once.name, once.again = v.Once, v.Again
		}
		call, err := h.begin(s, calls, true, once)
		if err != nil {
			return err
		}
		defer call.deliver(ctx, calls, r.Header)
	}
	w.WriteHeader(http.StatusAccepted)
	if _, err := io.WriteString(w, "Accepted"); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		h.logger.Debug("202 not written", "error", err)
	}
	return nil
}
