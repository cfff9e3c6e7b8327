package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// claimFor is how long a host may take to make a call again that was in flight when
// the process before this one ended. What it asks for later is meant anew.
const claimFor = 10 * time.Minute

// saveEvery is how often, at the most, it is written down where everything is, and
// aliveEvery how often that is done while calls are in flight and nothing changes.
const (
	saveEvery  = 100 * time.Millisecond
	aliveEvery = time.Minute
)

// saved is what is kept of a bridge.
type saved struct {
	fingerprint               // of the host's initialize request
	Alive       time.Time     `json:"alive"` // when the process was last there
	Conn        client.State  `json:"conn"`
	Calls       []savedFlight `json:"calls,omitempty"`
}

// savedFlight is what is kept of a call.
type savedFlight struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	fingerprint
	Left   time.Time         `json:"left,omitzero"` // since when it is an orphan
	Place  *client.CallState `json:"place,omitempty"`
	Answer json.RawMessage   `json:"answer,omitempty"`
}

// keeps says whether a call of a method must not be made twice.
func keeps(method string) bool { return !protocol.RetrySafe(method, nil) }

// goOn goes on with the session that a process before this one had. It answers the
// host's initialize request.
func (b *bridge) goOn(ctx context.Context, m jsonrpc.Message, old *saved) bool {
	state := old.Conn
	state.Calls = nil
	var orphans []*flight
	for _, c := range old.Calls {
		o := &flight{id: c.ID, method: c.Method, print: c.fingerprint, place: c.Place, left: c.Left, answer: c.Answer}
		if o.left.IsZero() {
			o.left = old.Alive
		}
		if time.Since(o.left) > claimFor || o.answer == nil && o.place == nil {
			continue
		}
		if o.answer == nil {
			state.Calls = append(state.Calls, *o.place)
		}
		orphans = append(orphans, o)
	}
	b.mu.Lock()
	b.restored = true
	for _, o := range orphans {
		b.flights[string(o.id)] = o
	}
	b.mu.Unlock()
	conn, err := b.connect(&state)
	if err != nil {
		slog.Warn("the session cannot be gone on with", "error", err)
		b.mu.Lock()
		clear(b.flights)
		b.restored = false
		b.mu.Unlock()
		return false
	}
	b.save() // which calls were found: another host may ask for one of them
	slog.Info("the session goes on", "calls in flight", len(orphans))
	b.work.Go(func() { b.greet(ctx, conn, m, state.Result) })
	return true
}

// greetWithin bounds how long the server may take to say that it has the session. A
// host that starts while the network is away is answered all the same.
const greetWithin = 3 * time.Second

// greet answers the host's initialize request. The server is asked first whether it
// still has the session: if not, another has begun when it answers.
func (b *bridge) greet(ctx context.Context, conn *client.Conn, m jsonrpc.Message, result []byte) {
	b.mu.Lock()
	f := &flight{id: b.newID(), method: "ping", inner: make(chan jsonrpc.Message, 1)}
	b.flights[string(f.id)] = f
	b.mu.Unlock()
	b.send(ctx, conn, mustParse(jsonrpc.AppendRequest(nil, f.id, f.method, nil)))
	late := time.NewTimer(greetWithin)
	defer late.Stop()
	select {
	case <-f.inner:
	case <-late.C:
		slog.Warn("the server does not answer: the host is told what it said before")
	case <-b.stop:
		return
	}
	b.mu.Lock()
	delete(b.flights, string(f.id))
	b.mu.Unlock()
	if fresh := conn.State().Result; fresh != nil {
		result = fresh
	}
	b.host.write(jsonrpc.AppendResult(nil, m.ID, result))
	b.open.Do(func() { close(b.opened) })
}

// orphan returns a call of a process before this one that asks for the same, the
// oldest of them that no other bridge has gone on with. b.mu is held.
func (b *bridge) orphan(print fingerprint) *flight {
	for {
		var found *flight
		for id, o := range b.flights {
			switch {
			case o.host != nil || o.inner != nil || print.none():
			case time.Since(o.left) > claimFor:
				delete(b.flights, id)
			case o.print.asks(print) && (found == nil || bytes.Compare(o.id, found.id) < 0):
				found = o
			}
		}
		if found == nil || b.claims.take(found.id) {
			return found
		}
		delete(b.flights, string(found.id))
	}
}

