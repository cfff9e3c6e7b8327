package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A reply is the sink of a modern request's stream.
type reply struct {
	*events
	x     *exchange
	began time.Time

	early   Feature        // which may answer before the call has ended; nil: none
	after   time.Duration  // how old the call is then
	resumes bool           // its client can come back for the call, and gets event ids
	listen  modern.Listen  // what a feature tells; nil: nothing
	acked   bool           // the client knows of what it hears, where a feature tells something
	goesOn  bool           // the call goes on when its client leaves
	opened  bool           // the stream of events has begun
	final   []byte         // the response, as the client gets it; nil until it has come
	asked   []modern.Input // what the backend has asked, and the client has not answered
	ends    func() []byte  // makes the response that ends the reply before its call, once that is due; nil: it goes on
}

// Why a reply ends before its call.
var errReplied = errors.New("the request was answered, and its call goes on")

// newReply prepares the reply to a modern request.
func (h *Handler) newReply(w http.ResponseWriter, x *exchange, s *session.Session, call *session.Call) *reply {
	p := &reply{events: h.newConn(w, x, s), x: x, began: time.Now()}
	p.primes, p.sink, p.call = false, p, call
	p.resumes = x.modern.resumes
	p.early, p.after = h.features.first(&x.modern.Request)
	return p
}

// json answers with one message.
func (p *reply) json(message []byte) { p.h.writeModern(p.w, p.x, message) }

// answer copies a stream from a place in it to the client, until the response. An error says
// that nothing was answered.
func (p *reply) answer(ctx context.Context, number, seq uint64) error {
	if p.r == nil {
		if err := p.copier.read(ctx, stream.Cursor{Stream: stream.ID{Number: number}, Seq: seq}, p.resumes); err != nil {
			switch {
			case p.call == nil:
			case ctx.Err() != nil:
				p.h.cuts.cut(p.x, p.call)
			default:
				p.call.Withdraw("its stream cannot be read")
			}
			return err
		}
	}
	defer p.watchRights(ctx)()
	err := p.run(ctx)
	for errors.Is(err, errReplied) {
		if response := p.ends(); response != nil {
			err = p.end(response)
		} else {
			err = p.run(ctx)
		}
	}
	p.left(err)
	if errors.Is(err, session.ErrMoved) || errors.Is(err, stream.ErrTrimmed) {
		// The client cannot come back for it.
		err = p.end(answering.Error(p.x.modern.ID, errf(protocol.CodeOutcomeUnknown, "%v: %v", placement.ErrUnknown, err)))
	}
	p.close(err)
	return nil
}

// left cancels the call if its client has left before it was answered, unless the client can
// come back for it.
func (p *reply) left(err error) {
	if err == nil || p.state >= last || errors.Is(err, errSuperseded) || errors.Is(err, session.ErrMoved) || p.goesOn {
		return
	}
	c := p.s.CallAt(p.r.Cursor().Stream.Number)
	switch {
	case c == nil || c.Keyed() || !p.r.LeavesLast():
	case p.resumes && p.opened:
		c.AwaitReturn(p.h.sessions.Resumes().InputWait(), "its client did not come back in time")
	default:
		p.h.cuts.cut(p.x, c)
	}
}

// end answers with a response that is not the call's own.
func (p *reply) end(response []byte) error {
	if !p.opened {
		p.json(response)
		return nil
	}
	return p.flush(sse.AppendMessage(nil, nil, response), true)
}

// append implements [sink].
func (p *reply) append(text, eventID, data []byte) []byte {
	method, id := jsonrpc.Field(data, "method"), jsonrpc.Field(data, "id")
	switch {
	case method == nil:
		p.final = p.x.own(data)
		return text
	case id != nil:
		p.asked = append(p.asked, modern.Input{ID: id, Message: data})
		return text
	case p.withdrawn(jsonrpc.String(method), data):
		return text
	case p.x.isListen():
		data = p.x.subscribed(data, "params")
		if p.listen != nil && jsonrpc.String(method) == protocol.MethodAcknowledged {
			p.acked, data = true, p.listen.Filter(data)
		}
	}
	return sse.AppendMessage(text, eventID, data)
}

// withdrawn takes in that the backend does not wait for a response any more, and reports
// whether a notification says so.
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

// write implements [sink].
func (p *reply) write(text []byte, last bool) error {
	if last && p.final == nil && p.resumes { // it was cancelled, maybe from elsewhere
		p.final = answering.Error(p.x.modern.ID, answering.ErrCancelled)
	}
	if p.x.form == answering.OnlyJSON { // it takes the response alone
		text = text[:0]
	}
	switch {
	case last && !p.opened && p.call != nil && p.call.Refusal() != nil:
		p.h.failModern(p.w, p.x, p.call.Refusal())
	case last && !p.opened && len(text) == 0:
		if p.final == nil {
			p.final = answering.Error(p.x.modern.ID, answering.ErrCancelled)
		}
		p.json(p.final)
	case last && p.final != nil:
		text = sse.AppendMessage(text, nil, p.final)
		fallthrough
	case len(text) > 0 || last:
		if err := p.say(text, last); err != nil {
			return err
		}
	}
	if last && p.gone() {
		return errLeft
	}
	return nil
}

