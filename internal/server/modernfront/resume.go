package modernfront

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/feature/resume"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file is SEP-975 for modern clients, as an extension of Holdfast's that they declare (docs/eras.md). The answer to a
// call of such a client begins with its policy, which has a token. From then on the end of the connection does not cancel the
// call: requests/resume continues it, on any node.

// sealResume is the purpose of a modern resume token's ticket.
const sealResume = "holdfast modern resume token"

// resumes reports whether the client of a modern request has declared the extension, and can come back for the call.
func (fr *Front) resumes(x *exchange.Exchange) bool {
	return !fr.Stateless && x.Modern.Declares("extensions", protocol.ExtensionResume) && !x.IsListen()
}

// policy returns the first event of an answer to a client that resumes calls.
func (p *reply) policy() []byte {
	token := p.Session.Tickets().Make(sealResume, p.Reader.Cursor().Stream.Number, p.x.Modern.ID)
	wait := max(p.front.Sessions.Resumes().InputWait().Truncate(time.Second), time.Second)
	return p.Event(nil, nil, resume.Policy(p.x.Modern.ID, token, 0, wait))
}

// resume serves a requests/resume of a modern client.
func (fr *Front) resume(w http.ResponseWriter, x *exchange.Exchange) error {
	m := &x.Msgs[0]
	if !x.Modern.Resumes {
		return modern.Missing(protocol.ExtensionResume)
	}
	s, number, err := fr.find(x, jsonrpc.Field(m.Params, "resumeToken"), m.ID)
	if errors.Is(err, resume.ErrBadToken) { // answered with status 200, as a request that is served
		_, e := fr.Answers.Explain(err)
		fr.reject(w, x, http.StatusOK, e)
		return nil
	}
	if err != nil {
		return err
	}
	x.Session = s
	at, err := streaming.CursorAfter(x.HTTP.Context(), s, number, exchange.LastEventID(x.HTTP))
	if err != nil {
		return err
	}
	p := fr.newReply(w, x, s, s.CallAt(number))
	p.Door = observe.DoorResume
	p.early = nil // a feature may have answered the call's first request
	if p.Call != nil {
		p.Call.Returned()
	}
	open, err := s.OpenRequests(x.HTTP.Context(), number, at.Seq) // the backend's requests after the client's last event
	for i := range open {
		p.asked = append(p.asked, modern.Input{ID: open[i].ID, Message: open[i].Raw})
	}
	if err != nil && !errors.Is(err, stream.ErrNotFound) {
		return err
	}
	return p.answer(x.HTTP.Context(), number, at.Seq)
}

// cancel serves a notifications/cancelled that names a call by its token, or by the idempotency key that it was made under.
func (fr *Front) cancel(w http.ResponseWriter, x *exchange.Exchange) error {
	m := &x.Msgs[0]
	const reason = "the client cancelled the request"
	if resume.Cancels(m) {
		s, number, err := fr.find(x, jsonrpc.Field(m.Params, "_meta", protocol.MetaResumeToken), jsonrpc.Field(m.Params, "requestId"))
		if err != nil && !errors.Is(err, resume.ErrBadToken) {
			return err
		}
		if err == nil {
			if c := s.CallAt(number); c != nil {
				c.Withdraw(reason)
			}
		}
	} else {
		key, err := exchange.KeyOf(x.HTTP, x.Msgs)
		if err != nil {
			return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err)
		}
		if err = fr.Sessions.CancelOnce(x.Client(fr.Sessions), key, reason); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// begins delivers the call of a reply, once the client was sent the token to come back for it.
func (p *reply) begins(ctx context.Context, b *exchange.Begun, msgs []jsonrpc.Message) error {
	if err := p.Copier.Read(ctx, stream.Cursor{Stream: stream.ID{Number: b.Number}}, true); err != nil {
		if b.Call != nil {
			b.Call.Withdraw("its stream cannot be read")
		}
		return err
	}
	err := p.say(nil, false)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil && b.Call != nil && p.x.Once.Key == "" { // with a key the client can come back
		b.Call.Abort(msgs, jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: its client has left"))
	}
	b.Deliver(p.x.Values(), msgs, p.x.HTTP.Header)
	return nil
}

// find returns the session and the stream number of the call that a token and the id of its request name.
func (fr *Front) find(x *exchange.Exchange, token, id []byte) (*session.Session, uint64, error) {
	s, number, err := fr.Sessions.FindSeal(sealResume, jsonrpc.String(token), id, x.Principal)
	if errors.Is(err, session.ErrNotFound) {
		err = resume.ErrBadToken
	}
	return s, number, err
}