// changed says that something is to be written down.
func (b *bridge) changed() {
	if b.hurry.Load() {
		b.save()
		return
	}
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// saving writes down where everything is, whenever it is another.
func (b *bridge) saving() {
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-b.dirty:
		case <-alive.C:
		case <-b.stop:
			return
		}
		begun := time.Now()
		b.save()
		// What is long, as a server can make it, is not to be written all the time.
		select {
		case <-time.After(max(saveEvery, 9*time.Since(begun))):
		case <-b.stop:
			return
		}
	}
}

// save writes down where everything is.
func (b *bridge) save() {
	b.mu.Lock()
	conn, slot := b.conn, b.slot
	b.mu.Unlock()
	if conn == nil || slot == nil {
		return
	}
	slot.mu.Lock() // what is older must not be written over what is newer
	defer slot.mu.Unlock()
	if slot.free {
		return
	}
	state := conn.State()
	if state.Result == nil || state.Session == "" && state.Endpoint == "" {
		return // nothing can be gone on with
	}
	if err := slot.write(b.snapshot(&state)); err != nil {
		slog.Warn("state not saved", "error", err)
	}
}

// snapshot is what is to be kept. A call that the connection has done with is kept
// until the host has its answer.
func (b *bridge) snapshot(state *client.State) *saved {
	places := make(map[string]*client.CallState)
	for i := range state.Calls {
		places[string(state.Calls[i].ID)] = &state.Calls[i]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &saved{fingerprint: b.print, Alive: time.Now(), Conn: *state}
	s.Conn.Calls = nil
	for _, f := range b.flights {
		if f.print.none() {
			continue
		}
		if place := places[string(f.id)]; place != nil {
			f.place = place
		}
		if f.place != nil || f.answer != nil {
			s.Calls = append(s.Calls, savedFlight{f.id, f.method, f.print, f.left, f.place, f.answer})
		}
	}
	return s
}

// leave ends the bridge. What is kept waits for the next process; where nothing
// is, a host that says no more is answered first, and the session ended.
func (b *bridge) leave(ctx context.Context, answer bool) {
	b.mu.Lock()
	conn, slot := b.conn, b.slot
	b.mu.Unlock()
	switch {
	case conn == nil:
	case slot != nil:
		b.abandon()
		b.settle(conn)
		b.save()
		conn.Detach()
	default:
		if answer {
			b.wait(ctx)
		}
		_ = conn.Close()
	}
	close(b.stop)
	if slot != nil {
		slot.release()
	}
}

// abandon notes in the state file that the host has left its calls. The host may be
// there again already, with another bridge, which goes on with them from then on.
func (b *bridge) abandon() {
	now := time.Now()
	b.mu.Lock()
	for _, f := range b.flights {
		if f.left.IsZero() {
			f.left = now
		}
	}
	b.mu.Unlock()
	b.save()
}

// wait waits until the host waits for nothing, or leaves.
func (b *bridge) wait(ctx context.Context) {
	b.mu.Lock()
	if len(b.asked) == 0 {
		b.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	b.idle = idle
	b.mu.Unlock()
	select {
	case <-idle:
	case <-b.host.gone:
	case <-ctx.Done():
	}
}

// settleWithin bounds how long a host that leaves is waited for to take an answer,
// and the server to be told of what was cancelled.
const settleWithin = time.Second

// settle waits until answers that are on their way to the host are there, and the
// server was told of what the host has cancelled: the connection has those calls on
// record until then.
func (b *bridge) settle(conn *client.Conn) {
	late := time.After(settleWithin)
	for {
		state := conn.State()
		b.mu.Lock()
		open := b.giving > 0
		for _, c := range state.Calls {
			open = open || b.flights[string(c.ID)] == nil
		}
		b.mu.Unlock()
		if !open {
			return
		}
		select {
		case <-late:
			return
		case <-time.After(saveEvery / 10):
		}
	}
}