// say writes events.
func (p *reply) say(text []byte, last bool) error {
	if p.opened {
		return p.flush(text, last)
	}
	if p.resumes && p.r.Cursor().Stream.Number != 0 {
		text = append(p.policy(), text...)
	}
	p.opened = true
	if p.resumes && p.via.isForwarded() {
		p.w.Header()[placement.HeaderReturns] = []string{"1"}
	}
	return p.openTo(text, last)
}

// idle implements [sink].
func (p *reply) idle(_ context.Context, now time.Time) (time.Time, error) {
	a := alarm{now: now}
	switch {
	case p.isDenied():
		return a.next, errComeBack // and its client makes the request again, or comes back for its call
	case p.waits(&a) || p.isEarly(&a):
		return a.next, errReplied
	case p.x.isListen() && p.drained(&a):
		if p.h.life.IsAlone() {
			p.ends = func() []byte { return p.endListen("the server is shutting down") }
			return a.next, errReplied
		}
		return a.next, errComeBack // at another node: an end would say that there is none
	}
	if p.listen != nil {
		ended, err := p.tellNews()
		if err != nil {
			return a.next, err
		}
		if ended != "" {
			p.ends = func() []byte { return p.endListen(ended) }
			return a.next, errReplied
		}
	}
	if p.x.form == answering.OnlyJSON {
		return a.next, nil
	}
	if after := p.h.cuts.opensAfter(); !p.opened && (after > 0 || p.resumes) {
		if !p.resumes && !a.due(p.began.Add(after)) { // who resumes is to know at once that it goes on
			return a.next, nil
		}
		if err := p.say(nil, false); err != nil {
			return a.next, err
		}
	}
	return a.next, p.keepAlive(&a)
}

// isEarly reports whether a feature is to answer the request now, before its call has ended.
func (p *reply) isEarly(a *alarm) bool {
	if p.early == nil || !a.due(p.began.Add(p.after)) {
		return false
	}
	p.ends = p.answerEarly
	return true
}

// answerEarly has a feature make the response, and the call go on; nil: the feature can't.
func (p *reply) answerEarly() []byte {
	f := p.early
	p.early = nil
	if p.x.r.Context().Err() != nil { // nobody would learn of it, and the call is cancelled
		return nil
	}
	result := f.Answer(&p.x.modern.Request, &p.x.msgs[0], p.s, p.r.Cursor().Stream.Number)
	if result == nil {
		return nil
	}
	p.goesOn = true
	return jsonrpc.AppendResult(nil, p.x.modern.ID, result)
}

// tellNews tells the client what a feature has for its listen. ended says why the listen ends; "": there may be more.
func (p *reply) tellNews() (ended string, err error) {
	var text []byte
	if p.listen.Alone() && !p.acked {
		p.acked = true
		ack := []byte(`{"jsonrpc":"2.0","method":"` + protocol.MethodAcknowledged + `","params":{"notifications":{}}}`)
		text = sse.AppendMessage(text, nil, p.listen.Filter(p.x.subscribed(ack, "params")))
	}
	if !p.acked {
		return "", nil
	}
	news, ended := p.listen.News()
	for _, message := range news {
		text = sse.AppendMessage(text, nil, message)
	}
	if len(text) > 0 {
		err = p.say(text, false)
	}
	return ended, err
}

// endListen ends a listen, for a reason.
func (p *reply) endListen(why string) []byte {
	if c := p.s.CallAt(p.r.Cursor().Stream.Number); c != nil {
		c.Withdraw(why)
	}
	return modern.ListenEnded(p.x.modern.ID)
}

// listenModern serves a listen on which a feature tells something.
func (h *Handler) listenModern(w http.ResponseWriter, x *exchange, l modern.Listen) error {
	id := x.session.NextID()
	x.msgs[0].Raw = x.msgs[0].WithID(id)
	x.msgs[0].ID = id
	b, err := h.starter.beginModern(x, h.starter.origin(x))
	if err != nil {
		return err
	}
	began := time.Now()
	b.call.Promote()
	if !l.Alone() {
		b.deliver(x.values(), x.msgs, x.r.Header)
	}
	p := h.newReply(w, x, b.session, b.call)
	p.began, p.listen = began, l
	l.Watch(x.values(), p.ready)
	defer l.Close()
	return p.answer(x.r.Context(), b.call.Number(), 0)
}

// drained reports whether a listen is to end because the node is drained.
func (p *reply) drained(a *alarm) bool {
	if p.leaving.IsZero() {
		p.leaving, p.drain = p.h.life.Departure(a.now)
	}
	return a.due(p.leaving)
}

// isDenied reports whether the client may not go on reading. A call that it cannot come back for goes on to its end.
func (p *reply) isDenied() bool {
	return p.rights != nil && denial(p.rights) != nil && (p.x.isListen() || p.resumes && p.opened)
}

// finished implements [sink].
func (p *reply) finished() {
	p.r.Completed(p.from, time.Now(), false, p.connection())
}
