// Package logtest is the suite that every [durable.Log] passes, and an engine in
// memory, with faults, for the tests of stores over a Log.
package logtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/stream"
)

// Faults say how often an engine fails, as parts of 1, each operation by itself.
// The outcome of a failed operation is unknown to its caller.
type Faults struct {
	Before  float64       // the operation fails and has no effect
	After   float64       // the operation takes effect, and the answer is lost
	Late    float64       // the answer is lost, and the operation takes effect some operations later
	Latency time.Duration // most that an operation takes; 0: they take no time

	// Behind is how often Frames does not show the last frame, if its Append has not
	// returned success. This is no failure.
	Behind float64
}

// Options of an engine. The zero value of each field stands for the default given
// with it.
type Options struct {
	Seed      uint64        // of the faults
	Retention time.Duration // of frames; 1 hour
	MaxFrame  int           // in bytes; 1 MiB
	Faults    Faults        // none
}

// An Engine is an engine in memory, with any number of handles open on it. The seed
// and the order of the operations decide the faults. Its methods may be called
// concurrently.
type Engine struct {
	o Options

	mu      sync.Mutex
	rng     *rand.Rand
	faults  Faults
	ahead   time.Duration // of the real clock
	full    bool
	values  map[string]value
	logs    map[string][]frame
	version uint64 // last given to a value
	place   uint64 // last given to a frame
	late    []func()
	counts  map[string]int
	writes  map[string]int // by the operation and the key
	nodes   map[string]*Handle
	opened  int
}

type value struct {
	data    []byte
	version uint64
	put     time.Time
	expires time.Time
}

type frame struct {
	at   uint64
	put  time.Time
	data []byte
	told bool // its Append has returned success
}

// New makes an empty engine.
func New(o Options) *Engine {
	if o.Retention <= 0 {
		o.Retention = time.Hour
	}
	if o.MaxFrame <= 0 {
		o.MaxFrame = 1 << 20
	}
	return &Engine{
		o:      o,
		rng:    rand.New(rand.NewPCG(o.Seed, 1)),
		faults: o.Faults,
		values: make(map[string]value),
		logs:   make(map[string][]frame),
		counts: make(map[string]int),
		writes: make(map[string]int),
		nodes:  make(map[string]*Handle),
	}
}

// Open returns a new node's handle.
func (e *Engine) Open() *Handle {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opened++
	h := &Handle{e: e, name: fmt.Sprintf("node-%d", e.opened)}
	e.nodes[h.name] = h
	return h
}

// Advance sets the engine's clock ahead by d. Otherwise it runs as the real clock does.
func (e *Engine) Advance(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ahead += d
}

// SetFaults changes the faults from now on.
func (e *Engine) SetFaults(f Faults) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = f
}

// SetFull sets whether the engine refuses frames because it is full.
func (e *Engine) SetFull(full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full = full
}

// Wipe makes the engine forget all that it keeps.
func (e *Engine) Wipe() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.values)
	clear(e.logs)
}

// Lose drops the frame with index n under a key, as no engine may.
func (e *Engine) Lose(key string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[key]
	e.logs[key] = append(l[:n:n], l[n+1:]...)
}

// Count returns how many operations of a name ("Append", "Put", …) all handles have
// made.
func (e *Engine) Count(op string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[op]
}

// CountOf returns how many Puts or Appends (op) concerned keys that contain a text.
func (e *Engine) CountOf(op, text string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, of := range e.writes {
		if strings.HasPrefix(key, op+" ") && strings.Contains(key, text) {
			n += of
		}
	}
	return n
}

// Kept returns the number of frames under a key.
func (e *Engine) Kept(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.log(key))
}

// now is called with the engine locked.
func (e *Engine) now() time.Time { return time.Now().Add(e.ahead) }

// log returns the frames that are kept under a key. The engine is locked.
func (e *Engine) log(key string) []frame {
	l, now := e.logs[key], e.now()
	n := 0
	for n < len(l) && now.Sub(l[n].put) >= e.o.Retention {
		n++
	}
	if n > 0 {
		l = l[n:]
		e.logs[key] = l
	}
	return l
}

// value returns a key's value, if it has not expired. The engine is locked.
func (e *Engine) value(key string) (value, bool) {
	v, ok := e.values[key]
	if ok && !v.expires.After(e.now()) {
		delete(e.values, key)
		return value{}, false
	}
	return v, ok
}

// do carries out one operation of a handle, or lets it fail. act is called with
// the engine locked, once, before or after do returns, or never.
func (e *Engine) do(ctx context.Context, h *Handle, op string, act func()) error {
	if err := e.pause(ctx); err != nil {
		return unavailable(op, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts[op]++
	if h.closed || h.cut {
		return unavailable(op, context.DeadlineExceeded)
	}
	if len(e.late) > 0 && e.rng.IntN(4) == 0 {
		first := e.late[0]
		e.late = e.late[1:]
		first()
	}
	x := e.rng.Float64()
	switch f := e.faults; {
	case x < f.Before:
		return unavailable(op, context.DeadlineExceeded)
	case x < f.Before+f.After:
		act()
		return unavailable(op, context.DeadlineExceeded)
	case x < f.Before+f.After+f.Late:
		if op != "Get" && op != "List" && op != "Frames" {
			e.late = append(e.late, act)
		}
		return unavailable(op, context.DeadlineExceeded)
	}
	act()
	return nil
}

// pause waits for as long as an operation takes.
func (e *Engine) pause(ctx context.Context) error {
	e.mu.Lock()
	d := e.faults.Latency
	if d > 0 {
		d = time.Duration(e.rng.Int64N(int64(d)))
	}
	e.mu.Unlock()
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func unavailable(op string, cause error) error {
	return fmt.Errorf("%w: %s: %w", stream.ErrUnavailable, op, cause)
}

// put sets a value. The engine is locked.
func (e *Engine) put(key string, was uint64, data []byte, ttl time.Duration) (uint64, error) {
	if len(data) > e.o.MaxFrame {
		return 0, stream.ErrTooLarge
	}
	if v, _ := e.value(key); v.version != was {
		return 0, stream.ErrConflict
	}
	e.version++
	now := e.now()
	e.values[key] = value{data: data, version: e.version, put: now, expires: now.Add(ttl)}
	return e.version, nil
}

// append adds a frame. The engine is locked.
func (e *Engine) append(key string, last uint64, data []byte) (uint64, error) {
	l := e.log(key)
	had := uint64(0)
	if len(l) > 0 {
		had = l[len(l)-1].at
	}
	switch {
	case len(data) > e.o.MaxFrame:
		return 0, stream.ErrTooLarge
	case had != last:
		return had, stream.ErrConflict
	case e.full:
		return 0, stream.ErrFull
	}
	e.place++
	e.logs[key] = append(l, frame{at: e.place, put: e.now(), data: data})
	return e.place, nil
}

// tell notes that the Append of a frame returns success.
func (e *Engine) tell(key string, at uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[key]
	for i := len(l) - 1; i >= 0 && l[i].at >= at; i-- {
		l[i].told = l[i].told || l[i].at == at
	}
}

// seen returns the frames of a key that a reader sees. The engine is locked.
func (e *Engine) seen(key string) []frame {
	l := slices.Clone(e.log(key))
	if n := len(l); n > 0 && !l[n-1].told && e.rng.Float64() < e.faults.Behind {
		return l[:n-1]
	}
	return l
}

// list returns the keys with a prefix. The engine is locked.
func (e *Engine) list(prefix string) []string {
	var keys []string
	for key := range e.values {
		if _, ok := e.value(key); ok && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}
