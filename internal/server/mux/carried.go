package mux

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A carried is an exchange of a [mux]: a call of any session that was made or resumed on it,
// or the standalone stream of the mux's session. It is
//
//	light      waits for its answer, without a goroutine → streamed: it has a stream now; over
//	streamed   its stream is copied from the log here    → over; forwarded, as another exchange
//	forwarded  another node serves it                    → over; light or streamed here, as another exchange
//
// The fields light, Reader and forward are each set only in the state of that line.
type carried struct {
	streaming.Copier // of its stream, with x as the sink. Its Session is nil if it is on another node
	m                *mux
	key              stream.SessionKey // of the session
	ids              [][]byte          // of the requests

	light   *lightCall
	forward *forwarded

	streaming.Parting
	quoted []byte // buffer for an event id as JSON
}

// A lightCall is a call while it is light.
type lightCall struct {
	call  *session.Call
	since time.Time
	batch bool // the answers are written as a batch
	// msgs are the requests to make again on the session's new node, if the session leaves; nil if the client makes them again.
	msgs []jsonrpc.Message
}

// newExchange returns an exchange in a session; s is nil if that is on another node.
func (m *mux) newExchange(s *session.Session, key stream.SessionKey, msgs []jsonrpc.Message) *carried {
	x := &carried{m: m, key: key}
	x.Door = m.client.door
	x.Session, x.Sink, x.Yields = s, x, true
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			x.ids = append(x.ids, bytes.Clone(msgs[i].ID)) // so as not to hold the whole message
		}
	}
	return x
}

// begin starts a goroutine that copies the exchange's stream from a cursor on. If the
// connection has ended, it starts none and returns nil.
func (x *carried) begin(at stream.Cursor) error {
	m := x.m
	x.Ready = make(chan struct{}, 1)
	if err := x.Read(m.client.values, at, m.showsIDs()); err != nil {
		return err
	}
	x.light = nil
	if !m.carry(x, x.Session != m.session(), func() bool { m.work.Go(x.serve); return true }) {
		x.detach(true)
	}
	return nil
}

// serve copies the stream to its end.
func (x *carried) serve() {
	m := x.m
	err := x.Run(m.ctx)
	switch {
	case m.ctx.Err() != nil && !x.IsDelivered(): // [mux.close] detaches the stream
		return
	case err == nil, errors.Is(err, streaming.ErrSuperseded): // the client reads the stream on another connection
	case errors.Is(err, session.ErrMoved):
		if !x.forwardRest() {
			if m.isMoved() {
				err = streaming.ErrComeBack
			}
			m.stop(err)
			return
		}
	case errors.Is(err, stream.ErrTrimmed), errors.Is(err, stream.ErrNotFound):
		m.freeIDs(x)
		m.say(m.refusal(x.ids, err))
	default:
		m.stop(err)
		return
	}
	x.detach(false)
	m.drop(x)
}

// detach ends the reading of a stream. broke says that the connection broke before the stream's end: then a client without
// tokens to resume its calls by gets the rest when it comes back with nothing but the session, as for a call by POST.
func (x *carried) detach(broke bool) {
	if x.Reader != nil {
		if broke {
			x.Reader.NoteCut()
		}
		x.Reader.Detach(broke && x.Session == x.m.session() && x.Session.Resumes() == nil, false, false)
		x.Reader = nil
	}
}

// Append implements [Sink].
func (x *carried) Append(text, id, data []byte) []byte {
	if len(id) > 0 {
		if !x.m.showsIDs() {
			return appendTagged(text, nil, data)
		}
		x.quoted = append(append(append(x.quoted[:0], '"'), id...), '"')
		id = x.quoted
	}
	return appendTagged(text, id, data)
}

// appendTagged appends a message and a line feed. It puts the id of the event, in JSON, into the params of a request or notification.
func appendTagged(text, id, data []byte) []byte {
	if len(id) > 0 && jsonrpc.Field(data, "method") != nil {
		data, _ = jsonrpc.Set(data, id, "params", "_meta", protocol.MetaEventID)
	}
	return append(append(text, data...), '\n')
}

