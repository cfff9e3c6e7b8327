package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// listen takes what comes in, one message after the other, until nothing more
// does. gone is told why, unless the client may still read.
func (d *duplex) listen(gone context.CancelCauseFunc) {
	for {
		data, err := d.pipe.read()
		var left *jsonrpc.Error
		switch {
		case errors.As(err, &left):
			d.say(jsonrpc.AppendError(nil, nil, left))
		case errors.Is(err, io.EOF):
			d.mu.Lock()
			d.finished = true
			d.mu.Unlock()
			session.Wake(d.ready)
			return
		case err != nil:
			gone(err)
			return
		case !d.take(data):
			return
		}
	}
}

// take takes what came as one: a message, or in old revisions a batch. It is false
// when the connection is over.
func (d *duplex) take(data []byte) bool {
	d.mu.Lock()
	closed := d.closed
	d.taking = !closed
	d.mu.Unlock()
	if closed {
		return false // whoever sent it was told that nobody listens
	}
	defer d.taken()
	d.s.Touch()
	msgs, batch, err := jsonrpc.ParseBody(data)
	switch {
	case errors.Is(err, jsonrpc.ErrParse):
		d.say(jsonrpc.AppendError(nil, nil, errf(jsonrpc.CodeParse, "%v", err)))
		return true
	case err != nil:
		d.say(jsonrpc.AppendError(nil, nil, errf(codeInvalid, "%v", err)))
		return true
	}
	if err := d.fits(msgs, batch); err != nil {
		d.fail(msgs, err)
		return true
	}
	d.begin(msgs, batch)
	return true
}

// begin handles messages, whose array it uses. If code of the user panics they fail, and
// the connection goes on.
func (d *duplex) begin(msgs []jsonrpc.Message, batch bool) {
	var err error
	calls := msgs[:0]
	defer func() {
		if err != nil {
			d.fail(calls, err)
		}
	}()
	defer panics.Catch(&err, d.h.logger, "a connection's request", "")
	for i := range msgs {
		calls = append(calls, msgs[i]) // until it is handled
		if last := len(calls) - 1; d.handle(&calls[last]) {
			calls = calls[:last]
		}
	}
	if len(calls) > 0 {
		d.call(calls, batch)
	}
}

// taken notes that what came in was handled.
func (d *duplex) taken() {
	d.mu.Lock()
	waits := d.waits
	d.taking, d.waits = false, false
	d.mu.Unlock()
	if waits {
		session.Wake(d.ready)
	}
}

// fits says what only the session's state can tell against the messages.
func (d *duplex) fits(msgs []jsonrpc.Message, batch bool) error {
	at := stageOf(d.s)
	if at == stageNew && !initializes(msgs) && !slices.ContainsFunc(msgs, func(m jsonrpc.Message) bool { return !d.roams(&m) }) {
		at = stageNone
	}
	return checkMessages(msgs, batch, at, d.s.Revision())
}

// roams says whether a message says itself which session it is for, so that it needs
// none to come in: a token is enough.
func (d *duplex) roams(m *jsonrpc.Message) bool {
	switch m.Kind {
	case jsonrpc.Request:
		return d.h.ours(m)
	case jsonrpc.Response:
		return true
	}
	return session.Cancels(m)
}

// handle does what is asked of Holdfast itself, and hands over what is no request.
// It is false for a request that makes a call.
func (d *duplex) handle(m *jsonrpc.Message) bool {
	switch {
	case m.Kind != jsonrpc.Request:
		d.send(*m)
	case !d.h.ours(m):
		return false
	case m.Method == methodResume:
		s, at, err := d.h.resumption(d.values, d.principal, m, "")
		if err != nil {
			d.elsewhere([]jsonrpc.Message{*m}, false, err)
			break
		}
		if d.clashes(s.Key(), m.ID) {
			d.fail([]jsonrpc.Message{*m}, errClash)
			break
		}
		d.attach(s, at, m)
	default:
		answer, err := d.status(m)
		if err != nil {
			d.fail([]jsonrpc.Message{*m}, err)
			break
		}
		d.say(answer)
	}
	return true
}

