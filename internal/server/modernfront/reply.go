package modernfront

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A reply is the sink of a modern request's stream.
type reply struct {
	*streaming.Events
	front *Front
	x     *exchange.Exchange
	began time.Time

	early   modern.Feature // the feature that may answer before the call has ended; nil: none
	after   time.Duration  // the age of the call at which early answers
	resumes bool           // the client can come back for the call, and gets event ids
	listen  modern.Listen  // a feature's notifications for a listen; nil: none
	acked   bool           // with listen set: the acknowledgement was written
	goesOn  bool           // the call goes on when the client leaves
	opened  bool           // the stream of events has begun
	final   []byte         // the response for the client; nil until it has come
	asked   []modern.Input // requests of the backend that the client has not answered
	ends    func() []byte  // returns the response that ends the reply before its call, or nil to go on; set when that is due
}

// errReplied ends a reply before its call.
var errReplied = errors.New("the request was answered, and its call goes on")

// newReply prepares the reply to a modern request.
func (fr *Front) newReply(w http.ResponseWriter, x *exchange.Exchange, s *session.Session, call *session.Call) *reply {
	p := &reply{Events: fr.Responses.To(w, x, s), front: fr, x: x, began: time.Now()}
	p.Primes, p.Sink, p.Call = false, p, call
	p.resumes = x.Modern.Resumes
	p.early, p.after = fr.Features.First(x.Modern)
	return p
}

// json answers with one message.
func (p *reply) json(message []byte) { p.front.write(p.W, p.x, message) }

