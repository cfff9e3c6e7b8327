package session

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/deferred"
	"holdfast/internal/observe"
	"holdfast/internal/ownprogress"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is for calls with names that clients were given in the place of the response: see package deferred.

// KeepEnded is how long after its end clients can ask for a call by a name, and how long a name stays when nothing else is kept
// of its call. If it is not known how long the store keeps an ended call, it is the least time for which stores do.
func (m *Manager) KeepEnded() time.Duration { return cmp.Or(max(m.opts.Keep, 0), 10*time.Minute) }

// NameCall prepares the call of a stream for a name that its client is given: clients with the name can ask for the call
// until some time after its end, on any node. When NameCall returns, the store has the call's note, which another owner
// needs for that. The request is kept, to be made again if its server asks by its result. since is when the call was
// first named, as far as this node knows. The error is [ErrNotFound] if the call has ended, or that of the store.
func (s *Session) NameCall(number uint64, m *jsonrpc.Message, header http.Header) (since time.Time, err error) {
	c := s.CallAt(number)
	if c == nil || c.IsOver() {
		return since, ErrNotFound
	}
	if err := c.awaitStored(); err != nil {
		return since, err
	}
	s.use.hold(s.m.KeepEnded())
	since = s.Watched.Record(c, number).Name()
	made := newRounds(m, header)
	locked(s, func() {
		if c.record.rounds == nil { // else the request was made again, under its idempotency key
			c.record.rounds = made
		}
	})
	if c.watch != nil {
		c.watch.Happened(observe.BecameTask{})
	}
	return since, nil
}

// awaitStored waits until the store has the call's note, if the call has one.
func (c *Call) awaitStored() error {
	if c.recovery == nil {
		return nil
	}
	c.mu.Lock()
	stored := c.recovery.stored
	c.mu.Unlock()
	if stored == nil {
		return ErrNotFound
	}
	switch late, err := c.recovery.awaitNote(stored); {
	case late:
		return fmt.Errorf("task not noted: %w", err)
	case err != nil:
		return err
	}
	return c.s.m.sync()
}

// restoreWatched makes the record of a call that its client may have a name for, in a session that was taken over and
// that no client knows yet.
func (s *Session) restoreWatched(c *Call) {
	heir := c.isHeir()
	if !heir && (s.modern == "" || !c.recovery.callsTool()) {
		return
	}
	s.use.hold(s.m.KeepEnded())
	tool := ""
	if heir {
		tool = c.record.inherits.tool
	}
	if c.IsOver() {
		s.Watched.AddEnded(c.number, tool)
		return
	}
	s.Watched.Record(c, c.number).Inherit(tool, "")
	if !heir {
		c.record.rounds = newRounds(&c.recovery.msgs[0], http.Header{})
	}
}

// progressText returns the message of a progress notification.
func progressText(data []byte) (text string, ok bool) {
	if jsonrpc.String(jsonrpc.Field(data, "method")) != protocol.MethodProgress {
		return "", false
	}
	text = jsonrpc.String(jsonrpc.Field(data, "params", "message"))
	return text, text != "" && text != ownprogress.StillRunning
}

// A watchedOwner is a session as its watched calls know it. It implements [deferred.Owner].
type watchedOwner struct{ *Session }

func (o watchedOwner) Running(number uint64) deferred.Running {
	if c := o.CallAt(number); c != nil {
		return c
	}
	return nil
}

func (o watchedOwner) Record(r deferred.Running, begin func(over bool) *deferred.Call) *deferred.Call {
	c := r.(*Call)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests.mu.Lock()
	defer o.requests.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.recorded()
	if of.watched == nil {
		of.watched = begin(c.IsOver())
	}
	return of.watched
}

func (o watchedOwner) Hold()       { o.use.hold(o.m.KeepEnded()) }
func (o watchedOwner) Taken() bool { return o.taken }

// watching is a call's [feature].
type watching struct{ *deferred.Call }

func (w watching) stored(c *Call) {
	if w.Stored(c.number) {
		c.s.m.resumer(c.s)
	}
}
func (w watching) answered(*Call, *inflight, bool, uint64) { w.End(false) }
func (w watching) refused(*Call, [][]byte, uint64)         { w.End(false) }
func (w watching) left(c *Call)                            { c.s.Watched.Wake(c.number) }
func (w watching) cancelled(*Call, *inflight)              { w.End(true) }
