// Package observetest checks that the events for observers obey the rules of package observe.
package observetest

import (
	"sync"
	"testing"
	"time"

	"holdfast/internal/observe"
)

// A Ledger is an observer that reports broken rules to its test. At the end of the test, after the
// cleanups that were registered later, all calls, sessions, readers and backends must have ended.
type Ledger struct {
	t testing.TB

	mu       sync.Mutex
	calls    []*Entry
	sessions map[string]int // open, by name
	readers  map[*observe.Reader]bool
	backends int
	events   []observe.Event
	records  bool
}

// New returns a ledger of a test.
func New(t testing.TB) *Ledger {
	l := &Ledger{t: t, sessions: make(map[string]int), readers: make(map[*observe.Reader]bool)}
	t.Cleanup(l.check)
	return l
}

// Recording makes the ledger keep the events, for [Ledger.Events] and [Entry.Events].
func (l *Ledger) Recording() *Ledger {
	l.records = true
	return l
}

// An Entry is a call.
type Entry struct {
	*observe.Call
	l      *Ledger
	ended  bool
	end    observe.End
	seq    uint64
	events []observe.Event
}

// End returns how the call has ended, and whether it has.
func (e *Entry) End() (observe.End, bool) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return e.end, e.ended
}

// Events returns the events of the call.
func (e *Entry) Events() []observe.Event {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return append([]observe.Event(nil), e.events...)
}

// Calls returns the calls of a method, in the order in which they began.
func (l *Ledger) Calls(method string) (all []*Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.calls {
		if e.Method == method {
			all = append(all, e)
		}
	}
	return all
}

// Events returns the events that belonged to no call in flight.
func (l *Ledger) Events() []observe.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]observe.Event(nil), l.events...)
}

// Began implements [observe.Observer].
func (l *Ledger) Began(c *observe.Call, _ []byte) observe.CallObserver {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &Entry{Call: c, l: l}
	l.calls = append(l.calls, e)
	if c.Session == "" || c.Method == "" || c.Began.IsZero() {
		l.t.Errorf("a call began without a name: %+v", e)
	}
	return e
}

// Happened implements [observe.Observer].
func (l *Ledger) Happened(e observe.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.records {
		l.events = append(l.events, e)
	}
	switch e := e.(type) {
	case observe.SessionBegan:
		l.sessions[e.Name]++
	case observe.SessionEnded:
		if l.sessions[e.Name]--; l.sessions[e.Name] < 0 {
			l.t.Errorf("session %s ended without having begun", e.Name)
		}
	case observe.BackendOpened:
		if e.Err == nil {
			l.backends++
		}
	case observe.BackendClosed:
		l.backends--
	default:
		l.read(e)
	}
}

// read takes in an event of a reader. l.mu is held.
func (l *Ledger) read(e observe.Event) {
	switch e := e.(type) {
	case observe.ReaderCame:
		l.readers[e.Reader] = true
	case observe.ReaderRead:
		if !l.readers[e.Reader] {
			l.t.Errorf("a reader that is not there has read: %+v", e.Reader)
		}
	case observe.ReaderWent:
		if !l.readers[e.Reader] {
			l.t.Errorf("a reader left that was not there: %+v", e.Reader)
		}
		delete(l.readers, e.Reader)
	}
}

// Happened implements [observe.CallObserver].
func (e *Entry) Happened(c *observe.Call, what observe.Event) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if c != e.Call {
		l.t.Errorf("told of another call: %+v", c)
	}
	if l.records {
		e.events = append(e.events, what)
	}
	switch what := what.(type) {
	case observe.Appended:
		if e.ended || e.seq != 0 && what.Seq != e.seq+1 || e.Number() == 0 {
			l.t.Errorf("entry %d of stream %d came after %d, ended: %v", what.Seq, e.Number(), e.seq, e.ended)
		}
		e.seq = what.Seq
	case observe.Promoted:
		if e.ended || what.Number == 0 || what.Number != e.Number() {
			l.t.Errorf("promoted to %d: %+v", what.Number, e)
		}
	case observe.HandedOff:
		if e.ended || what.Number == 0 || what.Number != e.Number() || what.Was == what.Number {
			l.t.Errorf("handed off from %d to %d: %+v", what.Was, what.Number, e)
		}
		e.seq = 0
	default:
		l.read(what)
	}
}

// Ended implements [observe.CallObserver].
func (e *Entry) Ended(_ *observe.Call, end observe.End) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.ended || end.At.IsZero() {
		e.l.t.Errorf("%s %s ended again, or never: %v, %v", e.Method, e.ID, e.end, end)
	}
	e.ended, e.end = true, end
}

// check reports calls, sessions, readers and backends that have not ended. It waits for readers:
// the node that served a request of another node may still be about to leave.
func (l *Ledger) check() {
	for end := time.Now().Add(time.Minute); l.isRead() && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // polling, not synchronisation
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.calls {
		if !e.ended {
			l.t.Errorf("%s %s in session %s, stream %d, did not end", e.Method, e.ID, e.Session, e.Number())
		}
	}
	for name, n := range l.sessions {
		if n != 0 {
			l.t.Errorf("session %s is open %d times at the end", name, n)
		}
	}
	for r := range l.readers {
		l.t.Errorf("a reader did not leave: %+v", r)
	}
	if l.backends != 0 {
		l.t.Errorf("%d backends are open at the end", l.backends)
	}
}

// isRead reports whether there are readers.
func (l *Ledger) isRead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers) > 0
}
