package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/feature/resume"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is SEP-975 for modern clients, as an extension of Holdfast's that they declare
// (docs/eras.md). The answer to a call of such a client begins with its policy, which has a
// token. From then on the end of the connection does not cancel the call: requests/resume
// goes on with it, on any node.

// sealResume is what the mark of a modern resume token is for.
const sealResume = "holdfast modern resume token"

// resumes reports whether the client of a modern request has declared the extension, and can
// come back for the call.
func (h *Handler) resumes(x *exchange) bool {
	return !h.opts.Stateless && x.modern.Declares("extensions", protocol.ExtensionResume) && !x.isListen()
}

// policy returns the event with which the answer to a client begins that resumes calls.
func (p *reply) policy() []byte {
	token := p.s.Tickets().Make(sealResume, p.r.Cursor().Stream.Number, p.x.modern.ID)
	wait := max(p.h.sessions.Resumes().InputWait().Truncate(time.Second), time.Second)
	return sse.AppendMessage(nil, nil, resume.Policy(p.x.modern.ID, token, 0, wait))
}

// findModern returns the call that a token and the id of its request name.
func (rs *resumptions) findModern(x *exchange, token, id []byte) (*session.Session, uint64, error) {
	s, number, err := rs.sessions.FindSeal(sealResume, jsonrpc.String(token), id, x.principal)
	if errors.Is(err, session.ErrNotFound) {
		err = resume.ErrBadToken
	}
	return s, number, err
}

// resumeModern serves a requests/resume of a modern client.
func (h *Handler) resumeModern(w http.ResponseWriter, x *exchange) error {
	m := &x.msgs[0]
	if !x.modern.resumes {
		return modern.Missing(protocol.ExtensionResume)
	}
	s, number, err := h.resumptions.findModern(x, jsonrpc.Field(m.Params, "resumeToken"), m.ID)
	if errors.Is(err, resume.ErrBadToken) { // that there is no such request is an answer like others
		_, e := h.answers.Explain(err)
		h.rejectModern(w, x, http.StatusOK, e)
		return nil
	}
	if err != nil {
		return err
	}
	x.session = s
	at, err := cursorAfter(x.r.Context(), s, number, lastEventID(x.r))
	if err != nil {
		return err
	}
	p := h.newReply(w, x, s, s.CallAt(number))
	p.door = observe.DoorResume
	p.early = nil // what a feature has made of it is not known here
	if p.call != nil {
		p.call.Returned()
	}
	open, err := s.OpenRequests(x.r.Context(), number, at.Seq) // what its client was to be asked
	for i := range open {
		p.asked = append(p.asked, modern.Input{ID: open[i].ID, Message: open[i].Raw})
	}
	if err != nil && !errors.Is(err, stream.ErrNotFound) {
		return err
	}
	return p.answer(x.r.Context(), number, at.Seq)
}

// cancelModern serves a notifications/cancelled that names a call by its token, or by the
// idempotency key that it was made under.
func (h *Handler) cancelModern(w http.ResponseWriter, x *exchange) error {
	m := &x.msgs[0]
	const reason = "the client cancelled the request"
	if resume.Cancels(m) {
		s, number, err := h.resumptions.findModern(x, jsonrpc.Field(m.Params, "_meta", protocol.MetaResumeToken), jsonrpc.Field(m.Params, "requestId"))
		if err != nil && !errors.Is(err, resume.ErrBadToken) {
			return err
		}
		if err == nil {
			if c := s.CallAt(number); c != nil {
				c.Withdraw(reason)
			}
		}
	} else {
		key, err := keyOf(x.r, x.msgs)
		if err != nil {
			return errf(codeInvalid, "%v", err)
		}
		if err = h.sessions.CancelOnce(x.client(h.sessions), key, reason); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// begins has the call of a reply run, once its client knows how to come back for it.
func (p *reply) begins(ctx context.Context, b *begun, msgs []jsonrpc.Message) error {
	if err := p.copier.read(ctx, stream.Cursor{Stream: stream.ID{Number: b.number}}, true); err != nil {
		if b.call != nil {
			b.call.Withdraw("its stream cannot be read")
		}
		return err
	}
	err := p.say(nil, false)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil && b.call != nil && p.x.once.key == "" { // else it comes back by its key
		b.call.Abort(msgs, errf(jsonrpc.CodeServer, "not delivered: its client has left"))
	}
	b.deliver(p.x.values(), msgs, p.x.r.Header)
	return nil
}
