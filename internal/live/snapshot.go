package live

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/observe"
)

// A snapshot is the state of a node at a time. Times are in milliseconds since 1970.
type snapshot struct {
	At       int64         `json:"at"`
	Role     string        `json:"role,omitempty"`  // "": both
	Ready    string        `json:"ready,omitempty"` // why the node is not ready; "": it is
	Drain    bool          `json:"drain,omitempty"` // the node can be told to drain
	InFlight int           `json:"in_flight"`
	Open     int           `json:"open"`             // sessions in all
	Asleep   int           `json:"asleep,omitempty"` // how often a session has fallen asleep
	Calls    []callView    `json:"calls,omitempty"`
	Sessions []sessionView `json:"sessions,omitempty"`
}

// sessionView is a session, as its node describes it.
type sessionView struct {
	Name      string `json:"name"`
	Server    string `json:"server,omitempty"`
	Principal string `json:"principal,omitempty"`
	Began     int64  `json:"began"`
	From      string `json:"from,omitempty"`
	Carrier   bool   `json:"carrier,omitempty"`
	Backend   bool   `json:"backend"`
}

// callView is a call, as its node describes it.
type callView struct {
	ID          uint64  `json:"id"`
	Key         string  `json:"key"` // stays the same when another node takes the call over
	Session     string  `json:"session"`
	Server      string  `json:"server,omitempty"`
	Principal   string  `json:"principal,omitempty"`
	Method      string  `json:"method"`
	Tool        string  `json:"tool,omitempty"`
	Revision    string  `json:"revision,omitempty"`
	Stream      uint64  `json:"stream,omitempty"`
	Began       int64   `json:"began"`
	Ended       int64   `json:"ended,omitempty"`
	State       string  `json:"state,omitempty"` // "": in flight
	Again       bool    `json:"again,omitempty"` // the call began at another node
	From        string  `json:"from,omitempty"`
	Task        bool    `json:"task,omitempty"`
	HandedOff   int64   `json:"handed_off,omitempty"`
	Attached    string  `json:"attached,omitempty"` // as in stored
	Entries     int     `json:"entries"`
	Connections int     `json:"connections"`
	Reading     int     `json:"reading"` // connections that read the call now
	Progress    float64 `json:"progress,omitempty"`
	Total       float64 `json:"total,omitempty"`
	Message     string  `json:"message,omitempty"`
}

// lifeView is the life of one call on one node.
type lifeView struct {
	callView
	First    uint64     `json:"first"` // sequence of the first entry that was appended on this node
	Ticks    []tickView `json:"ticks"`
	Hidden   int        `json:"hidden"`
	Bars     []barView  `json:"bars"`
	BarsGone int        `json:"bars_gone"`
}

type tickView struct {
	At   int64  `json:"at"`
	Seq  uint64 `json:"seq"`
	Kind string `json:"kind"`
}

type barView struct {
	Door  string `json:"door"`
	After uint64 `json:"after"`
	Seq   uint64 `json:"seq"`
	Came  int64  `json:"came"`
	Went  int64  `json:"went,omitempty"`
	Why   string `json:"why,omitempty"`
}

// snapshot returns the state of this node.
func (l *Live) snapshot() snapshot {
	from := l.from()
	s := snapshot{At: time.Now().UnixMilli(), Role: from.Role, Drain: from.Actions.Drain != nil}
	if from.Ready != nil {
		if err := from.Ready(); err != nil {
			s.Ready = text(err.Error())
		}
	}
	l.mu.Lock()
	all := slices.Concat(l.inFlight, l.ended.all, l.light.all)
	s.InFlight, s.Open, s.Asleep = len(l.inFlight)+l.more, l.open, l.asleep
	for _, one := range l.sessions {
		s.Sessions = append(s.Sessions, sessionView{
			Name: one.Name, Server: one.Server, Principal: text(one.Principal), Began: one.began.UnixMilli(),
			From: one.from, Carrier: one.Carrier, Backend: one.backend,
		})
	}
	l.mu.Unlock()
	slices.SortFunc(s.Sessions, func(a, b sessionView) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(b.id, a.id) })
	s.Calls = make([]callView, len(all))
	for i, r := range all {
		r.mu.Lock()
		s.Calls[i] = r.view()
		r.mu.Unlock()
	}
	return s
}

// record returns the call that has an id, or nil.
func (l *Live) record(id uint64) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, all := range [][]*record{l.inFlight, l.ended.all, l.light.all} {
		for _, r := range all {
			if r.id == id {
				return r
			}
		}
	}
	return nil
}

// life returns the life of the call that has an id, or nil.
func (l *Live) life(id uint64) *lifeView {
	r := l.record(id)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life()
}

// keyOf returns a name of a call that is the same on each node: a digest, which does not reveal the
// principal or the ids.
func keyOf(c *observe.Call) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", c.Server, c.Principal, c.Session, c.ID))
	return hex.EncodeToString(sum[:12])
}

// view returns the call as a callView. r.mu is held.
func (r *record) view() callView {
	c := r.call
	v := callView{
		ID: r.id, Key: keyOf(c), Session: c.Session, Server: c.Server, Principal: text(c.Principal), Method: text(c.Method), Tool: text(c.Tool),
		Revision: text(c.Revision), Stream: c.Number(), Began: c.Began.UnixMilli(), Again: c.Again, From: r.from, Task: r.task,
		Entries: c.Entries(), Connections: c.Connections(),
		Progress: r.progress.Progress, Total: r.progress.Total, Message: r.progress.Message,
	}
	if r.ended {
		v.State, v.Ended = r.end.Outcome.String(), r.end.At.UnixMilli()
	}
	v.Attached = r.attached
	if !r.handed.IsZero() {
		v.HandedOff = r.handed.UnixMilli()
	}
	for i := range r.bars {
		if r.bars[i].went.IsZero() {
			v.Reading++
		}
	}
	return v
}

// life returns the life of the call. r.mu is held.
func (r *record) life() *lifeView {
	v := &lifeView{callView: r.view(), First: r.first, Hidden: r.hidden, BarsGone: r.barsGone}
	for _, t := range r.ticks {
		v.Ticks = append(v.Ticks, tickView{At: t.at.UnixMilli(), Seq: t.seq, Kind: t.kind})
	}
	for _, b := range r.bars {
		one := barView{Door: b.reader.Door.String(), After: b.reader.After, Seq: b.seq, Came: b.reader.Came.UnixMilli()}
		if !b.went.IsZero() {
			one.Went, one.Why = b.went.UnixMilli(), b.why.String()
		}
		v.Bars = append(v.Bars, one)
	}
	return v
}

var _ observe.Observer = (*Live)(nil)
