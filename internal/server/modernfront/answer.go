package modernfront

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/defaults"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows answers requests of revision 2026-07-28: with JSON if nothing comes before the response and that comes soon, else
// with a stream of events. The stream has no event ids, because it cannot be resumed.

// Serve serves a modern request. An error says that nothing was answered, and that it may be placed elsewhere.
//
//go:noinline
func (fr *Front) Serve(w http.ResponseWriter, of *exchange.Exchange) (err error) {
	for _, f := range fr.Features {
		if result, ours, err := f.Serve(of.Modern, &of.Msgs[0]); ours {
			return fr.answerOwn(w, of, result, err)
		}
	}
	y := struct { // a reply keeps it
		exchange.Exchange
		msgs [1]jsonrpc.Message // which get other ids; if it is placed elsewhere they keep theirs
	}{*of, [1]jsonrpc.Message(of.Msgs)}
	x, m := &y.Exchange, &y.msgs[0]
	x.Msgs = y.msgs[:]
	switch {
	case m.Kind == jsonrpc.Notification:
		return fr.cancel(w, x)
	case m.Method == protocol.MethodResume && !fr.Stateless:
		return fr.resume(w, x)
	case isWaitingState(m):
		return fr.goOn(w, x)
	}
	if x.Once.Key, err = exchange.KeyOf(x.HTTP, x.Msgs); err != nil {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err)
	}
	if err := fr.moved(x); err != nil {
		return err
	}
	if x.IsListen() {
		x.Once.Key = "" // which nobody could come back to
	}
	if fr.Life.TakesNothing() && (x.Once.Key == "" || !fr.Sessions.BegunOnce(x.Client(fr.Sessions), x.Once.Key)) {
		return fr.Life.NotHere()
	}
	var listen modern.Listen
	for i := 0; i < len(fr.Features) && listen == nil && m.Method == protocol.MethodSubscriptions; i++ {
		if listen, err = fr.Features[i].Listen(x.Modern, m, fr.again(x)); err != nil {
			return err
		}
	}
	defer func() { x.Once.Pass.Release() }() // what the call has not taken
	if err = fr.findCarrier(x); err != nil {
		return err
	}
	defer x.Session.Release()
	if listen != nil {
		return fr.listen(w, x, listen)
	}
	return fr.call(w, x, of.Msgs)
}

// answerOwn answers a request that a feature has served. An error says that nothing was answered.
func (fr *Front) answerOwn(w http.ResponseWriter, x *exchange.Exchange, result []byte, err error) error {
	var known *jsonrpc.Error
	switch {
	case errors.As(err, &known), errors.Is(err, session.ErrNotFound):
		fr.Fail(w, x, err)
	case err != nil:
		return err
	default:
		response := make([]byte, 0, len(result)+len(x.Modern.ID)+40)
		fr.write(w, x, jsonrpc.AppendResult(response, x.Modern.ID, result))
	}
	return nil
}

// again serves requests in the place of an exchange, as ours; nil: there is no other node that they may be served on.
func (fr *Front) again(x *exchange.Exchange) modern.Again {
	if x.From != nil || x.Modern.Follows {
		return nil
	}
	of := *x
	of.Session, of.Msgs = nil, nil
	return func(ctx context.Context, m jsonrpc.Message, hear func(message []byte)) {
		y, own := of, *of.Modern
		own.ID, own.Follows = m.ID, true
		y.Modern, y.Msgs, y.HTTP = &own, []jsonrpc.Message{m}, of.HTTP.WithContext(ctx)
		fr.ServeOwn(&placement.Answer{Events: hearing(hear)}, &y)
	}
}

// hearing is called with each message of a stream, whose sink it is.
type hearing func(message []byte)

// Open implements [placement.Sink].
func (hearing) Open(http.Header) {}

// Append implements [placement.Sink].
func (hear hearing) Append(text, _, data []byte) []byte {
	if len(data) > 0 {
		hear(data)
		text = append(text, '\n') // something was said: the stream has begun
	}
	return text
}

// Write implements [placement.Sink].
func (hearing) Write([]byte) error { return nil }

