package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A strand is what a duplex connection hears of a session that is on another node:
// its client has resumed a call there by its token, or made it again under its key,
// or a session that was here has left. The request is sent where the session is, as
// one that came over Streamable HTTP, and what answers it is woven into the
// connection. When that node is lost it is gone on with as any such answer is.
//
// As an [http.ResponseWriter] it takes the answer.
type strand struct {
	kept
	d     *duplex
	about *asked
	msgs  []jsonrpc.Message
	batch bool
	at    *session.Remote // where the session was just now, if that is known
	again bool            // the call may be on record there
	ctx   context.Context
	stop  context.CancelFunc

	left     int  // how many of the requests were not answered
	answered bool // none
	taken    bool // another connection has taken the stream over
	moved    bool // the session has left the node whose door answered here
	mute     bool // nothing more is to be said; guarded by duplex.mu
}

// far goes on with messages whose session is on another node.
func (d *duplex) far(s *strand) {
	s.d, s.left = d, len(s.about.ids)
	s.about.strand = s
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	if d.afar == nil {
		d.afar, d.part = context.WithCancel(d.values)
	}
	s.ctx, s.stop = context.WithCancel(d.afar)
	if !d.h.peers.begin() {
		d.kicked = true // this node ends
		d.mu.Unlock()
		session.Wake(d.ready)
		return
	}
	d.strands++
	d.roamed = true
	d.hold(s.about)
	d.mu.Unlock()
	go func() {
		defer d.h.peers.work.Done()
		s.over(s.read())
	}()
}

// read has the request answered, and returns when it is, or why it was not.
func (s *strand) read() (err error) {
	d := s.d
	defer panics.Catch(&err, d.h.logger, "a connection's request to another node", "")
	e := errand{
		key: s.about.key, at: s.at, as: true, msgs: s.msgs, batch: s.batch, again: s.again,
		who: &d.principal, keyed: true, stays: true,
	}
	rl := d.h.newRelay(s, askFor(d.request()).WithContext(s.ctx), &e)
	here, err := rl.run()
	switch {
	case here != nil:
		return errHere
	case !errors.Is(err, errAnswered):
		return err
	case rl.gaveUp != nil:
		return rl.gaveUp
	case !isEvents(s.head):
		text, err := s.answer()
		if err == nil && text == nil && s.status == http.StatusNoContent {
			err = errSaid
		}
		if err == nil && text != nil {
			s.say(text, true)
		}
		return err
	case s.moved:
		return session.ErrMoved
	case s.answered, s.taken, rl.out != nil && rl.out.taken:
		return nil
	}
	return stream.ErrTrimmed // or else its end would have come
}

// follows says whether the connection goes on with what was asked here in its own
// session after that has left: its client can't come back where the session is.
func (d *duplex) follows() bool { return !d.returns && d.h.peers != nil }

// madeAgain says whether a light call was not answered, as its session has left, and
// is made again where that is: by a client that comes back there, or else from here.
func (d *duplex) madeAgain(call *session.Call, of *asked, batch bool) bool {
	switch {
	case !d.returns && !d.follows() || !call.Retriable():
		return false
	case d.follows():
		d.makeAgain(of.msgs, batch)
	}
	return true
}

// makeAgain makes requests of the connection's own session where that is now. They
// did not begin here, or may be made again.
func (d *duplex) makeAgain(msgs []jsonrpc.Message, batch bool) {
	about := &asked{key: d.s.Key()}
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			about.ids = append(about.ids, msgs[i].ID)
		}
	}
	d.far(&strand{about: about, msgs: msgs, batch: batch, again: true})
}

// errHere says that the session has come here meanwhile.
var errHere = errors.New("the session has come to this node")

// errSaid answers those who resume a call that they have heard to its end.
var errSaid = errf(codeInvalid, "all was said before this, the response too")

// over ends the strand, and tells the client why if it must.
func (s *strand) over(err error) {
	d := s.d
	d.mu.Lock()
	d.release(s.about)
	d.mu.Unlock()
	switch {
	case s.ctx.Err() != nil, err == nil: // or else it was silenced, or the connection has ended
	case errors.Is(err, errHere):
		d.anew(s)
	default:
		s.fail(err)
	}
	s.stop()
	d.mu.Lock()
	d.strands--
	d.mu.Unlock()
	session.Wake(d.ready)
}

