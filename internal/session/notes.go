package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/panics"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A note is what a shared store keeps of a call, or of a session, beside the stream: what
// the node needs that takes the session over.
// docs/decisions/0014-take-over.md says what is done with them.

// notes are as JSON.
type callNote struct {
	idempotency.Note
	Safe     bool              `json:"safe"`
	Unsent   bool              `json:"unsent"` // its owner has left without having handed it to a backend
	Read     []uint64          `json:"read"`
	Notified []uint64          `json:"rung"`
	Began    int64             `json:"began"` // if it may be late: when it began, in milliseconds since 1970
	Guest    stream.SessionKey `json:"guest"` // see [record]
	Direct   bool              `json:"here"`  // its client was connected to the node of the session, and may make it again
	Of       uint64            `json:"of"`    // of an heir: the stream, or the journal, of the call whose request it goes on with
	Spans    []*spanNote       `json:"spans"` // of the requests; none if there are no traces
	Requests []json.RawMessage `json:"requests"`
}

type sessionNote struct {
	Revision   string          `json:"revision"`
	Delivered  uint64          `json:"told"` // of the standalone stream, at the least
	Read       []uint64        `json:"read"` // streams that were, to their end, since the last note
	Notified   []uint64        `json:"rung"` // those whose outcomes were told besides, since then
	Safe       []string        `json:"safe"` // tools that may be called again
	Left       bool            `json:"left"` // see [usage]
	Initialize json.RawMessage `json:"initialize"`
}

// mostNews bounds how many streams a note names.
const mostNews = 256

// appendNote appends the call's note. c.mu is held.
func (c *Call) appendNote(dst []byte) []byte {
	dst = append(dst, `{"safe":`...)
	dst = strconv.AppendBool(dst, c.recovery.isSafe())
	if c.recovery.state == recoveryLeft {
		dst = append(dst, `,"unsent":true`...)
	}
	if c.record != nil {
		dst = c.record.key.AppendNote(dst)
	}
	if d := c.deferred(); d != nil {
		dst = d.AppendNote(dst)
	}
	if guest := c.guestOf(); guest != "" {
		dst = append(append(dst, `,"guest":`...), jsonrpc.Quote(string(guest))...)
	}
	if c.record != nil && c.record.inherits != nil {
		if h := c.record.inherits; h.isHeir {
			dst = strconv.AppendUint(append(dst, `,"of":`...), h.from, 10)
		} else {
			dst = strconv.AppendInt(append(dst, `,"began":`...), h.began.UnixMilli(), 10)
		}
	}
	if c.s.modern == "" && c.standing.IsNear() {
		dst = append(dst, `,"here":true`...)
	}
	read, notified := c.s.streams.TakeRead(), c.s.untold.News()
	dst = appendNumbers(dst, `,"read":`, read)
	dst = appendNumbers(dst, `,"rung":`, notified)
	dst = append(c.appendSpans(dst), `,"requests":[`...)
	first := true
	for i := range c.recovery.msgs {
		if c.recovery.msgs[i].Kind != jsonrpc.Request {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, c.recovery.msgs[i].Raw...) // as it came: a key's sum is of these bytes
	}
	return append(dst, "]}"...)
}

// appendNumbers appends a member of a note, if there is anything in it.
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

// noteBegun has the store told that the requests of a call which was left without a
// backend having them are about to be made: should this node be lost too, nobody makes
// them once more. The error is that of [Call.awaitNote], or [ErrMoved].
func (c *Call) noteBegun(msgs []jsonrpc.Message) error {
	c.mu.Lock()
	k := c.recovery
	if k.state == recoveryLeft || c.isOver() {
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
	return c.s.m.sync() // or what is there says that they are to be made
}

// prepareRecovery notes what the store will have to know of a call that is about to begin. The
// error is a panic of Options.Safe.
func (s *Session) prepareRecovery(c *Call, msgs []jsonrpc.Message, light bool) (err error) {
	defer panics.Catch(&err, s.m.logger, "", "")
	c.recovery = &recovery{msgs: msgs}
	switch {
	case tools.Repeatable(msgs, func(m *jsonrpc.Message) bool { return s.Tools.Repeatable(s.m.work.Context(), m, nil) }):
		c.recovery.retry = retryAllowed
	case !s.Tools.IsComplete() && tools.Repeatable(msgs, func(*jsonrpc.Message) bool { return true }): // it is a matter of tools
		c.recovery.retry = retryUnlisted
	}
	if !light || s.single {
		c.recovery.stored = make(chan struct{})
	}
	return nil
}

// noteCall has the store told of a call that is about to begin.
func (s *Session) noteCall(c *Call) {
	c.mu.Lock()
	if c.isLight() {
		c.promote()
	}
	c.mu.Unlock()
	s.flushInBackground()
	s.Resumes().Sweep(time.Now())
}

// flushInBackground appends what is queued, on a goroutine of its own: it may take longer
// than whoever calls will wait.
func (s *Session) flushInBackground() {
	if !s.m.work.Go(s.log.Flush) {
		s.log.Flush()
	}
}

// awaitNote waits until the store has the call's note, or has refused it. It does not
// wait for as long as for what is said by calls that run: this one has not begun, and
// will not if the note comes late.
func (c *Call) awaitNote() error {
	t := time.NewTimer(storeTimeout)
	defer t.Stop()
	select {
	case <-c.recovery.stored:
		if c.recovery.failed == nil && c.record != nil && c.record.key.IsClients() {
			return c.s.m.sync() // its client makes it again, wherever it is, and it must be known
		}
		return c.recovery.failed
	case <-t.C:
	}
	c.mu.Lock()
	number := c.number
	if journal := c.recovery.journal; journal != 0 {
		number = journal
	}
	c.s.log.Queue(entry{By: c, Number: number, Data: []byte("{}"), Note: true})
	c.appendJournal("", true)
	c.mu.Unlock()
	return fmt.Errorf("call not noted: %w", stream.ErrUnavailable)
}

// A syncer is a store that can wait until what it has acknowledged survives a loss of
// power (package stream).
type syncer interface {
	Sync(ctx context.Context) error
}

// sync waits until what the store has acknowledged survives a loss of power, if the store
// is a [syncer].
func (m *Manager) sync() error {
	store, ok := m.store.(syncer)
	if !ok {
		return nil
	}
	ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
	defer stop()
	return store.Sync(ctx)
}

// noteInJournal has the store told of a call whose messages go to the standalone stream.
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
		c.observeNotBegun(err)
		s.m.dismiss(s, int32(len(lost)))
	}
	return err
}