// call begins the call of a modern request in its carrier, and answers it. came is the request as it came.
func (fr *Front) call(w http.ResponseWriter, x *exchange.Exchange, came []jsonrpc.Message) error {
	s := x.Session
	if !fr.checkParams(w, x) {
		return nil
	}
	if x.Once.Key == "" && !x.Modern.Resumes && x.HTTP.Context().Err() != nil {
		return nil // its client has left, which cancels it, before it has begun
	}
	id := s.NextID()
	x.Msgs[0].Raw = x.Msgs[0].WithID(id)
	x.Msgs[0].ID = id
	b, err := fr.Starter.BeginModern(x, fr.Starter.Origin(x))
	if err != nil {
		if b, err = fr.Starter.BeginModernInTurn(x, err); err != nil {
			return err
		}
	}
	began := time.Now()
	resumes := b.Number != 0 && x.Modern.Resumes
	if !resumes {
		b.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
	}
	if b.Call != nil && b.Number == 0 {
		if fr.waitLight(w, x, b.Call) {
			return nil
		}
		b.Number = b.Call.Number()
	}
	p := fr.newReply(w, x, b.Session, b.Call)
	if b.Call == nil {
		p.Door = observe.DoorKey
	}
	if resumes {
		if err := p.begins(x.HTTP.Context(), &b, x.Msgs); err != nil {
			return err
		}
	}
	p.began = began
	x.Modern.Sum = modern.SumOf(&x.Msgs[0])
	if !fr.Sessions.Shared() && p.early == nil { // else a note may need them yet, or a feature
		clear(x.Msgs) // the call may last for long, and must not hold the body
	}
	clear(came)
	return p.answer(x.HTTP.Context(), b.Number, 0)
}

// checkParams checks the headers that repeat arguments: those of a POST. If it is false the request was answered.
func (fr *Front) checkParams(w http.ResponseWriter, x *exchange.Exchange) bool {
	if x.Muxed || x.From != nil && x.From.Stays {
		return true
	}
	err := x.Session.Tools.CheckHeaders(x.HTTP.Context(), &x.Msgs[0], x.HTTP.Header)
	if err != nil {
		fr.reject(w, x, http.StatusBadRequest, jsonrpc.Errorf(protocol.CodeHeaderMismatch, "%v", err))
	}
	return err == nil
}

// waitLight waits for a call to be answered while it is light, and reports whether the
// client was answered, or has left. If not, the call has a stream.
func (fr *Front) waitLight(w http.ResponseWriter, x *exchange.Exchange, call *session.Call) (done bool) {
	ctx, wait, over := x.HTTP.Context(), fr.Sessions.Waiter(fr.patience(x)), false
	defer func() { wait.Stop(over) }() // else it may be told yet
	defer call.Answered()
	call.Notify(wait.Ready)
	<-wait.Ready // of what has happened before
	for {
		answers, ended, number := call.Answers()
		switch {
		case ended:
			over = true
			if ctx.Err() != nil && x.Method() == protocol.MethodCallTool {
				call.ConnectionLost() // nobody hears it
				return true
			}
			fr.answer(w, x, call, answers)
			return true
		case number != 0:
			return false
		}
		select {
		case <-wait.Ready:
		case <-wait.Late:
			call.Promote()
		case <-ctx.Done():
			fr.cut(x, call)
			return true
		}
	}
}

// answer answers a modern request whose call has ended while it was light.
func (fr *Front) answer(w http.ResponseWriter, x *exchange.Exchange, call *session.Call, answers [][]byte) {
	if err := call.Refusal(); err != nil {
		fr.Fail(w, x, err)
		return
	}
	if len(answers) == 0 {
		fr.write(w, x, answering.Error(x.Modern.ID, answering.ErrCancelled))
		return
	}
	fr.write(w, x, fr.own(x, answers[0]))
}

// patience is how long a call stays light: until its client has to hear something.
func (fr *Front) patience(x *exchange.Exchange) time.Duration {
	after := fr.opensAfter()
	if f, early := fr.Features.First(x.Modern); f != nil && (after <= 0 || after > early) {
		return early
	}
	return after
}

// write answers a modern request with one message: as JSON, or as the only event of a
// stream. An error that has a status of its own is JSON.
func (fr *Front) write(w http.ResponseWriter, x *exchange.Exchange, message []byte) {
	status := statusOf(x, message)
	switch {
	case status != http.StatusOK:
		fr.Answers.RejectAs(w, status, message)
	case fr.Streams && x.Form == answering.AnyForm:
		_ = fr.Answers.Answer(w, answering.OnlyEvents, [][]byte{message}, false) // who has gone does not hear it
	default:
		_ = fr.Answers.Answer(w, x.Form, [][]byte{message}, false)
	}
}

