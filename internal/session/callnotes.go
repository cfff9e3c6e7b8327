package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"holdfast/internal/feature/idempotency"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/spans"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A note is a text about a call or a session that a shared store keeps beside the stream, for the node that
// takes the session over. docs/decisions/0014-take-over.md says how that node uses it.

// A callNote is the note of a call, as JSON. The code that a part of it belongs to writes that part, and applies it to a call that was taken over.
type callNote struct {
	recoveryNote
	inheritanceNote
	idempotency.Note
	news
	Guest  stream.SessionKey `json:"guest"` // see [record]
	Direct bool              `json:"here"`  // the client was connected to the node of the session, and may make the call again
	Spans  []*spans.Note     `json:"spans"` // of the requests; none if there are no traces
}

// appendNote appends the call's note. c.mu is held.
func (c *Call) appendNote(dst []byte) []byte {
	dst = append(dst, `{"safe":`...)
	dst = strconv.AppendBool(dst, c.recovery.isSafe())
	if c.recovery.state == recoveryLeft {
		dst = append(dst, `,"unsent":true`...)
	}
	if r := c.record; r != nil {
		dst = r.key.AppendNote(dst)
		if d := c.deferred(); d != nil {
			dst = d.AppendNote(dst)
		}
		if r.guest != "" {
			dst = append(append(dst, `,"guest":`...), jsonrpc.Quote(string(r.guest))...)
		}
		switch i := r.inherits; {
		case i == nil:
		case i.isHeir:
			dst = strconv.AppendUint(append(dst, `,"of":`...), i.from, 10)
		default:
			dst = strconv.AppendInt(append(dst, `,"began":`...), i.began.UnixMilli(), 10)
		}
	}
	if c.s.modern == "" && c.standing.IsNear() {
		dst = append(dst, `,"here":true`...)
	}
	n := news{c.s.streams.TakeRead(), c.s.untold.News()}
	dst = append(spans.AppendNote(n.append(dst), c.watch, c.recovery.msgs), `,"requests":[`...)
	from := len(dst)
	for m := range protocol.Requests(c.recovery.msgs) {
		dst = append(append(dst, ","[:min(len(dst)-from, 1)]...), m.Raw...) // as it came: a key's sum is of these bytes
	}
	return append(dst, "]}"...)
}

// A sessionNote is the note of a session.
type sessionNote struct {
	news
	Revision   string          `json:"revision"`
	Delivered  uint64          `json:"told"` // how far its client was told the standalone stream, at the least
	Safe       []string        `json:"safe"` // tools that may be called again
	Left       bool            `json:"left"` // see [usage]
	Settings   sleepNote       `json:"set"`  // of its client, without a revision
	Initialize json.RawMessage `json:"initialize"`
}

// apply restores a session, which no other goroutine knows yet, from its note, as far as that can be read. said is how many entries the standalone stream has.
func (n *sessionNote) apply(s *Session, note []byte, said uint64) (err error) {
	if len(note) > 0 {
		err = json.Unmarshal(note, n)
	}
	s.standalone.said = said
	s.standalone.track.Resume(said)
	s.noted = min(n.Delivered, said)
	s.standalone.pace.Reach(&s.m.pace, s.noted, said)
	s.use.left.Store(n.Left)
	s.rung = n.Notified
	if n.Initialize == nil {
		return err
	}
	m, bad := jsonrpc.Parse(n.Initialize)
	if bad != nil {
		return bad
	}
	s.offers.Store(offers(s.m, func(f Service) bool { return string(jsonrpc.Field(note, f.Member())) == "true" }))
	s.Tools.Restore(n.Safe)
	if s.events.areTold() {
		s.events.tools(s.Tools.Names())
	}
	s.takeInitialize(m.Raw, m.Params)
	n.Settings.apply(s)
	s.revision, s.backend.initialized = n.Revision, true
	return err
}

// news are the members of any note about calls that have ended since the note before.
type news struct {
	Read     []uint64 `json:"read"` // streams that were read to their end
	Notified []uint64 `json:"rung"` // streams of calls with outcomes that webhooks were told
}

