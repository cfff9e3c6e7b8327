package reading

import (
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
)

// This file is for clients that come back with nothing but their session id: it finds the calls that they may have
// lost. docs/decisions/0001-session-id-only.md says how much can be known of that, and how the rest is handled.

// A gap is a stream that the client may lack entries of, so that it may come back for them with nothing but its session id.
type gap struct {
	number uint64
	seq    uint64 // the last entry that the client has for certain: it asked for those after it
	told   uint64 // the last entry that was written to the client
	kind   gapKind
	since  time.Time // when the connection began to read it
	at     time.Time // when the connection broke, or it was noted that all was written
	wrote  time.Time // of a gapWhole: when the writing of the last entries began
	asked  time.Time // when the client first came back, and may have meant this one; zero: not yet
	// from is the address of a client that all was written to, as long as it is not
	// known to have left with some of it unread; else "".
	from string
	// alone: no other client may ask how the call ended (see [Owner.IsAlone]).
	alone bool
	like  likeness.Likeness // of the call
	sent  Sent              // nil: no request is like the call
}

// A gapKind says how much of a gap's stream was written to the client.
type gapKind uint8

const (
	gapPartial gapKind = iota // some of it, with event ids
	gapNoID                   // no event id, so none can have arrived
	gapWhole                  // all of it, and it is doubted that all has arrived
	gapUnknown                // not known, as a lost node wrote it; the call has ended, so it may be all
)

// gaps are the gaps of a session. Guarded by Streams.mu, but for unconfirmed.
type gaps struct {
	all         []gap
	asked       time.Time   // when the client last came back with nothing but its session
	resumes     bool        // the client has come back for a call with an event id
	unconfirmed atomic.Bool // see [Streams.Unconfirmed]
}

// has reports whether a stream has a gap.
func (g *gaps) has(number uint64) bool {
	return slices.ContainsFunc(g.all, func(b gap) bool { return b.number == number })
}

// close takes a stream off the record: it is read again, or can't be read any more.
func (g *gaps) close(number uint64) {
	g.all = slices.DeleteFunc(g.all, func(b gap) bool { return b.number == number })
}

// IsLost reports whether the connection of a stream's client has broken, and it has not come back since.
func (t *Streams) IsLost(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gaps.has(number)
}

// Found takes a stream off the record because another call goes on with it.
func (t *Streams) Found(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gaps.close(number)
}

// prune forgets streams that were written wholly more than unconfirmedFor ago.
func (g *gaps) prune(now time.Time) {
	g.all = slices.DeleteFunc(g.all, func(b gap) bool { return b.kind == gapWhole && now.Sub(b.at) > unconfirmedFor })
}

// acknowledge notes that the client has the entries of a stream through seq.
func (g *gaps) acknowledge(number, seq uint64) {
	for i := range g.all {
		if b := &g.all[i]; b.number == number {
			b.seq = max(b.seq, seq)
		}
	}
}

// add remembers a gap, instead of another if there are too many.
func (g *gaps) add(b gap) {
	g.ask(&b)
	g.prune(b.at)
	if len(g.all) >= mostGaps {
		// Rather one that has probably arrived.
		i := max(0, slices.IndexFunc(g.all, func(b gap) bool { return b.from != "" }))
		g.all = slices.Delete(g.all, i, i+1)
	}
	g.all = append(g.all, b)
}

const (
	// mostGaps bounds how many gaps a session remembers.
	mostGaps = 64

	// unconfirmedFor is how long a stream is remembered that was written wholly. A client that lost it
	// without a trace, and is not back by then, is not told of it.
	unconfirmedFor = time.Minute

	// awayFor is the least time that a client which may know an event id of a call has to come back with it,
	// if its only other connections are older ones. Clients that come back try within two seconds; others
	// wait for the call until they give up.
	awayFor = 3 * time.Second

	// resumesFor is awayFor for a client that has come back with an event id before. It does so again, as soon as it notices that the
	// connection has broken: at the latest when keep-alives fail to come. Most hosts wait for 60 s for a call.
	resumesFor = 45 * time.Second

	// networkDelay bounds how much later the network, a proxy or another node may deliver the end of a
	// connection than a request that its client sent on another one afterwards.
	networkDelay = 5 * time.Second
)

// CameBack notes that the client has come back: with an event id or something else that says how far it has read (saysWhat), or with nothing but its session.
func (t *Streams) CameBack(saysWhat bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if saysWhat {
		t.gaps.resumes = true
		return
	}
	t.gaps.asked = time.Now()
	for i := range t.gaps.all {
		t.gaps.ask(&t.gaps.all[i])
	}
}

// ask notes that b is asked for, if the client has come back since the time from
// which it can have meant b. A client that got no id has no other way to ask.
func (g *gaps) ask(b *gap) {
	if !b.asked.IsZero() {
		return
	}
	after := b.since
	switch {
	case b.kind == gapNoID:
		b.asked = b.at
		return
	case b.kind == gapWhole && b.wrote.Add(-networkDelay).After(after):
		after = b.wrote.Add(-networkDelay)
	}
	if g.asked.After(after) {
		b.asked = g.asked
	}
}

