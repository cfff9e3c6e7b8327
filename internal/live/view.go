package live

import (
	"cmp"
	"slices"
	"time"

	"holdfast/internal/observe"
)

// A view is what the page is sent: all that it shows at a time. Times are in milliseconds since 1970.
type view struct {
	At       int64         `json:"at"`
	Node     string        `json:"node"`
	Others   []string      `json:"others"`
	Ready    string        `json:"ready"` // "": it is
	Actions  bool          `json:"actions"`
	Drain    bool          `json:"drain"`
	Calls    []callView    `json:"calls"` // newest first
	More     int           `json:"more"`  // calls in flight besides
	InFlight int           `json:"in_flight"`
	Sessions []sessionView `json:"sessions"` // newest first
	Open     int           `json:"open"`     // sessions in all
	Life     *lifeView     `json:"life,omitempty"`
}

type sessionView struct {
	Name      string `json:"name"`
	Server    string `json:"server,omitempty"`
	Principal string `json:"principal,omitempty"`
	Began     int64  `json:"began"`
	From      string `json:"from,omitempty"`
	Carrier   bool   `json:"carrier,omitempty"`
	Backend   bool   `json:"backend"`
}

type callView struct {
	ID          uint64  `json:"id"`
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
	From        string  `json:"from,omitempty"`
	Task        bool    `json:"task,omitempty"`
	HandedOff   int64   `json:"handed_off,omitempty"`
	Entries     int     `json:"entries"`
	Connections int     `json:"connections"`
	Reading     int     `json:"reading"` // connections that read it now
	Progress    float64 `json:"progress,omitempty"`
	Total       float64 `json:"total,omitempty"`
	Message     string  `json:"message,omitempty"`
}

// lifeView is the life of one call.
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

// view returns what is to be shown, with the life of the call that has an id; 0: of none.
func (l *Live) view(life uint64) view {
	v := view{At: time.Now().UnixMilli(), Actions: l.opts.Token != "", Drain: l.opts.Token != "" && l.source.Actions.Drain != nil}
	if l.source.Nodes != nil {
		v.Node, v.Others = l.source.Nodes()
	}
	if l.source.Ready != nil {
		if err := l.source.Ready(); err != nil {
			v.Ready = text(err.Error())
		}
	}
	l.mu.Lock()
	all := slices.Concat(l.inFlight, l.ended, l.light)
	v.More, v.InFlight, v.Open = l.more, len(l.inFlight)+l.more, l.open
	for _, s := range l.sessions {
		v.Sessions = append(v.Sessions, sessionView{
			Name: s.Name, Server: s.Server, Principal: text(s.Principal), Began: s.began.UnixMilli(),
			From: s.from, Carrier: s.Carrier, Backend: s.backend,
		})
	}
	l.mu.Unlock()
	slices.SortFunc(v.Sessions, func(a, b sessionView) int {
		return cmp.Or(cmp.Compare(b.Began, a.Began), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(b.id, a.id) })
	for _, r := range all {
		r.mu.Lock()
		v.Calls = append(v.Calls, r.view())
		if r.id == life {
			v.Life = r.life()
		}
		r.mu.Unlock()
	}
	return v
}

// view returns a row. r.mu is held.
func (r *record) view() callView {
	c := r.call
	v := callView{
		ID: r.id, Session: c.Session, Server: c.Server, Principal: text(c.Principal), Method: text(c.Method), Tool: text(c.Tool),
		Revision: c.Revision, Stream: c.Number(), Began: c.Began.UnixMilli(), State: r.state, From: r.from, Task: r.task,
		Entries: c.Entries(), Connections: c.Connections(),
		Progress: r.progress.Progress, Total: r.progress.Total, Message: r.progress.Message,
	}
	if r.state != "" {
		v.Ended = r.end.At.UnixMilli()
	}
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

// life returns the picture. r.mu is held.
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