// errClash refuses what its client could not tell from what is in flight already.
var errClash = errf(codeInvalid, "a request of another session with this id is in flight on this connection: resume it on another")

// elsewhere fails a request with an error, unless that says that the call which it
// asks for is in a session on another node, or to be begun there: then it is.
func (d *duplex) elsewhere(msgs []jsonrpc.Message, batch bool, err error) {
	var away *session.Redirect
	switch {
	case errors.Is(err, session.ErrMoved) && d.follows():
		d.makeAgain(msgs, batch)
	case d.h.peers == nil || !errors.As(err, &away):
		d.fail(msgs, err)
	case away.Key == d.s.Key() && !d.follows():
		d.fail(msgs, session.ErrMoved)
	case d.clashes(away.Key, msgs[0].ID):
		d.fail(msgs, errClash)
	default:
		about := &asked{key: away.Key, ids: [][]byte{bytes.Clone(msgs[0].ID)}}
		d.far(&strand{about: about, msgs: msgs, at: away.Remote})
	}
}

// status is the answer to requests/getStatus, or requests/getStatus/all.
func (d *duplex) status(m *jsonrpc.Message) (answer []byte, err error) {
	var more []session.ResumableRequest
	var in session.Range
	if d.h.peers != nil && m.Method == protocol.MethodStatusAll && d.principal != "" {
		if more, in, err = d.h.everywhere(d.request(), d.principal, m); err != nil {
			return nil, err
		}
	}
	var result []byte
	answer, err = d.h.carry(d.request(), d.principal, m, func() (err error) {
		result, err = d.h.status(d.values, d.principal, d.s, m, more, in)
		return err
	})
	if err != nil || answer != nil {
		return answer, err
	}
	return jsonrpc.AppendResult(nil, m.ID, result), nil
}

// request stands for the request that began the connection.
func (d *duplex) request() *http.Request {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: d.header, Host: "localhost"}
	return r.WithContext(d.values)
}

// send hands over a notification or a response. Whose backend does not take it
// cannot be told: neither has an answer.
func (d *duplex) send(m jsonrpc.Message) {
	_, err := d.h.carry(d.request(), d.principal, &m, func() error { return d.s.Send(d.values, m, d.header) })
	if err != nil {
		d.h.logger.Warn("message not delivered", "session", d.s.Name(), "method", m.Method, "error", err)
	}
}

// call begins a call for requests. What it says comes from its stream, or, if it
// is light, from [duplex.takeUp].
func (d *duplex) call(msgs []jsonrpc.Message, batch bool) {
	key := ""
	var err error
	if len(msgs) == 1 && msgs[0].Method != "initialize" {
		key, err = messageKey(&msgs[0])
	}
	switch {
	case err != nil:
		d.fail(msgs, errf(codeInvalid, "%v", err))
		return
	case slices.ContainsFunc(msgs, func(m jsonrpc.Message) bool { return d.clashes(d.s.Key(), m.ID) }):
		d.fail(msgs, session.ErrDuplicate)
		return
	}
	light := key == "" && d.h.light(d.values, d.header, d.s, msgs)
	got, err := d.h.begin(d.s, msgs, light, runOnce{key: key})
	switch {
	case err != nil:
		d.elsewhere(msgs, batch, err)
		return
	case got.call == nil:
		at, _ := cursorAfter(d.values, got.session, got.number, "") // from the oldest that is kept
		d.attach(got.session, at, &msgs[0])
		return
	}
	call := got.call
	about := &asked{session: d.s, key: d.s.Key()}
	for i := range msgs {
		about.ids = append(about.ids, bytes.Clone(msgs[i].ID)) // not to hold the whole message
	}
	if d.follows() {
		about.msgs = msgs
	}
	if number := got.number; number != 0 {
		about.msgs = nil
		// Read before it runs, as a client that made it with a POST is told where to
		// ask for it before it runs.
		src, err := d.source(d.s, stream.Cursor{Stream: stream.ID{Number: number}}, about)
		if err != nil {
			call.Abort(msgs, errf(jsonrpc.CodeServer, "not delivered: its stream cannot be read: %v", err))
			d.fail(msgs, err)
			return
		}
		d.put(arrival{src: src})
		call.Deliver(d.values, msgs, d.header)
		return
	}
	began := time.Now()
	call.Deliver(d.values, msgs, d.header)
	if answers, done, _ := call.Answers(); done {
		switch {
		case d.madeAgain(call, about, batch):
		case len(answers) > 0: // else it was cancelled
			d.say(appendAnswers(nil, answers, batch))
		}
		return
	}
	call.Notify(d.ready)
	d.put(arrival{call: call, since: began, batch: batch, src: source{about: about}})
}

