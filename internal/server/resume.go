package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is SEP-975 without a transport, and how it is over Streamable HTTP.
// What is asked here is asked of Holdfast, and no backend hears of it.

const methodResume = protocol.MethodResume

// ours reports whether a message is a request to Holdfast itself.
func (h *Handler) ours(m *jsonrpc.Message) bool {
	return !h.opts.Stateless && m.Kind == jsonrpc.Request && protocol.Resumes(m.Method)
}

// The resumptions are what clients ask for with the tokens of their calls, in whatever session.
type resumptions struct{ sessions *session.Manager }

// find returns where a requests/resume of the principal asks to go on: after
// the event with the id last, or, if that is "", after the one that its _meta
// names, or else from the oldest message that is kept. The error is one that
// [answering.Writer.Explain] knows.
func (rs *resumptions) find(ctx context.Context, principal caller.Principal, m *jsonrpc.Message, last string) (*session.Session, stream.Cursor, error) {
	token := jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
	s, number, err := rs.sessions.Resumes().Find(token, m.ID, principal)
	if err != nil {
		return nil, stream.Cursor{}, err
	}
	if last == "" {
		last = jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaLastEventID))
	}
	at, err := cursorAfter(ctx, s, number, last)
	return s, at, err
}

// startRequest begins to serve a request to Holdfast itself. A session is not needed: a
// token is enough, and counts for the principal's requests in any session, wherever that
// is.
func (h *Handler) startRequest(x *exchange, o *outcome) (err error) {
	m := &x.msgs[0]
	if ask := betweenNodes[m.Method]; ask != nil {
		var in session.Range
		if x.from != nil && x.from.Local != nil {
			in = *x.from.Local
		}
		result, err := ask(x.r.Context(), h.sessions, x.principal, in, m.Params)
		if err == nil {
			o.kind, o.body = outcomeAnswer, jsonrpc.AppendResult(nil, m.ID, result)
		}
		return err
	}
	if m.Method == methodResume {
		o.kind = outcomeStream
		o.session, o.at, err = h.resumptions.find(x.r.Context(), x.principal, m, x.last)
	} else {
		o.kind = outcomeAnswer
		o.body, err = h.startStatus(x)
	}
	if errors.Is(err, resume.ErrBadToken) { // that there is no such request is an answer like others
		_, e := h.answers.Explain(err)
		o.kind, o.body, err = outcomeAnswer, jsonrpc.AppendError(nil, m.ID, e), nil
	}
	return err
}

// startStatus returns the answer to requests/getStatus, or requests/getStatus/all.
func (h *Handler) startStatus(x *exchange) (answer []byte, err error) {
	m := &x.msgs[0]
	all := m.Method == protocol.MethodStatusAll
	if all && x.session == nil && x.principal.IsAnonymous() && x.from == nil && x.secret != "" && h.nodes != nil {
		_, at, err := h.sessions.Locate(x.r.Context(), whereabouts.KeyOf(x.secret), x.principal)
		if err == nil && at != nil {
			return nil, &session.Redirect{Remote: at}
		}
	}
	if all && (x.from == nil || x.from.Local == nil) { // else it was counted where it was asked
		if err := h.sessions.Gate.List(x.principal, x.r.RemoteAddr); err != nil {
			return nil, err
		}
		done, err := h.sessions.ListTurn(x.r.Context(), x.principal, x.r.RemoteAddr)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	var more []resume.Listed
	var in session.Range
	switch {
	case !all || x.principal.IsAnonymous() || h.nodes == nil:
	case x.from != nil && x.from.Local != nil:
		in = *x.from.Local
	default:
		y := *x // which other goroutines read
		more, in, err = h.resumableElsewhere(&y)
	}
	if err != nil {
		return nil, err
	}
	result, err := h.sessions.Resumes().Status(m, x.principal, x.session, more, in)
	if err != nil {
		return nil, err
	}
	return jsonrpc.AppendResult(nil, m.ID, result), nil
}

// resumableElsewhere returns what other nodes know for a requests/getStatus/all, and of which
// sessions that is.
func (h *Handler) resumableElsewhere(x *exchange) (all []resume.Listed, in session.Range, err error) {
	after := stream.SessionKey(jsonrpc.String(jsonrpc.Field(x.msgs[0].Params, "cursor")))
	results, in, err := h.everywhere(x, after)
	for _, result := range results {
		var said struct{ Requests []resume.Listed }
		if err := json.Unmarshal(result, &said); err != nil {
			return nil, in, err
		}
		all = append(all, said.Requests...)
	}
	return all, in, err
}

// deliver takes a message of the principal that says itself which session it is for,
// whatever connection it comes on: the answer to a backend's request, or the
// cancellation of a request with its token. It is false for all others.
func (rs *resumptions) deliver(x *exchange, m *jsonrpc.Message) (taken bool, err error) {
	if m.Kind == jsonrpc.Response {
		return rs.sessions.Answer(x.values(), x.principal, *m, x.r.Header)
	}
	return rs.sessions.Resumes().Cancel(x.principal, m, x.r.Header)
}

// roamed hands over those messages of a POST without requests that find their session by
// themselves, each as an exchange of its own, and leaves the others. If it is false the
// POST was answered: all were taken, or one was refused.
func (h *Handler) roamed(w http.ResponseWriter, x *exchange) bool {
	rest := x.msgs[:0]
	for i := range x.msgs {
		taken, err := h.resumptions.deliver(x, &x.msgs[i])
		var away *session.Redirect
		if errors.As(err, &away) {
			one := *x
			one.purpose, one.msgs = forNamed, x.msgs[i:i+1:i+1]
			if x.from != nil { // that node sends it where its session is
				h.place(w, &one, err)
				return false
			}
			taken = true
			_, err = h.ask(&one)
		}
		switch {
		case err != nil:
			h.answers.Fail(w, err)
			return false
		case !taken:
			rest = append(rest, x.msgs[i])
		}
	}
	if x.msgs = rest; len(rest) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return false
	}
	return true
}