// reject answers a modern request with an error. Unlike older revisions this one knows no id that is null.
func (fr *Front) reject(w http.ResponseWriter, x *exchange.Exchange, status int, e *jsonrpc.Error) {
	fr.Answers.TellRefused(w, status, e)
	fr.Answers.RejectAs(w, status, answering.Error(x.Modern.ID, e))
}

// Fail answers a modern request with what an error means.
func (fr *Front) Fail(w http.ResponseWriter, x *exchange.Exchange, err error) {
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := fr.Answers.Explain(err)
	for _, f := range fr.Features {
		if no := f.NotFound(x.Msgs[0].Method); no != nil && errors.Is(err, session.ErrNotFound) {
			status, e = http.StatusOK, no
		}
	}
	if status == http.StatusTooManyRequests {
		limited := *e
		limited.Code = protocol.CodeRateLimited
		e = &limited
	}
	answering.SetRetryAfter(w, status, err)
	fr.Answers.TellRefused(w, status, err)
	fr.Answers.RejectAs(w, status, answering.Error(x.Modern.ID, e))
}

// own returns a response with the client's id in the place of ours. A listen's response names the id in its _meta too.
func (fr *Front) own(x *exchange.Exchange, response []byte) []byte {
	id := x.Modern.ID
	switch x.Method() {
	case protocol.MethodSubscriptions:
		if jsonrpc.Field(response, "result", "_meta", protocol.MetaSubscriptionID) != nil {
			response = subscribed(x, response, "result")
		}
	case protocol.MethodDiscover:
		response = fr.discovered(x.Modern, response)
	default:
		response = fr.Features.Own(x.Modern, response)
	}
	// As a rule the response begins as ours do, and has the id there.
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok {
		if n := bytes.IndexByte(rest, ','); n > 0 && rest[0] >= '0' && rest[0] <= '9' {
			own := make([]byte, 0, len(response)+len(id))
			return append(append(append(own, openingID...), id...), rest[n:]...)
		}
	}
	response, _ = jsonrpc.Set(response, id, "id")
	return response
}

// openingID is how our responses begin, and most of others.
const openingID = `{"jsonrpc":"2.0","id":`

// subscribed has a message of a listen name the subscription by the client's id, in its params or its result. Each
// notification of a listen does so (2026-07-28, Subscriptions), whatever its server has forgotten.
func subscribed(x *exchange.Exchange, message []byte, of string) []byte {
	message, _ = jsonrpc.Set(message, x.Modern.ID, of, "_meta", protocol.MetaSubscriptionID)
	return message
}

// What follows is for modern clients whose connection ends before their request is answered. By the specification that cancels the
// request (2026-07-28, Cancellation). But the end of a connection is all that a server sees of a network that has cut it, too. See
// docs/decisions/0053-calls-that-come-again.md.

// ErrWithdrawn says that a client has cancelled its request by a message: nothing was cut.
var ErrWithdrawn = errors.New("the client cancelled the request")

// cut is called when the client of a call has left. A call of a tool goes on for a time in which its client may make it again, and get what it
// says. All others are cancelled at once, and so is one that the client has cancelled by a message.
func (fr *Front) cut(x *exchange.Exchange, call *session.Call) {
	if fr.Stateless || fr.CutGrace <= 0 || x.Method() != protocol.MethodCallTool || errors.Is(context.Cause(x.HTTP.Context()), ErrWithdrawn) {
		call.Withdraw("the client closed the connection")
		return
	}
	call.ConnectionLost()
	call.AwaitReturn(fr.CutGrace, "the client closed the connection, and did not come back in time")
}

// streamsAfter is how long a modern request waits for something to be said before its answer begins to be a stream of events. What is cut
// before that fails at once at its client, which may ask again. After that many hosts wait for the rest until their own limit. Proxies
// end a silent request after 60 s, as a rule.
const streamsAfter = 45 * time.Second

// opensAfter is how long an answer is silent before it begins to be a stream, to be kept alive. Less than the usual KeepAlive is set where
// something on the way ends what is silent for longer. 0 or less: it never does.
func (fr *Front) opensAfter() time.Duration {
	if every := fr.Responses.KeepAlive; every < defaults.KeepAlive {
		return every
	}
	return max(fr.Responses.KeepAlive, streamsAfter)
}
