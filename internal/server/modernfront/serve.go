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

// This file answers requests of revision 2026-07-28: with JSON if the response comes soon and is the first message, else with a
// stream of events. Only streams of clients that resume calls (resume.go) have event ids.

// Serve serves a modern request. After an error nothing was answered, and the request may be placed elsewhere.
//
//go:noinline
func (fr *Front) Serve(w http.ResponseWriter, of *exchange.Exchange) (err error) {
	for _, f := range fr.Features {
		if result, ours, err := f.Serve(of.Modern, &of.Msgs[0]); ours {
			return fr.answerOwn(w, of, result, err)
		}
	}
	y := struct { // on the heap, for a reply
		exchange.Exchange
		msgs [1]jsonrpc.Message // a copy, which gets an id of the carrier; a request that is placed elsewhere keeps its own
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
		x.Once.Key = "" // a client can't come back to a listen
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
	defer func() { x.Once.Pass.Release() }() // if the call has not taken it
	if err = fr.findCarrier(x); err != nil {
		return err
	}
	defer x.Session.Release()
	if listen != nil {
		return fr.listen(w, x, listen)
	}
	return fr.call(w, x, of.Msgs)
}

// answerOwn answers a request that a feature has served with a result or err. After an error nothing was answered.
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

// again returns a function that serves this node's own requests in the place of x; nil: x is one already, or comes from another node.
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

// hearing is the sink of a stream, and is called with each message.
type hearing func(message []byte)

// Open implements [placement.Sink].
func (hearing) Open(http.Header) {}

// Append implements [placement.Sink].
func (hear hearing) Append(text, _, data []byte) []byte {
	if len(data) > 0 {
		hear(data)
		text = append(text, '\n') // tells the writer that the stream has begun
	}
	return text
}

// Write implements [placement.Sink].
func (hearing) Write([]byte) error { return nil }

// call begins the call of a modern request in its carrier, and answers it. came is the client's request, which it clears.
func (fr *Front) call(w http.ResponseWriter, x *exchange.Exchange, came []jsonrpc.Message) error {
	s := x.Session
	if !fr.checkParams(w, x) {
		return nil
	}
	if x.Once.Key == "" && !x.Modern.Resumes && x.HTTP.Context().Err() != nil {
		return nil // the client has left before the call began, which cancels it
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
	if !fr.Sessions.Shared() && p.early == nil { // else a note or a feature may still need them
		clear(x.Msgs) // a long call must not hold the body
	}
	clear(came)
	return p.answer(x.HTTP.Context(), b.Number, 0)
}

// checkParams checks the headers of a POST that repeat arguments. If it returns false, the request was answered.
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

// waitLight waits for the answer of a light call, and reports whether the client was
// answered or has left. If not, the call has a stream now.
func (fr *Front) waitLight(w http.ResponseWriter, x *exchange.Exchange, call *session.Call) (done bool) {
	ctx, wait, over := x.HTTP.Context(), fr.Sessions.Waiter(fr.patience(x)), false
	defer func() { wait.Stop(over) }() // if not over, the call may still signal wait.Ready
	defer call.Answered()
	call.Notify(wait.Ready)
	<-wait.Ready // Notify has signalled it
	for {
		answers, ended, number := call.Answers()
		switch {
		case ended:
			over = true
			if ctx.Err() != nil && x.Method() == protocol.MethodCallTool {
				call.ConnectionLost() // the client can't receive the answer
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

// answer answers a modern request with the answers of its light call, which has ended.
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

// patience returns how long a call stays light: until the answer must begin, as a stream or by a feature.
func (fr *Front) patience(x *exchange.Exchange) time.Duration {
	after := fr.opensAfter()
	if f, early := fr.Features.First(x.Modern); f != nil && (after <= 0 || after > early) {
		return early
	}
	return after
}

// own returns a response for the client: with its id in the place of the carrier's, and with the additions of features. A listen's response
// names the id in its _meta too.
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
	// As a rule the response begins with openingID and the id.
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok {
		if n := bytes.IndexByte(rest, ','); n > 0 && rest[0] >= '0' && rest[0] <= '9' {
			own := make([]byte, 0, len(response)+len(id))
			return append(append(append(own, openingID...), id...), rest[n:]...)
		}
	}
	response, _ = jsonrpc.Set(response, id, "id")
	return response
}

// openingID is the beginning of Holdfast's responses, and of most servers'.
const openingID = `{"jsonrpc":"2.0","id":`

// subscribed sets the subscription id in a message of a listen to the client's id, in its params or its result
// (of). Each notification of a listen must have it (2026-07-28, Subscriptions), even if its server has left it out.
func subscribed(x *exchange.Exchange, message []byte, of string) []byte {
	message, _ = jsonrpc.Set(message, x.Modern.ID, of, "_meta", protocol.MetaSubscriptionID)
	return message
}

// The following is for modern clients that lose their connection before their request is answered. By the specification that
// cancels the request (2026-07-28, Cancellation). But a server can't tell a client's closing from a cut of the network. See
// docs/decisions/0053-calls-that-come-again.md.

// ErrWithdrawn says that a client has cancelled its request by a message, and not by a lost connection.
var ErrWithdrawn = errors.New("the client cancelled the request")

// cut is called when the client of a call has left. A tool call goes on for CutGrace, in which the client may make it again and get its
// messages. Other calls are cancelled at once, and so is one that the client has cancelled by a message.
func (fr *Front) cut(x *exchange.Exchange, call *session.Call) {
	if fr.Stateless || fr.CutGrace <= 0 || x.Method() != protocol.MethodCallTool || errors.Is(context.Cause(x.HTTP.Context()), ErrWithdrawn) {
		call.Withdraw("the client closed the connection")
		return
	}
	call.ConnectionLost()
	call.AwaitReturn(fr.CutGrace, "the client closed the connection, and did not come back in time")
}

// streamsAfter is how long a modern request waits for its first message before its answer begins as a stream of events. If the connection
// is cut before that, the request fails at once at its client, which may make it again; after it, many hosts wait for the rest until
// their own limit. Proxies end a silent request after 60 s, as a rule.
const streamsAfter = 45 * time.Second

// opensAfter returns how long an answer may be silent before it begins as a stream, to be kept alive; 0 or less: for ever. A KeepAlive
// below the default holds here too: it is set where a proxy ends connections that are silent for longer.
func (fr *Front) opensAfter() time.Duration {
	if every := fr.Responses.KeepAlive; every < defaults.KeepAlive {
		return every
	}
	return max(fr.Responses.KeepAlive, streamsAfter)
}
