package server

import (
	"encoding/json"
	"errors"
	"net/http"

	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file has the requests of SEP-975, for any transport, and their routing over
// Streamable HTTP. Holdfast itself answers them, without the backend.

// startRequest begins to serve a request to Holdfast itself. It needs no session: a token is enough, and is valid for the
// principal's requests in any session, on any node.
func (h *Handler) startRequest(x *exchange.Exchange, o *outcome) (err error) {
	m := &x.Msgs[0]
	if ask := betweenNodes[m.Method]; ask != nil {
		var in session.Range
		if x.From != nil && x.From.Local != nil {
			in = *x.From.Local
		}
		result, err := ask(x.HTTP.Context(), h.sessions, x.Principal, in, m.Params)
		if err == nil {
			o.kind, o.body = outcomeAnswer, jsonrpc.AppendResult(nil, m.ID, result)
		}
		return err
	}
	if m.Method == protocol.MethodResume {
		o.kind = outcomeStream
		o.Session, o.at, err = streaming.ResumedAt(x.HTTP.Context(), h.sessions, x.Principal, m, x.Last)
	} else {
		o.kind = outcomeAnswer
		o.body, err = h.startStatus(x)
	}
	if errors.Is(err, resume.ErrBadToken) { // answered with status 200, as a request that is served
		_, e := h.answers.Explain(err)
		o.kind, o.body, err = outcomeAnswer, jsonrpc.AppendError(nil, m.ID, e), nil
	}
	return err
}

// startStatus returns the answer to requests/getStatus, or requests/getStatus/all.
func (h *Handler) startStatus(x *exchange.Exchange) (answer []byte, err error) {
	m := &x.Msgs[0]
	all := m.Method == protocol.MethodStatusAll
	if all && x.Session == nil && x.Principal.IsAnonymous() && x.From == nil && x.Secret != "" && h.nodes != nil {
		_, at, err := h.sessions.Locate(x.HTTP.Context(), whereabouts.KeyOf(x.Secret), x.Principal)
		if err == nil && at != nil {
			return nil, &session.Redirect{Remote: at}
		}
	}
	if all && (x.From == nil || x.From.Local == nil) { // the node that makes an inquiry has counted it
		if err := h.sessions.Gate.List(x.Principal, x.HTTP.RemoteAddr); err != nil {
			return nil, err
		}
		done, err := h.sessions.ListTurn(x.HTTP.Context(), x.Principal, x.HTTP.RemoteAddr)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	var more []resume.Listed
	var in session.Range
	switch {
	case !all || x.Principal.IsAnonymous() || h.nodes == nil:
	case x.From != nil && x.From.Local != nil:
		in = *x.From.Local
	default:
		y := *x // a copy, which other goroutines read
		more, in, err = h.resumableElsewhere(&y)
	}
	if err != nil {
		return nil, err
	}
	result, err := h.sessions.Resumes().Status(m, x.Principal, x.Session, more, in)
	if err != nil {
		return nil, err
	}
	return jsonrpc.AppendResult(nil, m.ID, result), nil
}

// resumableElsewhere returns other nodes' results for a requests/getStatus/all, and the range of sessions that they cover.
func (h *Handler) resumableElsewhere(x *exchange.Exchange) (all []resume.Listed, in session.Range, err error) {
	after := stream.SessionKey(jsonrpc.String(jsonrpc.Field(x.Msgs[0].Params, "cursor")))
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

// deliver delivers a message that names its session itself, whatever connection it comes on: the answer to a backend's request, or
// the cancellation of a request with its token. taken is false for all other messages.
func (h *Handler) deliver(x *exchange.Exchange, m *jsonrpc.Message) (taken bool, err error) {
	if m.Kind == jsonrpc.Response {
		return h.sessions.Answer(x.Values(), x.Principal, *m, x.HTTP.Header)
	}
	return h.sessions.Resumes().Cancel(x.Principal, m, x.HTTP.Header)
}

// roamed delivers the messages of a POST without requests that name their session themselves, each as an exchange of its own,
// and leaves the others in x.Msgs. If it returns false, the POST was answered: all messages were taken, or one was refused.
func (h *Handler) roamed(w http.ResponseWriter, x *exchange.Exchange) bool {
	rest := x.Msgs[:0]
	for i := range x.Msgs {
		taken, err := h.deliver(x, &x.Msgs[i])
		var away *session.Redirect
		if errors.As(err, &away) {
			one := *x
			one.Purpose, one.Msgs = exchange.ForNamed, x.Msgs[i:i+1:i+1]
			if x.From != nil { // the node that forwarded it sends it to the session's node
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
			rest = append(rest, x.Msgs[i])
		}
	}
	if x.Msgs = rest; len(rest) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return false
	}
	return true
}
