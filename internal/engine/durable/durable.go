package durable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/defaults"
	"holdfast/internal/engine/memory"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// Options of a store. The zero value of each field stands for the default given
// with it.
type Options struct {
	Keep       time.Duration // how long a finished stream is kept; 10 minutes
	SessionTTL time.Duration // how long a session is kept without use; 30 minutes
	Patience   time.Duration // how long an append is repeated while its outcome is not known; 30 s

	// Limits of a node's memory for the sessions that it owns.
	StreamBytes  int64 // most bytes of one stream; 16 MiB
	SessionBytes int64 // most bytes of one session; 64 MiB
	TotalBytes   int64 // most bytes of all sessions; 1 GiB
	TenantBytes  int64 // most bytes of one tenant; three quarters of TotalBytes

	Address string       // of the engine, for the operator: without secrets
	Logger  *slog.Logger // slog.Default()
}

func (o Options) withDefaults() Options {
	def := func(v *time.Duration, to time.Duration) {
		if *v <= 0 {
			*v = to
		}
	}
	def(&o.Keep, 10*time.Minute)
	def(&o.SessionTTL, defaults.SessionTTL)
	def(&o.Patience, 30*time.Second)
	if o.SessionBytes <= 0 {
		o.SessionBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// recordTTL is how long the engine keeps a session's record that its owner does not
// renew. An owner renews it three times in the SessionTTL. The rest is for a process
// that sleeps, and for an engine's clock that jumps ahead (an hour, where the TTL is
// half of one): as long as the record names an owner, that owner appends expired
// frames again. Sessions that end are removed at once.
func (o *Options) recordTTL() time.Duration { return 3 * o.SessionTTL }

// A Store is a [shared.Store] over a Log, and the Log's [cluster.Bus]. The streams
// of sessions that are owned here are also in memory, and are read there.
//
// The engine keeps a record of a session, and one sequence of frames. The record
// names the owner; a node becomes the owner by a Put over the version that it has
// read. A frame is appended after the last one that its writer knows, or not at
// all: a node that takes a session over appends a frame, and from then on every
// append of the last owner fails. frame.go has their encoding.
//
// Locks: mu guards the map, and no other lock is taken under it; install serializes
// replacements of a session in memory. The goroutine that has a session's turn
// writes to the engine for it, and holds no lock meanwhile.
type Store struct {
	cluster.Bus
	log   timedLog
	o     Options
	front *memory.Store
	zero  time.Time // where its clock begins: long before the oldest frame that is kept

	mu       sync.RWMutex
	sessions map[stream.SessionKey]*session
	install  sync.Mutex

	frames sync.Pool // of *[]byte
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
	heavy  chan *session // sessions with frames to trim
	graves *graves
}

var _ shared.Store = (*Store)(nil)

// New returns a store over an engine, which it closes.
func New(log Log, o Options) *Store {
	o = o.withDefaults()
	st := &Store{
		Bus: log,
		log: timedLog{Log: log},
		o:   o,
		front: memory.New(memory.Options{
			Keep: o.Keep, StreamBytes: o.StreamBytes, SessionBytes: o.SessionBytes, TotalBytes: o.TotalBytes,
			TenantBytes: o.TenantBytes,
		}),
		zero:     time.Now().Add(-1000 * time.Hour),
		sessions: make(map[stream.SessionKey]*session),
		heavy:    make(chan *session, 64),
		graves:   &graves{added: make(chan struct{}, 1)},
	}
	st.frames.New = func() any { return new([]byte) }
	st.ctx, st.stop = context.WithCancel(context.Background())
	st.work.Go(st.refreshAll)
	st.work.Go(st.sayMarking)
	for range diggers {
		st.work.Go(st.dig)
	}
	return st
}

// Close implements [stream.Store]. It closes the engine's connection.
func (st *Store) Close() error {
	st.stop()
	st.work.Wait()
	err := st.front.Close()
	return errors.Join(err, st.log.Close())
}

// Ping reports whether the engine answers, and takes writes.
func (st *Store) Ping(ctx context.Context) error { return st.log.Ping(ctx) }

// Address is where the engine is, without secrets.
func (st *Store) Address() string { return st.o.Address }

// Crowded reports whether the engine has room only for calls that have begun, so that no
// more should begin. It is as of the last Ping, and false for an engine that cannot tell.
func (st *Store) Crowded() bool {
	log, ok := st.log.Log.(interface{ Crowded() bool })
	return ok && log.Crowded()
}

// Alone reports whether only this process uses the engine.
func (st *Store) Alone() bool {
	log, ok := st.log.Log.(interface{ Alone() bool })
	return ok && log.Alone()
}

// Kept returns how many bytes are kept in this node's memory, and how many may be.
func (st *Store) Kept() (bytes, most int64) { return st.front.Kept() }

// StreamBytes is how many bytes of one stream are kept at the most.
func (st *Store) StreamBytes() int64 { return st.front.StreamBytes() }

// Read implements [stream.Store], for the sessions that are owned here.
func (st *Store) Read(ctx context.Context, after stream.Cursor, buf []stream.Entry) ([]stream.Entry, error) {
	return st.front.Read(ctx, after, buf)
}

// Bounds implements [stream.Store], for the sessions that are owned here.
func (st *Store) Bounds(ctx context.Context, id stream.ID) (oldest, next uint64, err error) {
	return st.front.Bounds(ctx, id)
}

// Says reports whether a session that is owned here has a stream other than the standalone one.
func (st *Store) Says(key stream.SessionKey) bool { return st.front.Says(key) }

// Watch implements [stream.Store], for the sessions that are owned here.
func (st *Store) Watch(id stream.ID, ready chan<- struct{}) (stop func(), err error) {
	return st.front.Watch(id, ready)
}

// Pressed reports whether a backend that writes faster than its reader reads should
// wait, so that there is room in memory.
func (st *Store) Pressed(lease stream.Lease) bool { return st.front.Pressed(lease) }

// Tight reports whether a backend should wait until its reader has all messages, and
// [Store.Shed] should drop those.
func (st *Store) Tight(lease stream.Lease) bool { return st.front.Tight(lease) }

// Shed drops the entries of a stream up to upTo from memory, while room there is tight.
func (st *Store) Shed(id stream.ID, upTo uint64) { st.front.Shed(id, upTo) }

// Acknowledge implements [stream.Store], for the sessions that are owned here. The
// engine keeps the stream for as long as others, for a node that takes its session over.
func (st *Store) Acknowledge(id stream.ID) { st.front.Acknowledge(id) }

// Count implements [stream.Store], for the memory of this node.
func (st *Store) Count(lease stream.Lease, tenant string) { st.front.Count(lease, tenant) }

// Hold counts n more bytes that a session that is owned here holds in this node's memory, and
// reports whether there is room.
func (st *Store) Hold(lease stream.Lease, n int64) bool { return st.front.Hold(lease, n) }

// MustHold is Hold, whether there is room or not.
func (st *Store) MustHold(lease stream.Lease, n int64) { st.front.MustHold(lease, n) }

// Held returns how many bytes sessions hold in this node's memory.
func (st *Store) Held() int64 { return st.front.Held() }

// Keys of the engine.
func recordKey(key stream.SessionKey) string { return "s." + string(key) }
func framesKey(key stream.SessionKey) string { return "e." + string(key) }

const recordPrefix = "s."

// checkKey returns an error for a session's key that an engine cannot have in its keys.
func checkKey(key stream.SessionKey) error {
	ok := key != "" && len(key) <= 190
	for _, c := range []byte(key) {
		ok = ok && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_')
	}
	if !ok {
		return fmt.Errorf("session key %.200q: want A-Z a-z 0-9 - _", key)
	}
	return nil
}

// How long an attempt of a request to the engine may take, and the pauses between.
const (
	attempt = 3 * time.Second
	minWait = 5 * time.Millisecond
	maxWait = 500 * time.Millisecond
)

// A retry paces the attempts of a request to the engine, until its end.
type retry struct {
	ctx  context.Context
	quit <-chan struct{}
	end  time.Time
	wait time.Duration
}

// retry begins to count the store's patience.
func (st *Store) retry(ctx context.Context) retry {
	return retry{ctx: ctx, quit: st.ctx.Done(), end: time.Now().Add(st.o.Patience), wait: minWait}
}

// once returns the context of one attempt.
func (r *retry) once() (context.Context, context.CancelFunc) {
	end := time.Now().Add(attempt)
	if end.After(r.end) {
		end = r.end
	}
	return context.WithDeadline(r.ctx, end)
}

// again waits until the next attempt is due, and reports whether there is time for
// it: not once the store is closed.
func (r *retry) again() bool {
	wait := r.wait/2 + rand.N(r.wait)
	r.wait = min(2*r.wait, maxWait)
	if r.ctx.Err() != nil || time.Until(r.end) < wait {
		return false
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
	case <-r.quit:
	}
	return false
}

// Sync waits until everything that was acknowledged survives a loss of power, if the engine
// can say that (package stream).
func (st *Store) Sync(ctx context.Context) error {
	if log, ok := st.log.Log.(interface {
		Sync(ctx context.Context) error
	}); ok {
		done := st.log.timed("sync")
		err := st.ask(ctx, log.Sync)
		done(err)
		return err
	}
	return nil
}

// ask repeats a question to the engine until the outcome is known or the time is over.
func (st *Store) ask(ctx context.Context, question func(context.Context) error) error {
	r := st.retry(ctx)
	for {
		c, cancel := r.once()
		err := question(c)
		cancel()
		if !errors.Is(err, stream.ErrUnavailable) || !r.again() {
			return err
		}
	}
}