// Write implements [Sink]. The ids of a call are freed before the client gets its last message.
func (x *carried) Write(lines []byte, last bool) error {
	if last {
		x.m.freeIDs(x)
	}
	if len(lines) == 0 {
		return nil
	}
	if err := x.m.client.mayHear(); err != nil {
		return err
	}
	return x.m.out.write(lines)
}

// Finished implements [Sink]: a client that resumes sends its last event id.
func (x *carried) Finished() {}

// Idle implements [Sink].
func (x *carried) Idle(context.Context, time.Time) (time.Time, error) {
	if x.News(x.Reader) {
		reading.Wake(x.m.ready)
	}
	return time.Time{}, nil
}

// clashes reports whether a request of another session with the same id is in
// flight on this connection: the client could not tell the answers apart.
func (m *mux) clashes(key stream.SessionKey, id []byte) bool {
	if s := m.session(); s != nil && key != m.key && s.CallFrom("", id) != nil {
		return true
	}
	return m.isTaken(key, id)
}

// refusal returns, for each request, an error response that explains err.
func (m *mux) refusal(ids [][]byte, err error) (text []byte) {
	e, status := new(jsonrpc.Error), http.StatusBadRequest
	if !errors.As(err, &e) {
		status, e = m.front.Answers.Explain(err)
	}
	m.front.Answers.TellRefused(nil, status, err)
	for _, id := range ids {
		text = append(jsonrpc.AppendError(text, id, e), '\n')
	}
	return text
}

// answerLights writes the queued answers and those of light calls. more says that answers are left for the next turn.
func (m *mux) answerLights() (more bool, err error) {
	if d := m.takeEarly(); d != nil { // before the queue, in which are all calls that came before
		m.early = append(m.early, d)
	}
	defer m.endEarly()
	texts, lights := m.queue.take()
	m.lights = append(m.lights, lights...)
	if len(texts) == 0 && len(m.lights) == 0 {
		return false, nil
	}
	p := streaming.TakePage()
	text := p.Text[:0]
	for _, answer := range texts {
		text = append(append(text, answer...), '\n')
	}
	waiting, written := m.lights[:0], []*session.Call(nil)
	for _, x := range m.lights {
		if len(text) >= streaming.MostText {
			waiting, more = append(waiting, x), true
			continue
		}
		var waits bool
		before, call := len(text), x.light.call
		switch text, waits = x.answerLight(text); {
		case waits:
			waiting = append(waiting, x)
		case len(text)-before > budget.Uncounted: // a long answer is counted until it is written
			written = append(written, call)
		default:
			call.Answered()
		}
	}
	clear(m.lights[len(waiting):])
	if m.lights = waiting; len(waiting) == 0 {
		m.lights = nil
	}
	if len(text) > 0 {
		err = m.out.write(text)
	}
	p.Release(text)
	for _, call := range written {
		call.Answered()
	}
	return more, err
}

// endEarly lets cancellations go on that have waited for light calls, if none waits for its answer any more: those that are made again are
// on their way.
func (m *mux) endEarly() {
	if len(m.lights) > 0 {
		return
	}
	for _, d := range m.early {
		d.end()
	}
	m.early = nil
}

// answerLight appends the answers of a light call to text, or begins to copy its
// stream if it has become a stored call. waits says that it has no answer yet.
func (x *carried) answerLight(text []byte) (_ []byte, waits bool) {
	answers, done, number := x.light.call.Answers()
	switch {
	case x.madeAgain():
	case number != 0:
		if err := x.begin(stream.Cursor{Stream: stream.ID{Number: number}}); err != nil {
			text = append(text, x.m.refusal(x.ids, err)...)
		}
	case !done:
		return text, true
	case len(answers) > 0: // a cancelled call has none
		text = append(answering.Append(text, answers, x.light.batch), '\n')
	}
	return text, false
}

// promoteLights promotes the calls that were light for UpgradeAfter. Their promotion wakes [mux.run].
func (m *mux) promoteLights(a *streaming.Alarm) {
	if m.front.UpgradeAfter == 0 {
		return
	}
	for _, x := range m.lights {
		if !a.Due(x.light.since.Add(m.front.UpgradeAfter)) {
			return
		}
		x.light.call.Promote()
	}
}