// append appends the members of the note.
func (n *news) append(dst []byte) []byte {
	return appendNumbers(appendNumbers(dst, `,"read":`, n.Read), `,"rung":`, n.Notified)
}

// mostNews bounds how many streams a note names.
const mostNews = 256

// appendNumbers appends a member of a note, unless it would be empty.
func appendNumbers(dst []byte, name string, numbers []uint64) []byte {
	if len(numbers) == 0 {
		return dst
	}
	dst = append(dst, name...)
	for i, number := range numbers {
		dst = strconv.AppendUint(append(dst, "[,"[min(i, 1)]), number, 10)
	}
	return append(dst, ']')
}

// note queues the call's note. c.mu is held; the log must be flushed after.
func (c *Call) note(number uint64) {
	k := c.recovery
	if k == nil {
		return
	}
	c.queueNote(number, k.stored)
	k.noted = true
	k.release()
}

// queueNote queues a note of the call. c.mu is held.
func (c *Call) queueNote(number uint64, done chan struct{}) {
	c.s.log.Queue(entry{By: c, Number: number, Data: c.appendNote(nil), Note: true, Done: done})
}

// noteBegun tells the store that the requests of a call, which an owner left before
// any backend had them, are about to be made: if this node is lost too, the next owner
// does not make them. The error is that of [Call.awaitNote], or [ErrMoved].
func (c *Call) noteBegun(msgs []jsonrpc.Message) error {
	c.mu.Lock()
	k := c.recovery
	if k.state == recoveryLeft || c.IsOver() {
		c.mu.Unlock()
		return ErrMoved // this node has left it too
	}
	k.msgs, k.stored = msgs, make(chan struct{})
	c.note(c.number)
	c.mu.Unlock()
	c.s.flushInBackground()
	if err := c.awaitNote(); err != nil {
		return err
	}
	return c.s.m.sync() // else a loss of power brings back the older note, by which the next owner makes them
}

// prepareRecovery makes the recovery of a call that is about to begin, from which its note is written. The
// error is a panic of Options.Safe.
func (s *Session) prepareRecovery(c *Call, msgs []jsonrpc.Message, light bool) (err error) {
	defer panics.Catch(&err, s.m.logger, "", "")
	c.recovery = &recovery{msgs: msgs}
	switch {
	case tools.Repeatable(msgs, func(m *jsonrpc.Message) bool { return s.Tools.Repeatable(s.m.work.Context(), m, nil) }):
		c.recovery.retry = retryAllowed
	case !s.Tools.IsComplete() && tools.Repeatable(msgs, func(*jsonrpc.Message) bool { return true }): // it depends on the tools
		c.recovery.retry = retryUnlisted
	}
	if !light || s.single {
		c.recovery.stored = make(chan struct{})
	}
	return nil
}

// flushInBackground appends the queued entries, on a goroutine of its own: the caller does not wait for the store.
func (s *Session) flushInBackground() {
	if !s.m.work.Go(s.log.Flush) {
		s.log.Flush()
	}
}

// awaitNote waits until the store has the call's note, or has refused it: the error is the store's. If the store does neither in time, the call does not begin.
func (c *Call) awaitNote() error {
	late, err := c.recovery.awaitNote(c.recovery.stored)
	if err == nil && c.record != nil && c.record.key.IsClients() {
		return c.s.m.sync() // the client makes the call again on any node, and there it must be known
	}
	if !late {
		return err
	}
	c.mu.Lock()
	number := c.number
	if journal := c.recovery.journal; journal != 0 {
		number = journal
	}
	c.s.log.Queue(entry{By: c, Number: number, Data: []byte("{}"), Note: true})
	c.appendJournal("", true)
	c.mu.Unlock()
	return fmt.Errorf("call not noted: %w", err)
}

// A syncer is a store that can wait until all entries that it has acknowledged
// survive a loss of power (package stream).
type syncer interface {
	Sync(ctx context.Context) error
}