// appendJournal queues, with the answer to a request that goes to the standalone
// stream, that it was given. c.mu is held; the log must be flushed after.
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

// noteSession queues the session's own note, beside its standalone stream, if that
// says anything new, or always. done, unless nil, is closed when it is stored. The
// log must be flushed after.
func (s *Session) noteSession(done chan struct{}, always bool) (queued bool) {
	s.mu.Lock() // held to the end: no older note may follow a newer one
	defer s.mu.Unlock()
	s.standalone.mu.Lock()
	defer s.standalone.mu.Unlock()
	read, notified := s.streams.TakeRead(), s.untold.News()
	if !always && s.noted == s.standalone.delivery.told && len(read)+len(notified) == 0 {
		return false
	}
	s.noted = s.standalone.delivery.told
	data := append([]byte(`{"revision":`), jsonrpc.Quote(s.revision)...)
	data = append(data, `,"told":`...)
	data = strconv.AppendUint(data, s.noted, 10)
	data = appendNumbers(data, `,"read":`, read)
	s.rung = append(s.rung, notified...) // which the note before has said, too: this one takes its place
	s.rung = s.rung[max(0, len(s.rung)-mostNews):]
	data = appendNumbers(data, `,"rung":`, s.rung)
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
	if s.revision != "" && s.backend.initialize != nil {
		data = append(append(data, `,"initialize":`...), s.backend.initialize...)
	}
	data = bytes.Clone(append(data, '}')) // no larger than it is: the store keeps it
	s.log.Queue(entry{By: s.standalone, Number: standalone, Data: data, Note: true, Done: done})
	return true
}

// noteStored has the session's note stored, if that says anything new, or always,
// and waits for it.
func (s *Session) noteStored(always bool) {
	done := make(chan struct{})
	if s.noteSession(done, always) {
		s.log.Flush()
		<-done
	}
}

// toldOften is how many messages of the standalone stream are told before the
// store is: as many may be told again after a take-over.
const noteEvery = 64

// noteDelivered has the store told how far the standalone stream was told, where that is
// due, or left says that its reader leaves.
func (s *Session) noteDelivered(left bool) {
	if s.m.shared == nil || s.single || s.Moved() {
		return // of a single session, clients know event ids
	}
	s.mu.Lock()
	s.standalone.mu.Lock()
	n := s.standalone.delivery.told - s.noted
	s.standalone.mu.Unlock()
	s.mu.Unlock()
	if n >= noteEvery || left && n > 0 {
		s.noteSession(nil, false)
		s.log.Flush()
	}
}

// parseNote reads a call's note. Without a note, or with one that can't be read,
// nothing is known.
func parseNote(st *shared.Stream) (n callNote, msgs []jsonrpc.Message, err error) {
	if len(st.Note) == 0 {
		return n, nil, nil
	}
	if err := json.Unmarshal(st.Note, &n); err != nil {
		return n, nil, fmt.Errorf("note of stream %d: %w", st.Number, err)
	}
	for _, raw := range n.Requests {
		m, err := jsonrpc.Parse(bytes.Clone(raw))
		if err != nil || m.Kind != jsonrpc.Request {
			return n, nil, fmt.Errorf("note of stream %d: not a request: %w", st.Number, err)
		}
		msgs = append(msgs, m)
	}
	return n, msgs, nil
}
