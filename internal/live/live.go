// Package live is a page for operators: sessions and calls of all nodes while they happen. For one call it
// draws its life: the messages of its server, and the connections that read them. It is an observer
// ([observe.Observer]), and its memory is bounded.
package live

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/observe"
)

// The bounds of the memory. Calls, sessions, ticks and bars beyond them are only counted.
const (
	mostInFlight = 300
	mostEnded    = 100 // calls that had a stream
	mostLight    = 40  // light calls
	mostSessions = 300
	mostTicks    = 300 // per call
	mostBars     = 60  // per call
	mostText     = 200 // bytes of a text
	mostParsed   = 4 << 10
)

// Live has the state that the page shows. Its methods may be called concurrently.
type Live struct {
	opts     Options
	source   atomic.Pointer[Source] // nil: the page is not served yet
	serial   atomic.Uint64
	changed  atomic.Uint64 // counts changes on this node
	news     atomic.Uint64 // counts news of other nodes
	viewers  viewers
	tries    tries
	requests atomic.Int32
	closed   chan struct{}
	once     sync.Once

	mu           sync.Mutex // is locked before a record's mu
	inFlight     []*record
	more         int // calls in flight that are not in inFlight
	ended, light ring
	sessions     map[string]*session
	open         int // open sessions, also those that are not in the map
	asleep       int // how often a session has fallen asleep

	others others
}

// Options configure a [Live].
type Options struct {
	// Hosts are names that a Host header may carry, besides addresses, "localhost" and the name of
	// this machine; "*" allows any.
	Hosts []string
	// Token must come with each action; "": the page has no actions.
	Token string
	// Happened gets an event for each action, and for each request without the token. It may be nil.
	Happened func(observe.Event)
	Logger   *slog.Logger // slog.Default()
}

// A Source gives the page the state that observers do not get, and does its actions.
type Source struct {
	// Nodes returns the name of this node, and the other nodes that it knows; nil: this node is alone.
	Nodes func() (self string, others []Node)
	// Ask sends a request to the page of another node: see [Live.Peers]. The URL has the node's name as its
	// host. The status is 400 if the build of that node knows no such requests, and 404 if the node has no
	// page. Ask is set if Nodes is.
	Ask func(*http.Request) (*http.Response, error)
	// Role is the role of this node among those that share a store: "door", "worker", or "" for both.
	Role string
	// Ready returns the reason why the node should get no requests, or nil.
	Ready   func() error
	Actions Actions
}

// A Node is another node of those that share a store.
type Node struct {
	Name  string
	State NodeState
}

// A NodeState says whether a node is known to live.
type NodeState int

// States of nodes.
const (
	NodeAlive  NodeState = iota
	NodeSilent           // the other nodes ask whether it lives
	NodeLost
	NodeEnded // it has said that it ends
)

// New returns a Live without state. It shows nothing before [Live.Register].
func New(o Options) *Live {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Happened == nil {
		o.Happened = func(observe.Event) {}
	}
	return &Live{opts: o, sessions: make(map[string]*session), closed: make(chan struct{})}
}

// Close ends the streams of events to open pages, and waits for the goroutines that ask other nodes.
func (l *Live) Close() {
	l.once.Do(func() { close(l.closed) })
	l.others.close()
}

// from returns the source; before the page is served, an empty one.
func (l *Live) from() *Source {
	if s := l.source.Load(); s != nil {
		return s
	}
	return &Source{}
}

// session is an open session.
type session struct {
	observe.Session
	began   time.Time
	from    string // the node that it was taken over from, or "revived" or "awake"
	backend bool   // its backend is open
}

// record is a call, and the observer of it. It is small, as each call has one, also while no page is open.
type record struct {
	l    *Live
	call *observe.Call
	id   uint64
	at   int // in Live.inFlight; guarded by Live.mu

	mu    sync.Mutex
	ended bool
	task  bool
	end   observe.End
	from  string // the node that the call was taken over from
	*stored
}

// stored is the part of a record that only calls with a stream have.
type stored struct {
	handed   time.Time
	attached string // why the call's request was attached to another call, or a request to this one; "": neither
	first    uint64 // sequence of the first entry that was appended here
	progress progress
	ticks    []tick
	hidden   int // entries that have no tick any more
	bars     []bar
	barsGone int
}

// nothing is the part of all calls that have no stored of their own. It is never changed.
var nothing stored

// keepMore gives the record a stored of its own. r.mu is held.
func (r *record) keepMore() {
	if r.stored == &nothing {
		r.stored = &stored{}
	}
}

// tick is an entry of a call's log.
type tick struct {
	at   time.Time
	seq  uint64
	kind string
}

// bar is a connection that reads a call's log.
type bar struct {
	reader *observe.Reader
	seq    uint64
	went   time.Time // zero: it still reads
	why    observe.Why
}

func (l *Live) change() { l.changed.Add(1) }

// Began implements [observe.Observer].
func (l *Live) Began(c *observe.Call, _ []byte) observe.CallObserver {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change()
	if len(l.inFlight) >= mostInFlight {
		l.more++
		return (*uncounted)(l)
	}
	r := &record{l: l, call: c, id: l.serial.Add(1), at: len(l.inFlight), stored: &nothing}
	if s := l.sessions[c.Session]; s != nil && c.Again {
		r.from = s.from
	}
	l.inFlight = append(l.inFlight, r)
	return r
}

// uncounted is the observer of calls in flight beyond mostInFlight.
type uncounted Live

// Happened implements [observe.CallObserver].
func (*uncounted) Happened(*observe.Call, observe.Event) {}

// Ended implements [observe.CallObserver].
func (u *uncounted) Ended(*observe.Call, observe.End) {
	l := (*Live)(u)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more--
	l.change()
}

