package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"holdfast/jsonrpc"
	"holdfast/protocol"
	"holdfast/session"
	"holdfast/sse"
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
		h.limit(w, r)
		if !h.guard(w, r, allow) {
			return
		}
		switch {
		case r.Method == http.MethodGet && !h.opts.Stateless:
			h.getSSE(w, r, messages)
		case r.Method == http.MethodPost && !h.opts.Stateless:
			h.postSSE(w, r)
		default:
			w.Header().Set("Allow", allow)
			h.reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "method %s is not allowed here", r.Method))
		}
	})
}

// getSSE opens a session, or resumes the one that the last event id names.
func (h *Handler) getSSE(w http.ResponseWriter, r *http.Request, messages string) {
	if a := r.Header["Accept"]; len(a) > 0 && !accepts(a, "text/event-stream") {
		h.reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream"))
		return
	}
	var s *session.Session
	var cursor stream.Cursor
	var err error
	last := r.Header[protocol.HeaderLastEventID]
	resumes := len(last) > 0 && last[0] != ""
	if resumes {
		name, id, _ := strings.Cut(last[0], ".")
		s, err = h.sessions.FindName(name, h.opts.Principal(r))
		if err == nil {
			cursor, err = s.ParseEventID(id)
		}
		if err == nil && (!s.Single() || cursor.Stream.Number != 0) {
			err = session.ErrBadID
		}
	} else {
		s, err = h.sessions.New(r, h.opts.Principal(r), true)
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	c := h.newConn(w, r, s)
	c.primes = false
	c.prefix = s.Name() + "."
	if err := c.read(r.Context(), cursor); err != nil {
		if !resumes {
			h.sessions.End(s) // nobody was told of it
		}
		h.fail(w, err)
		return
	}
	// The endpoint event carries the first id, so that the stream can be resumed
	// before its first message.
	first := append([]byte("id: "), c.eventID(&c.sources[0])...)
	first = append(first, '\n')
	first = sse.AppendEvent(first, "endpoint", messages+"?"+sessionParam+"="+url.QueryEscape(s.ID()))
	c.sentID = true
	err = c.open(first)
	if err == nil {
		err = c.copy(r.Context())
	}
	c.close(err)
}

// postSSE takes messages. What they are answered with goes to the stream.
func (h *Handler) postSSE(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get(sessionParam)
	if id == "" {
		h.reject(w, http.StatusBadRequest, errf(codeInvalid,
			"missing %s: POST to the URL that the stream's endpoint event gives", sessionParam))
		return
	}
	s, err := h.sessions.Find(id, h.opts.Principal(r))
	if err != nil || !s.Single() {
		h.fail(w, session.ErrNotFound)
		return
	}
	msgs, _, ok := h.body(w, r)
	if !ok {
		return
	}
	if initializes(msgs) {
		why := ""
		switch {
		case len(msgs) > 1:
			why = "initialize must not be part of a batch"
		case s.Revision() != "" || s.Opening() != nil:
			why = "the session is initialized already"
		}
		if why != "" {
			h.reject(w, http.StatusBadRequest, errf(codeInvalid, "%s", why))
			return
		}
	}
	ctx := context.WithoutCancel(r.Context())
	var calls []jsonrpc.Message
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			calls = append(calls, msgs[i])
		} else if err := s.Send(ctx, msgs[i], r.Header); err != nil {
			h.logger.Warn("message not delivered", "session", s.Name(), "method", msgs[i].Method, "error", err)
		}
	}
	if len(calls) > 0 {
		c, err := s.Begin(calls, true)
		if err != nil {
			h.fail(w, err)
			return
		}
		defer c.Deliver(ctx, calls, r.Header)
	}
	w.WriteHeader(http.StatusAccepted)
	if _, err := io.WriteString(w, "Accepted"); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		h.logger.Debug("202 not written", "error", err)
	}
}