// attach goes on with a call that is there already, for a request.
func (d *duplex) attach(s *session.Session, at stream.Cursor, m *jsonrpc.Message) {
	about := &asked{session: s, key: s.Key(), ids: [][]byte{bytes.Clone(m.ID)}}
	src, err := d.source(s, at, about)
	if errors.Is(err, io.EOF) {
		err = errSaid
	}
	switch {
	case errors.Is(err, session.ErrMoved) && d.h.peers != nil && (s != d.s || d.follows()):
		d.far(&strand{about: &asked{key: s.Key(), ids: about.ids}, msgs: []jsonrpc.Message{*m}})
		return
	case err != nil:
		d.fail([]jsonrpc.Message{*m}, err)
		return
	}
	if s != d.s {
		d.mu.Lock()
		d.roamed = true
		d.hold(about)
		d.mu.Unlock()
	}
	d.put(arrival{src: src})
}

// hold notes that the ids of requests of another session are taken, for as long as
// these are heard of here. What was heard of them until now is no more. d.mu is held.
func (d *duplex) hold(of *asked) {
	if d.foreign == nil {
		d.foreign = make(map[string]*asked)
	}
	for _, id := range of.ids {
		key := string(jsonrpc.Key(id))
		if old := d.foreign[key]; old != nil && old.strand != nil && old != of {
			old.strand.mute = true
			old.strand.stop()
			d.room.Broadcast()
		}
		d.foreign[key] = of
	}
}

// release frees them again. d.mu is held.
func (d *duplex) release(of *asked) {
	for _, id := range of.ids {
		if key := string(jsonrpc.Key(id)); d.foreign[key] == of {
			delete(d.foreign, key)
		}
	}
}

// clashes says whether a request's id is that of one that is in flight on this
// connection, and of another session: its client could not tell them apart.
func (d *duplex) clashes(key stream.SessionKey, id []byte) bool {
	if key != d.s.Key() && d.s.InFlight(id) {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	other := d.foreign[string(jsonrpc.Key(id))]
	return other != nil && other.key != key
}

// later says that a request is not answered here, as its client asks again on the next
// connection: the node is about to end this one, with the session, or it is ended for
// that. An error would be taken for the end of the call.
func (d *duplex) later(msgs []jsonrpc.Message, err error) bool {
	if !d.returns || !d.resumes() {
		return false
	}
	// Where the store is not shared nothing goes on after the node.
	closing := errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrClosing) && d.h.sessions.Shared()
	passes := closing || errors.Is(err, stream.ErrConflict) || session.StoreErrorText(err) != ""
	for i := range msgs {
		m := &msgs[i]
		key, _ := messageKey(m)
		again := m.Method == methodResume && passes || key != "" && closing
		if m.Kind != jsonrpc.Request || !again {
			return false
		}
	}
	if !d.h.isDraining() {
		d.mu.Lock()
		d.kicked = true
		d.mu.Unlock()
		session.Wake(d.ready)
	}
	return true
}

// fail answers requests with the error that err means; to other messages, which
// have no answer, there is nothing to say.
func (d *duplex) fail(msgs []jsonrpc.Message, err error) {
	switch {
	case d.later(msgs, err):
		return
	case !errors.Is(err, session.ErrMoved):
	case d.s.Moved():
		session.Wake(d.ready) // the connection ends, and its client asks again where the session is
		return
	default:
		err = session.ErrClosing // it is about to, and takes on nothing new
	}
	var ids [][]byte
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			ids = append(ids, msgs[i].ID)
		}
	}
	if text := d.refuse(nil, ids, err); len(text) > 0 {
		d.say(text[:len(text)-1])
	}
}