// Happened implements [observe.Observer].
func (l *Live) Happened(e observe.Event) {
	switch e := e.(type) {
	case observe.ReaderCame:
		l.readAgain(e.Reader, e)
	case observe.ReaderRead:
		l.readAgain(e.Reader, e)
	case observe.ReaderWent:
		l.readAgain(e.Reader, e)
	case observe.SessionBegan, observe.SessionEnded, observe.TakenOver, observe.SessionRevived, observe.SessionSlept, observe.BackendOpened, observe.BackendClosed:
		l.sessionHappened(e)
	}
}

// sessionHappened handles an event of a session.
func (l *Live) sessionHappened(e observe.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change()
	switch e := e.(type) {
	case observe.SessionBegan:
		l.open++
		if len(l.sessions) < mostSessions {
			l.sessions[e.Name] = &session{Session: e.Session, began: time.Now()}
		}
	case observe.SessionEnded:
		l.open--
		delete(l.sessions, e.Name)
	case observe.TakenOver:
		l.tookOver(e)
	case observe.SessionRevived:
		if s := l.sessions[e.Name]; s != nil {
			s.from = "revived"
			if e.Woke {
				s.from = "awake"
			}
		}
	case observe.SessionSlept:
		l.asleep++
	case observe.BackendOpened:
		if s := l.sessions[e.Name]; s != nil {
			s.backend = e.Err == nil
		}
	case observe.BackendClosed:
		if s := l.sessions[e.Name]; s != nil {
			s.backend = false
		}
	}
}

// tookOver marks a session and its calls with the node that they are taken over from. l.mu is held.
func (l *Live) tookOver(e observe.TakenOver) {
	if s := l.sessions[e.Name]; s != nil {
		s.from = text(e.From)
	}
	for _, all := range [][]*record{l.inFlight, l.ended.all, l.light.all} {
		for _, r := range all {
			if r.call.Session == e.Name && r.call.Again {
				r.mu.Lock()
				r.from = text(e.From)
				r.mu.Unlock()
			}
		}
	}
}

// readAgain passes an event of a reader to the record of its call, if that has ended.
func (l *Live) readAgain(of *observe.Reader, e observe.Event) {
	if of.Number == 0 {
		return
	}
	l.mu.Lock()
	var found *record
	for _, r := range l.ended.all {
		if r.call.Session == of.Session && r.call.Number() == of.Number {
			found = r
		}
	}
	l.mu.Unlock()
	if found != nil {
		found.Happened(found.call, e)
	}
}

// Ended implements [observe.CallObserver].
func (r *record) Ended(c *observe.Call, e observe.End) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.inFlight) - 1 // the last record takes the place of r: the page sorts them
	l.inFlight[r.at], l.inFlight[last].at = l.inFlight[last], r.at
	l.inFlight[last] = nil
	l.inFlight = l.inFlight[:last]
	r.mu.Lock()
	r.ended, r.end = true, e
	if e.At.IsZero() {
		r.end.At = time.Now()
	}
	r.mu.Unlock()
	if c.Number() == 0 {
		l.light.keep(r, mostLight)
	} else {
		l.ended.keep(r, mostEnded)
	}
	l.change()
}

// A ring has the last records, in no order.
type ring struct {
	all  []*record
	next int // the index of the oldest record, in a full ring
}

// keep adds a record. most is the size of a full ring, in which it replaces the oldest one.
func (k *ring) keep(r *record, most int) {
	if len(k.all) < most {
		k.all = append(k.all, r)
		return
	}
	k.all[k.next] = r
	k.next = (k.next + 1) % most
}

// Happened implements [observe.CallObserver].
func (r *record) Happened(_ *observe.Call, e observe.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case observe.BecameTask:
		r.task = true
	case observe.Attached:
		r.keepMore()
		r.attached = e.Reason
	case observe.HandedOff:
		r.keepMore()
		r.handed = time.Now()
	case observe.Appended:
		r.keepMore()
		r.appended(e)
	case observe.ReaderCame:
		r.keepMore()
		r.came(e.Reader)
	case observe.ReaderRead:
		if b := r.bar(e.Reader); b != nil {
			b.seq = e.Seq
		}
	case observe.ReaderWent:
		if b := r.bar(e.Reader); b != nil {
			b.seq, b.why, b.went = e.Seq, e.Why, time.Now()
		}
	}
	r.l.change()
}

// appended adds a tick. If there are too many, it drops every second one, so that the rest still spans the
// whole time.
func (r *record) appended(e observe.Appended) {
	if r.first == 0 {
		r.first = e.Seq
	}
	if len(r.ticks) >= mostTicks {
		n := 0
		for i := 0; i < len(r.ticks); i += 2 {
			r.ticks[n] = r.ticks[i]
			n++
		}
		r.hidden += len(r.ticks) - n
		r.ticks = r.ticks[:n]
	}
	r.ticks = append(r.ticks, tick{at: time.Now(), seq: e.Seq, kind: r.take(e)})
}

// came adds a bar. If there are too many, it drops the oldest one that has ended, or else the new one.
func (r *record) came(of *observe.Reader) {
	if len(r.bars) >= mostBars {
		for i := range r.bars {
			if !r.bars[i].went.IsZero() {
				r.bars = append(r.bars[:i], r.bars[i+1:]...)
				break
			}
		}
		r.barsGone++
		if len(r.bars) >= mostBars {
			return
		}
	}
	r.bars = append(r.bars, bar{reader: of, seq: of.After})
}

func (r *record) bar(of *observe.Reader) *bar {
	for i := len(r.bars) - 1; i >= 0; i-- {
		if r.bars[i].reader == of {
			return &r.bars[i]
		}
	}
	return nil
}