// due returns when b is continued on the standalone stream, if its client has not come back for it by then;
// zero: only once it is asked for. patience is the time for a client that may be about to come back with an
// id, and away the least time for one that has only connections that it had before.
func (b *gap) due(patience, away time.Duration) time.Time {
	when := b.at
	switch {
	case b.from != "":
		return time.Time{}
	case b.kind == gapNoID:
		return when
	case !b.asked.IsZero():
		if b.asked.After(when) {
			when = b.asked
		}
		return when.Add(patience)
	case b.kind == gapWhole, b.kind == gapUnknown:
		return time.Time{}
	}
	return when.Add(max(patience, away))
}

// away returns the least time that the client has to come back with an id.
func (g *gaps) away() time.Duration {
	if g.resumes {
		return resumesFor
	}
	return awayFor
}

// due returns the gaps that are due, and when the next of them will be.
func (t *Streams) due(patience time.Duration) (lost []gap, due time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.gaps.prune(now)
	for i := range t.gaps.all {
		b := &t.gaps.all[i]
		switch when := b.due(patience, t.gaps.away()); {
		case when.IsZero():
		case !now.Before(when):
			lost = append(lost, *b)
		case due.IsZero() || when.Before(due):
			due = when
		}
	}
	return lost, due
}

// Completed notes that all of the stream was written to the client at an address ("": the client has
// lost connections of this call before, and if it comes back with nothing but its session it has lost
// this one). The client may yet turn out to have left with some of it unread. wrote is when the writing
// of the last entries began; this node may be slow, so that the client has come back since. besides
// says that the stream was read beside another: then the client may come back for the other one only.
//
// conn is told which source has written to it, if it is not nil.
func (r *Reader) Completed(from string, wrote time.Time, besides bool, conn Connection) {
	t, number := r.t, r.cursor.Stream.Number
	what, alone, like := t.owner.Sent(r, besides), t.owner.IsAlone(r.call), r.Likeness()
	t.mu.Lock()
	r.sent = what
	if number != Standalone && t.streams[number].reader == r {
		if from != "" {
			t.gaps.unconfirmed.Store(true)
		}
		t.lose(gap{number: number, seq: r.has, kind: gapWhole, since: r.since, wrote: wrote, from: from, alone: alone, like: like, sent: what}, besides)
	}
	t.mu.Unlock()
	switch { // without t.mu, as conn may call back: it may know that the client has left
	case conn == nil:
	case what == nil:
		conn.Wrote(t)
	default:
		conn.Wrote(what)
	}
}

// Disconnected notes that the client at an address left without a word. Streams that were written to it
// wholly after the given time have probably not arrived.
func (t *Streams) Disconnected(from string, after time.Time) {
	t.mu.Lock()
	var lost []Sent
	for i := range t.gaps.all {
		if b := &t.gaps.all[i]; b.from == from && b.at.After(after) {
			b.from = ""
			t.wakeStandalone()
			if b.sent != nil {
				lost = append(lost, b.sent)
			}
		}
	}
	t.mu.Unlock()
	for _, what := range lost {
		what.Strand()
	}
}

// Unconfirmed reports whether a stream was written to a client wholly and is not known yet to have arrived:
// see [Streams.ConfirmArrival].
func (t *Streams) Unconfirmed() bool { return t.gaps.unconfirmed.Load() }

// ConfirmArrival notes that the client at an address has sent a request on a connection on which requests
// follow each other: the streams that were written to it before have arrived.
func (t *Streams) ConfirmArrival(from string) {
	var arrived []uint64
	t.mu.Lock()
	t.gaps.all = slices.DeleteFunc(t.gaps.all, func(b gap) bool {
		if b.from == from && b.alone {
			arrived = append(arrived, b.number)
		}
		return b.from == from
	})
	t.gaps.unconfirmed.Store(slices.ContainsFunc(t.gaps.all, func(b gap) bool { return b.from != "" }))
	t.mu.Unlock()
	for _, number := range arrived {
		t.HasAll(number)
	}
}

// lose remembers a stream that its client may have to ask for. t.mu is held.
func (t *Streams) lose(b gap, besides bool) {
	b.at = time.Now()
	if besides {
		b.asked = b.at
	}
	t.gaps.add(b)
	t.wakeStandalone()
}

// wakeStandalone tells the reader of the standalone stream, if there is one, that there may
// be calls to continue. t.mu is held.
func (t *Streams) wakeStandalone() {
	if r := t.streams[Standalone].reader; r != nil {
		r.lostChanged.Store(true)
		r.wake()
	}
}

// LostChanged says, once, that [Streams.Lost] may return more than when it was last called. The reader is the standalone stream's.
func (r *Reader) LostChanged() bool { return r.lostChanged.Swap(false) }

// Cut notes that the connection of a call's client broke before anything was written to it. If the client is not back, hear is called.
func (t *Streams) Cut(number uint64, like likeness.Likeness, hear func()) {
	t.loses(number, func() bool {
		if t.streams[number].reader != nil {
			return false
		}
		if !t.carrier {
			t.lose(gap{number: number, kind: gapNoID, since: time.Now(), like: like}, false)
		}
		return true
	}, hear)
}

// Restored notes that the client of a call may have lost it with the node that it was connected to. over says that the call
// has ended.
func (t *Streams) Restored(number uint64, over bool) {
	kind := gapPartial
	if over {
		kind = gapUnknown
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lose(gap{number: number, kind: kind, since: time.Now()}, false)
}

// likeness returns the likeness of a call with a gap; zero if its stream has none.
func (g *gaps) likeness(number uint64) (l likeness.Likeness) {
	for i := range g.all {
		if g.all[i].number == number {
			l = g.all[i].like
		}
	}
	return l
}
