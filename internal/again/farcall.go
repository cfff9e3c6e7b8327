package again

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file attaches a request to a stranded call of another node, which lends the call.

// Hint notes that a node knows a stranded call, by a name.
func (t *Calls) Hint(node string, keys []byte, name uint64) {
	for key := range likeness.EachKey(keys) {
		t.hints.Add(&likeness.Hint{Key: key, Node: node, Name: name, Since: time.Now()}, t.o.Keep)
	}
}

// Unhint notes that a node no longer knows a call. It reports whether the call was known.
func (t *Calls) Unhint(node string, keys []byte, name uint64) (known bool) {
	for key := range likeness.EachKey(keys) {
		known = t.hints.Forget(key, node, name) || known
		known = t.far.Forget(key, node, name) || known
	}
	return known
}

// hints returns the hints of other nodes at calls that the request may make again, the stranded ones first. Of a node's calls in flight it has
// one hint, as the node is asked for all at once.
func (a *attachment) hints() []likeness.Hint {
	t := a.t
	if t.hints.Kept() == 0 && t.far.Kept() == 0 { // as a rule
		return nil
	}
	keys := a.keysFar()
	all := t.hints.Find(keys, t.o.Keep)
	for _, h := range t.far.Find(keys, longestFlight) {
		switch i := slices.IndexFunc(all, func(other likeness.Hint) bool { return other.Node == h.Node }); {
		case i < 0:
			all = append(all, h)
		case all[i].InFlight && h.Near:
			all[i] = h
		}
	}
	return all
}

// keysFar returns the keys by which other nodes may know the request's call.
func (a *attachment) keysFar() (keys likeness.Keys) {
	s := a.c.In()
	keys = keysIn(&a.st.like, s)
	keys[likeness.Whole] = likeness.Digest{} // it holds on this node only
	if s.Modern() == "" {
		keys[likeness.Asked] = likeness.Digest{}
	}
	return keys
}

// isFar reports whether another node may know the stranded call that the request makes again.
func (a *attachment) isFar() bool {
	return a.t.peers != nil && len(a.hints()) > 0 && !a.t.stranded.isLent(a.st) // else the other node's call may be this one
}

// lostWithin is how long a request waits for a stranded call of a node that does not answer: another node may take its session over.
const lostWithin = 3 * time.Second

// newQuery returns the query for the calls of other nodes that the request makes again.
func (a *attachment) newQuery(m *jsonrpc.Message) *loanQuery {
	talk, client := a.c.In().Places()
	return &loanQuery{Name: rand.Text(), ID: a.known, Request: m.Raw, Talk: talk[:], Client: client[:], Safe: a.safe}
}

// borrow answers the request with the messages of a stranded call of another node, or ends it, and reports whether it has. If not, the caller has to deliver the request.
func (a *attachment) borrow(ctx context.Context, msg *jsonrpc.Message) bool {
	q := a.newQuery(msg)
	asked := make(map[likeness.Hint]bool)
	var lost *likeness.Hint // of a node that may be lost
	wait := time.Time{}
	for ctx.Err() == nil {
		alike := false // another call is like the request, or was until just now
		for _, h := range a.hints() {
			if asked[h] {
				continue
			}
			asked[h] = true
			says, err := a.borrowFrom(ctx, q, h.Node)
			// If two requests without a client wait for each other, one begins.
			alike = alike || err == nil && (says != loanWaits || a.st.flight == nil || h.Name < a.st.flight.name)
			switch {
			case says == loanTaken:
				return true
			case err != nil && a.isMeant(&h): // the node may be lost, and the call with it
				lost, wait = &h, time.Now().Add(lostWithin)
			case err != nil && h.InFlight:
				if !a.safe { // if the node had borrowed the call, that is about to be stranded at its own node
					wait = time.Now().Add(lostWithin)
				}
				a.t.far.Drop(h)
			case !h.InFlight:
				a.t.hints.Drop(h)
			}
		}
		switch {
		case alike && a.ends():
			return true
		case time.Now().Before(wait):
		case lost == nil:
			return false
		default:
			return a.lose(ctx, q, lost)
		}
		pause(ctx, strandsWithin)
		if a.find() { // the session has come here
			a.follow(ctx)
			return true
		}
	}
	return false
}

// lose ends the request with its outcome unknown, as the node that has told of its call is lost, and no node has taken the call over. It is false if the
// node is back, or another request has ended so.
func (a *attachment) lose(ctx context.Context, q *loanQuery, lost *likeness.Hint) bool {
	says, err := a.borrowFrom(ctx, q, lost.Node)
	if says == loanTaken {
		return true
	}
	var keys []byte
	for _, key := range a.keysFar() {
		keys = append(keys, key[:]...)
	}
	if err == nil || !a.t.Unhint(lost.Node, keys, lost.Name) {
		return false
	}
	a.t.peers.Unstrand(lost.Node, keys, lost.Name)
	a.begins()
	a.end(nil)
	return true
}