// answer copies a stream to the client, from the sequence seq to the response. After an error nothing was answered.
func (p *reply) answer(ctx context.Context, number, seq uint64) error {
	if p.Reader == nil {
		if err := p.Copier.Read(ctx, stream.Cursor{Stream: stream.ID{Number: number}, Seq: seq}, p.resumes); err != nil {
			switch {
			case p.Call == nil:
			case ctx.Err() != nil:
				p.front.cut(p.x, p.Call)
			default:
				p.Call.Withdraw("its stream cannot be read")
			}
			return err
		}
	}
	defer p.WatchRights(ctx)()
	err := p.Run(ctx)
	for errors.Is(err, errReplied) {
		if response := p.ends(); response != nil {
			err = p.end(response)
		} else {
			err = p.Run(ctx)
		}
	}
	p.left(err)
	if errors.Is(err, session.ErrMoved) || errors.Is(err, stream.ErrTrimmed) {
		// The client cannot come back for the response.
		err = p.end(answering.Error(p.x.Modern.ID, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%v: %v", placement.ErrUnknown, err)))
	}
	p.Close(err)
	return nil
}

// left cancels the call if the client has left before it was answered, unless the client can come back for it.
func (p *reply) left(err error) {
	if err == nil || p.IsRead() || errors.Is(err, streaming.ErrSuperseded) || errors.Is(err, session.ErrMoved) || p.goesOn {
		return
	}
	c := p.Session.CallAt(p.Reader.Cursor().Stream.Number)
	switch {
	case c == nil || c.Keyed() || !p.Reader.LeavesLast():
	case p.resumes && p.opened:
		c.AwaitReturn(p.front.Sessions.Resumes().InputWait(), "its client did not come back in time")
	default:
		p.front.cut(p.x, c)
	}
}

// end answers with a response that is not the call's own.
func (p *reply) end(response []byte) error {
	if !p.opened {
		p.json(response)
		return nil
	}
	return p.Flush(p.Event(nil, nil, response), true)
}

// Append implements [Sink].
func (p *reply) Append(text, eventID, data []byte) []byte {
	method, id := jsonrpc.Field(data, "method"), jsonrpc.Field(data, "id")
	switch {
	case method == nil:
		p.final = p.front.own(p.x, data)
		return text
	case id != nil:
		p.asked = append(p.asked, modern.Input{ID: id, Message: data})
		return text
	case p.withdrawn(jsonrpc.String(method), data):
		return text
	case p.x.IsListen():
		data = subscribed(p.x, data, "params")
		if p.listen != nil && jsonrpc.String(method) == protocol.MethodAcknowledged {
			p.acked, data = true, p.listen.Filter(data)
		}
	}
	return p.Event(text, eventID, data)
}

// withdrawn reports whether a notification cancels a request of the backend, which it then removes from p.asked.
func (p *reply) withdrawn(method string, data []byte) bool {
	if method != protocol.MethodCancelled {
		return false
	}
	id := jsonrpc.Field(data, "params", "requestId")
	for i := range p.asked {
		if string(jsonrpc.Key(p.asked[i].ID)) == string(jsonrpc.Key(id)) {
			p.asked = append(p.asked[:i:i], p.asked[i+1:]...)
			break
		}
	}
	return true
}

// Write implements [Sink].
func (p *reply) Write(text []byte, last bool) error {
	if last && p.final == nil && p.resumes { // the call was cancelled, maybe on another connection
		p.final = answering.Error(p.x.Modern.ID, answering.ErrCancelled)
	}
	if p.x.Form == answering.OnlyJSON { // the client takes the response alone
		text = text[:0]
	}
	switch {
	case last && !p.opened && p.Call != nil && p.Call.Refusal() != nil:
		p.front.Fail(p.W, p.x, p.Call.Refusal())
	case last && !p.opened && len(text) == 0:
		if p.final == nil {
			p.final = answering.Error(p.x.Modern.ID, answering.ErrCancelled)
		}
		p.json(p.final)
	case last && p.final != nil:
		text = p.Event(text, nil, p.final)
		fallthrough
	case len(text) > 0 || last:
		if err := p.say(text, last); err != nil {
			return err
		}
	}
	if last && p.Gone() {
		return streaming.ErrLeft
	}
	return nil
}

// say writes events, and opens the stream before the first.
func (p *reply) say(text []byte, last bool) error {
	if p.opened {
		return p.Flush(text, last)
	}
	if p.resumes && p.Reader.Cursor().Stream.Number != 0 {
		text = append(p.policy(), text...)
	}
	p.opened = true
	if p.resumes && p.Via.IsForwarded() {
		p.W.Header()[placement.HeaderReturns] = []string{"1"}
	}
	return p.Open(text, last)
}

// Idle implements [Sink].
func (p *reply) Idle(_ context.Context, now time.Time) (time.Time, error) {
	a := streaming.Alarm{Now: now}
	switch {
	case p.isDenied():
		return a.Next, streaming.ErrComeBack // the client makes the request again, or comes back for its call
	case p.waits(&a) || p.isEarly(&a):
		return a.Next, errReplied
	case p.x.IsListen() && p.drained(&a):
		if p.front.Life.IsAlone() {
			p.ends = func() []byte { return p.endListen("the server is shutting down") }
			return a.Next, errReplied
		}
		return a.Next, streaming.ErrComeBack // to another node: an ordinary end would mean that there is none
	}
	if p.listen != nil {
		ended, err := p.tellNews()
		if err != nil {
			return a.Next, err
		}
		if ended != "" {
			p.ends = func() []byte { return p.endListen(ended) }
			return a.Next, errReplied
		}
	}
	if p.x.Form == answering.OnlyJSON {
		return a.Next, nil
	}
	if after := p.front.opensAfter(); !p.opened && (after > 0 || p.resumes) {
		if !p.resumes && !a.Due(p.began.Add(after)) { // a client that resumes gets its token at once
			return a.Next, nil
		}
		if err := p.say(nil, false); err != nil {
			return a.Next, err
		}
	}
	return a.Next, p.KeepAlive(&a)
}

// isEarly reports whether it is time for a feature to answer the request before its call has ended.
func (p *reply) isEarly(a *streaming.Alarm) bool {
	if p.early == nil || !a.Due(p.began.Add(p.after)) {
		return false
	}
	p.ends = p.answerEarly
	return true
}

// answerEarly returns a feature's response, after which the call goes on; nil: the feature has none.
func (p *reply) answerEarly() []byte {
	f := p.early
	p.early = nil
	if p.x.HTTP.Context().Err() != nil { // the client would not get it, and the call is cancelled
		return nil
	}
	result := f.Answer(p.x.Modern, &p.x.Msgs[0], p.Session, p.Reader.Cursor().Stream.Number)
	if result == nil {
		return nil
	}
	p.goesOn = true
	return jsonrpc.AppendResult(nil, p.x.Modern.ID, result)
}

// tellNews writes a feature's notifications for a listen. ended says why the listen ends; "": more may come.
func (p *reply) tellNews() (ended string, err error) {
	var text []byte
	if p.listen.Alone() && !p.acked {
		p.acked = true
		ack := []byte(`{"jsonrpc":"2.0","method":"` + protocol.MethodAcknowledged + `","params":{"notifications":{}}}`)
		text = p.Event(text, nil, p.listen.Filter(subscribed(p.x, ack, "params")))
	}
	if !p.acked {
		return "", nil
	}
	news, ended := p.listen.News()
	for _, message := range news {
		text = p.Event(text, nil, message)
	}
	if len(text) > 0 {
		err = p.say(text, false)
	}
	return ended, err
}

// endListen cancels the call of a listen with a reason, and returns the listen's response.
func (p *reply) endListen(why string) []byte {
	if c := p.Session.CallAt(p.Reader.Cursor().Stream.Number); c != nil {
		c.Withdraw(why)
	}
	return modern.ListenEnded(p.x.Modern.ID)
}

// listen serves a listen that a feature has notifications for.
func (fr *Front) listen(w http.ResponseWriter, x *exchange.Exchange, l modern.Listen) error {
	id := x.Session.NextID()
	x.Msgs[0].Raw = x.Msgs[0].WithID(id)
	x.Msgs[0].ID = id
	b, err := fr.Starter.BeginModern(x, fr.Starter.Origin(x))
	if err != nil {
		return err
	}
	began := time.Now()
	b.Call.Promote()
	if !l.Alone() {
		b.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
	}
	p := fr.newReply(w, x, b.Session, b.Call)
	p.began, p.listen = began, l
	l.Watch(x.Values(), p.Ready)
	defer l.Close()
	return p.answer(x.HTTP.Context(), b.Call.Number(), 0)
}

// drained reports whether it is time to end a listen, as the node is drained.
func (p *reply) drained(a *streaming.Alarm) bool {
	if p.Leaving.IsZero() {
		p.Leaving, p.Drain = p.front.Life.Departure(a.Now, true)
	}
	return a.Due(p.Leaving)
}

// isDenied reports whether the client may not read on. It may read a call that it cannot come back for to its end.
func (p *reply) isDenied() bool {
	return p.Rights != nil && streaming.Denial(p.Rights) != nil && (p.x.IsListen() || p.resumes && p.opened)
}

// Finished implements [Sink].
func (p *reply) Finished() {
	p.Reader.Completed(p.From, time.Now(), false, p.Connection())
}