// sync waits until all entries that the store has acknowledged survive a loss of power, if the store is a [syncer].
func (m *Manager) sync() error {
	store, ok := m.store.(syncer)
	if !ok {
		return nil
	}
	ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
	defer stop()
	return store.Sync(ctx)
}

// noteInJournal stores the note of a call with messages that go to the standalone stream.
func (s *Session) noteInJournal(c *Call) error {
	c.mu.Lock()
	c.recovery.journal = s.streams.Add(nil)
	c.note(c.recovery.journal)
	c.mu.Unlock()
	s.flushInBackground()
	err := c.awaitNote()
	if err == nil && s.Moved() {
		err = ErrMoved
	}
	if err != nil {
		lost := s.requests.takeCall(c)
		s.events.notBegun(c, err)
		s.m.dismiss(s, int32(len(lost)))
	}
	return err
}

// appendJournal queues an entry of the call's journal: the id of a request with an
// answer on the standalone stream; last: the end of the journal. c.mu is held; the
// log must be flushed after.
func (c *Call) appendJournal(id string, last bool) {
	if !c.hasJournal() {
		return
	}
	var data []byte
	if !last {
		data = []byte(id)
	}
	c.s.log.Queue(entry{By: c, Number: c.recovery.journal, Data: data, Last: last})
}

// noteSession queues the session's own note, beside its standalone stream, if the
// note says anything new, or always. done, unless nil, is closed when it is stored.
// The log must be flushed after.
func (s *Session) noteSession(done chan struct{}, always bool) (queued bool) {
	s.mu.Lock() // held to the end: no older note may follow a newer one
	defer s.mu.Unlock()
	s.standalone.mu.Lock()
	defer s.standalone.mu.Unlock()
	n := news{s.streams.TakeRead(), s.untold.News()}
	if !always && s.noted == s.standalone.pace.Told() && len(n.Read)+len(n.Notified) == 0 {
		return false
	}
	s.noted = s.standalone.pace.Told()
	data := append([]byte(`{"revision":`), jsonrpc.Quote(s.revision)...)
	data = append(data, `,"told":`...)
	data = strconv.AppendUint(data, s.noted, 10)
	s.rung = append(s.rung, n.Notified...) // s.rung is in the note before, which this one replaces
	s.rung = s.rung[max(0, len(s.rung)-mostNews):]
	n.Notified = s.rung
	data = n.append(data)
	if names := s.Tools.Names(); len(names) > 0 {
		safe, _ := json.Marshal(names)
		data = append(append(data, `,"safe":`...), safe...)
	}
	for f := range s.offered {
		data = append(data, `,"`+f.Member()+`":true`...)
	}
	if s.use.isLeft() {
		data = append(data, `,"left":true`...)
	}
	if set := s.backend.settings.note(); set != nil {
		data = append(append(data, `,"set":`...), set...)
	}
	if s.revision != "" && s.backend.initialize != nil {
		data = append(append(data, `,"initialize":`...), s.backend.initialize...)
	}
	data = bytes.Clone(append(data, '}')) // without spare capacity: the store keeps it
	s.log.Queue(entry{By: s.standalone, Number: standalone, Data: data, Note: true, Done: done})
	return true
}

// noteStored queues the session's note as noteSession does, and waits until it is stored.
func (s *Session) noteStored(always bool) {
	done := make(chan struct{})
	if s.noteSession(done, always) {
		s.log.Flush()
		<-done
	}
}

// noteEvery is how many messages of the standalone stream the client is told before
// the session's note says so: it may be told as many again after a take-over.
const noteEvery = 64

// noteDelivered stores how far the client was told the standalone stream: every noteEvery messages, and when its reader has left.
func (s *Session) noteDelivered(left bool) {
	if s.m.shared == nil || s.single || s.Moved() {
		return // clients of a single session know event ids
	}
	s.mu.Lock()
	s.standalone.mu.Lock()
	n := s.standalone.pace.Told() - s.noted
	s.standalone.mu.Unlock()
	s.mu.Unlock()
	if n >= noteEvery || left && n > 0 {
		s.noteSession(nil, false)
		s.log.Flush()
	}
}