// isMeant reports whether the request would be attached to the call of a hint, if the hint's node were not lost. A safe request may run twice.
func (a *attachment) isMeant(h *likeness.Hint) bool {
	switch {
	case a.safe, h.InFlight && !h.Near: // the client of a call that is not near hears of it at its own node
		return false
	case h.InFlight, h.Key == a.keysFar()[likeness.Named]:
		return true
	}
	return time.Since(h.Since) <= a.t.o.AttachWithin
}

// A loanState is a node's answer to a [loanQuery].
type loanState uint8

const (
	loanNone  loanState = iota
	loanTaken           // the request has ended: mostly with the answer of the lent call
	loanWaits           // the node has only calls that have not begun and have no client: said only if the request has no client either
)

// borrowFrom answers the request with the messages of a node's call, if the node has it. If the request is cancelled the node is told before the connection to it ends.
func (a *attachment) borrowFrom(ctx context.Context, q *loanQuery, node string) (loanState, error) {
	to, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var over atomic.Bool
	defer context.AfterFunc(ctx, func() {
		if !over.Load() {
			a.givenBack(q, node)
			time.AfterFunc(a.t.o.Timeout, stop) // the node may get the query later than that
		}
	})()
	body, err := a.askFor(to, q, node)
	switch {
	case body != nil:
		defer func() { _ = body.Close() }()
	case ctx.Err() != nil:
		return loanTaken, err
	default:
		return loanNone, err
	}
	for begun := false; ; {
		kind, data, err := readFrame(body)
		if kind == frameWaits && err == nil {
			over.Store(true)
			return loanWaits, nil
		}
		if !begun {
			begun = true
			a.of = &stranded{}
			a.begins()
			// The call's node takes it for stranded if this node is lost. A request of the same client at a third node finds it here.
			a.t.goesFar(a.st)
			a.t.Tell()
		}
		over.Store(err != nil || kind != frameMessage && kind != frameTaken)
		switch {
		case ctx.Err() != nil:
			if !over.Load() { // before the connection ends, and once the node has the query
				a.givenBack(q, node)
			}
			return loanTaken, nil
		case err != nil, kind == frameUnknown:
			a.end(nil)
			return loanTaken, nil
		case kind == frameTaken && len(data) == 1 && data[0] < byte(likeness.Reasons):
			a.c.Attached(likeness.Reason(data[0]), "on node "+node)
		case kind == frameAnswer:
			a.end(data)
			return loanTaken, nil
		case kind == frameMessage, kind == frameLast:
			if a.say(&stream.Entry{Data: data, Last: kind == frameLast}) {
				return loanTaken, nil
			}
		}
	}
}

// askFor asks a node for the call, again if the request's client leaves meanwhile. The node then does not wait for a call without a client: the two would wait for each other.
func (a *attachment) askFor(ctx context.Context, q *loanQuery, node string) (io.ReadCloser, error) {
	for {
		q.Left = a.hasLeft(a.st.back.Load())
		query, err := json.Marshal(q)
		if err != nil {
			return nil, nil
		}
		if q.Left {
			return a.t.peers.Borrow(ctx, node, query)
		}
		once, stop := context.WithCancel(ctx)
		unwatch := a.whenLeft(stop)
		body, err := a.t.peers.Borrow(once, node, query)
		if left := unwatch(); !left || ctx.Err() != nil {
			context.AfterFunc(ctx, stop) // the body is read until then
			return body, err
		}
		stop()
		if body != nil {
			_ = body.Close()
		}
	}
}

// withdrawFar has another node withdraw the call that the request, which was cancelled, makes again. q is nil if no other node knew one.
func (a *attachment) withdrawFar(q *loanQuery) {
	if q == nil {
		return
	}
	query, err := json.Marshal(q)
	if err != nil {
		return
	}
	for _, h := range a.hints() {
		if a.withdrawAt(q, query, h.Node) {
			return
		}
	}
}

// withdrawAt borrows the call from a node, and has that node withdraw it. It reports whether the node has lent one.
func (a *attachment) withdrawAt(q *loanQuery, query []byte, node string) bool {
	ctx, stop := context.WithTimeout(a.t.o.Work.Context(), a.t.o.Timeout)
	defer stop()
	body, err := a.t.peers.Borrow(ctx, node, query)
	if err != nil || body == nil {
		return false
	}
	defer func() { _ = body.Close() }()
	kind, _, err := readFrame(body)
	if err != nil || kind != frameTaken {
		return false
	}
	a.givenBack(q, node)
	return true
}

// givenBack is given for a call of another node, which it tells.
func (a *attachment) givenBack(q *loanQuery, node string) {
	if a.c.In().IsClosed() {
		return
	}
	query, err := json.Marshal(&loanQuery{Name: q.Name, Cancel: true})
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(a.t.o.Work.Context(), a.t.o.Timeout)
	defer stop()
	if _, err := a.t.peers.Borrow(ctx, node, query); err != nil {
		a.t.o.Logger.Warn("a call on another node was not cancelled", "node", node, "error", err)
	}
}
