package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is SEP-975 without a transport, and its door over Streamable HTTP.
// What is asked here is asked of Holdfast, and no backend hears of it.

const methodResume = protocol.MethodResume

// ours says whether a message is a request to Holdfast itself.
func (h *Handler) ours(m *jsonrpc.Message) bool {
	return !h.opts.Stateless && m.Kind == jsonrpc.Request && protocol.Resumes(m.Method)
}

// resumption returns where a requests/resume of the principal asks to go on: after
// the event with the id last, or, if that is "", after the one that its _meta
// names, or else from the oldest message that is kept. The error is one that
// [Handler.explain] knows.
func (h *Handler) resumption(ctx context.Context, principal string, m *jsonrpc.Message, last string) (*session.Session, stream.Cursor, error) {
	token := jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
	s, number, err := h.sessions.FindResumable(token, m.ID, principal)
	if err != nil {
		return nil, stream.Cursor{}, err
	}
	if last == "" {
		last = jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaLastEventID))
	}
	at, err := cursorAfter(ctx, s, number, last)
	return s, at, err
}

// cursorAfter returns the place in a stream after an event, or, where its id is "",
// before the oldest that is kept.
func cursorAfter(ctx context.Context, s *session.Session, number uint64, last string) (stream.Cursor, error) {
	if last == "" {
		return stream.Cursor{Stream: stream.ID{Number: number}, Seq: s.OldestOf(ctx, number)}, nil
	}
	at, err := s.ParseEventID(last)
	if err == nil && at.Stream.Number != number {
		err = session.ErrBadID
	}
	return at, err
}

// lastEventID returns the id of the event that the client has last seen, or "".
func lastEventID(r *http.Request) string {
	if v := r.Header[protocol.HeaderLastEventID]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// status returns the result of requests/getStatus, or of requests/getStatus/all,
// from a principal that is in the session own (nil: in none). The error is one
// that [Handler.explain] knows.
// more are requests that other nodes know of, in the same range of sessions.
func (h *Handler) status(ctx context.Context, principal string, own *session.Session, m *jsonrpc.Message, more []session.ResumableRequest, in session.Range) (result []byte, err error) {
	if m.Method == protocol.MethodStatusAll {
		all := map[string]any{"requests": append(h.sessions.AllResumable(ctx, principal, own, in), more...)}
		if in.Until != "" {
			all["nextCursor"] = in.Until
		}
		return json.Marshal(all)
	}
	id := jsonrpc.Field(m.Params, "requestId")
	token := jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
	s, number, err := h.sessions.FindResumable(token, id, principal)
	if err != nil {
		return nil, err
	}
	status, err := s.RequestStatus(ctx, number, id)
	if err != nil {
		return nil, err
	}
	return json.Marshal(status)
}

// postOurs answers a request to Holdfast itself. A session is not needed: a token
// is enough, and counts for the principal's requests in any session, wherever that
// is.
func (h *Handler) postOurs(w http.ResponseWriter, r *http.Request, msgs []jsonrpc.Message) {
	m := &msgs[0]
	do := func(*session.Session) error { return h.resumeOurs(w, r, m) }
	if m.Method != methodResume {
		do = func(own *session.Session) error { return h.statusOurs(w, r, own, m) }
	}
	var own *session.Session
	e := errand{msgs: msgs}
	if id := r.Header[protocol.HeaderSession]; len(id) > 0 {
		own, _ = h.sessions.Find(id[0], h.principal(r)) // one that is gone has no requests
		e.key = session.KeyOf(id[0])
	}
	err := do(own)
	if err != nil {
		h.chase(w, r, e, own, err, do)
	}
}

func (h *Handler) resumeOurs(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) error {
	s, at, err := h.resumption(r.Context(), h.principal(r), m, lastEventID(r))
	if err != nil {
		return h.refuse(w, m.ID, err)
	}
	return h.resume(w, r, h.newGuest(w, r, s), at)
}

func (h *Handler) statusOurs(w http.ResponseWriter, r *http.Request, own *session.Session, m *jsonrpc.Message) error {
	principal := h.principal(r)
	if m.Method == protocol.MethodStatusAll && own == nil && principal == "" && h.visit(r) == nil {
		if id := r.Header[protocol.HeaderSession]; len(id) > 0 && h.peers != nil {
			_, at, err := h.sessions.Locate(r.Context(), session.KeyOf(id[0]), principal)
			if err == nil && at != nil {
				return &session.Redirect{Remote: at}
			}
		}
	}
	v := h.visit(r)
	var more []session.ResumableRequest
	var in session.Range
	var err error
	switch {
	case m.Method != protocol.MethodStatusAll || principal == "" || h.peers == nil:
	case v != nil && v.Local != nil:
		in = *v.Local
	default:
		more, in, err = h.everywhere(r, principal, m)
	}
	var result []byte
	if err == nil {
		result, err = h.status(r.Context(), principal, own, m, more, in)
	}
	if err != nil {
		return h.refuse(w, m.ID, err)
	}
	_ = h.answer(w, [][]byte{jsonrpc.AppendResult(nil, m.ID, result)}, false)
	return nil
}

// refuse answers a request to Holdfast itself with an error. That there is no such
// request is an answer like others.
func (h *Handler) refuse(w http.ResponseWriter, id []byte, err error) error {
	if !errors.Is(err, session.ErrBadToken) {
		return err
	}
	_, e := h.explain(err)
	_ = h.answer(w, [][]byte{jsonrpc.AppendError(nil, id, e)}, false)
	return nil
}

// roam takes a message of the principal that says itself which session it is for,
// whatever connection it comes on: the answer to a backend's request, or the
// cancellation of a request with its token. It is false for all others.
func (h *Handler) roam(ctx context.Context, principal string, m jsonrpc.Message, header http.Header) (taken bool, err error) {
	if m.Kind == jsonrpc.Response {
		return h.sessions.Answer(ctx, principal, m, header)
	}
	return h.sessions.Cancel(principal, m, header)
}

// roamed hands over those messages of a POST without requests that find their
// session by themselves, and returns the others. If it is false the POST has been
// answered.
func (h *Handler) roamed(w http.ResponseWriter, r *http.Request, msgs []jsonrpc.Message) (rest []jsonrpc.Message, ok bool) {
	principal := h.principal(r)
	rest = msgs[:0]
	for i := range msgs {
		taken, err := h.roam(context.WithoutCancel(r.Context()), principal, msgs[i], r.Header)
		var away *session.Redirect
		if errors.As(err, &away) && h.visit(r) == nil {
			taken = true
			_, err = h.carry(r, principal, &msgs[i], func() error {
				_, err := h.roam(context.WithoutCancel(r.Context()), principal, msgs[i], r.Header)
				return err
			})
		}
		if errors.As(err, &away) {
			_, err = h.reach(w, r, errand{key: away.Key, at: away.Remote, as: true, msgs: msgs[i:]})
		}
		if err != nil {
			if !errors.Is(err, errAnswered) {
				h.fail(w, err)
			}
			return nil, false
		}
		if !taken {
			rest = append(rest, msgs[i])
		}
	}
	if len(rest) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return nil, false
	}
	return rest, true
}