// fail tells the client that it will hear no more, or has it come back for it.
func (s *strand) fail(err error) {
	d := s.d
	if errors.Is(err, session.ErrNotFound) {
		err = session.ErrGone
		if s.msgs[0].Method == methodResume {
			err = session.ErrBadToken
		}
	}
	if status, _ := d.h.explain(err); status == http.StatusServiceUnavailable && d.returns && d.resumes() {
		d.mu.Lock()
		d.kicked = true
		d.mu.Unlock()
		return
	}
	if text := d.refuse(nil, s.about.ids, err); len(text) > 0 {
		d.put(arrival{text: text[:len(text)-1], of: s})
	}
}

// anew takes messages up again whose session has come here.
func (d *duplex) anew(s *strand) {
	d.begin(slices.Clone(s.msgs), s.batch)
}

// say says something to the client. done says that it is, or has, the last answer.
func (s *strand) say(text []byte, done bool) {
	if done {
		s.answered = true
		s.d.mu.Lock()
		s.d.release(s.about) // before the client knows
		s.d.mu.Unlock()
	}
	s.d.put(arrival{text: text, of: s})
}

// Write implements [http.ResponseWriter]. Of a stream it is given whole events.
func (s *strand) Write(text []byte) (int, error) {
	if !isEvents(s.head) {
		return s.kept.Write(text)
	}
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	var lines []byte
	done := false
	ids := s.d.tags()
	for rd := sse.NewReader(bytes.NewReader(text), len(text)+1); ; {
		ev, err := rd.Next()
		if err != nil {
			break
		}
		if len(ev.Data) == 0 {
			continue
		}
		done = s.answers(ev.Data) || done
		var id []byte
		if ids {
			id = jsonrpc.Quote(ev.ID)
		}
		lines = appendTagged(lines, id, ev.Data)
	}
	if len(lines) > 0 {
		s.say(lines[:len(lines)-1], done)
	}
	return len(text), nil
}

// answers says whether a message answers the last of the requests.
func (s *strand) answers(data []byte) bool {
	id := jsonrpc.Field(data, "id")
	if id == nil || jsonrpc.Field(data, "method") != nil {
		return false
	}
	for _, mine := range s.about.ids {
		if string(jsonrpc.Key(mine)) == string(jsonrpc.Key(id)) {
			s.left--
			return s.left == 0
		}
	}
	return false
}

// Flush and the deadlines are there for [http.ResponseController]: what is said
// waits for room on the client's connection, which has deadlines of its own.
func (s *strand) Flush() {}

// SetReadDeadline is one of them.
func (s *strand) SetReadDeadline(time.Time) error { return nil }

// leads has a stream go on whose session has left this node: as a strand, where its
// request can be resumed. It is false where the connection ends with the session.
func (d *duplex) leads(src *source) bool {
	of := src.about
	switch {
	case d.h.peers == nil, (of == nil || of.session == d.s) && !d.follows():
		return false
	case of == nil:
		d.lose() // the rest is for the session's next client
		return true
	}
	src.ended, src.told = true, true // here
	d.mu.Lock()
	other := d.foreign[string(jsonrpc.Key(of.ids[0]))]
	d.mu.Unlock()
	if other != nil && other.strand != nil {
		return true // its client has resumed it again
	}
	token, ok := of.session.Token(src.Cursor().Stream.Number, of.ids[0])
	if !ok {
		d.last = d.refuse(d.last, of.ids, errf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", session.ErrMoved))
		return true
	}
	params := jsonrpc.Object("resumeToken", token)
	if at := src.Cursor(); at.Seq > 0 {
		id := session.AppendEventID(nil, of.session.StreamName(at.Stream.Number), at.Epoch, at.Seq)
		params, _ = jsonrpc.Set(params, jsonrpc.Quote(string(id)), "_meta", protocol.MetaLastEventID)
	}
	raw := jsonrpc.AppendRequest(nil, of.ids[0], methodResume, params)
	m := jsonrpc.Message{Kind: jsonrpc.Request, ID: of.ids[0], Method: methodResume, Params: params, Raw: raw}
	d.far(&strand{about: &asked{key: of.key, ids: of.ids}, msgs: []jsonrpc.Message{m}})
	return true
}
