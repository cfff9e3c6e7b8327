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

// Options say what a store keeps. The zero value of each field stands for the
// default given with it.
type Options struct {
	Keep       time.Duration // how long a finished stream is kept; 10 minutes
	SessionTTL time.Duration // how long a session lives that nobody uses; 30 minutes
	Patience   time.Duration // how long an append is repeated while its outcome is not known; 30 s

	// What one node keeps in its memory of the sessions that it owns.
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

// recordTTL is how long the engine keeps a session's record that nobody renews. An
// owner renews it three times in the SessionTTL, so the rest is for a process that
// sleeps, and for an engine's clock that jumps ahead (an hour, where the TTL is half
// of one): as long as the record says whose the session is, what else has expired is
// appended again. Sessions that end are removed at once.
func (o *Options) recordTTL() time.Duration { return 3 * o.SessionTTL }

// A Store is a [shared.Store] over a Log, and the Log's [cluster.Bus]. What the
// sessions that are owned here say is also in memory, and read from there.
//
// What the engine keeps of a session is its record, and one sequence of frames.
// The record says who owns it, and changes hands by comparing versions. A frame is
// appended after the last one that its writer knows, or not at all: whoever takes
// a session over appends one, and from then on every append of the last owner
// fails. See frame for what they hold.
//
// Locks: mu guards the map and is held for no other; install orders who replaces
// what is in memory of a session. Whoever has a session's turn writes to the engine
// for it, and no lock is held meanwhile.
type Store struct {
	cluster.Bus
	log   timedLog
	o     Options
	front *memory.Store
	zero  time.Time // what its clock counts from: long before anything that is kept

	mu       sync.RWMutex
	sessions map[stream.SessionKey]*session
	install  sync.Mutex

	frames sync.Pool // of *[]byte
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
	heavy  chan *session // whose frames are to be trimmed
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

// Crowded reports whether the engine has no room but for what has begun: nothing more
// should. It is as of the last Ping; an engine that can't tell never is.
func (st *Store) Crowded() bool {
	log, ok := st.log.Log.(interface{ Crowded() bool })
	return ok && log.Crowded()
}

// Alone reports whether the engine is this process's only.
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

// Says reports whether anything is kept of a stream but the standalone one in a session that is owned here.
func (st *Store) Says(key stream.SessionKey) bool { return st.front.Says(key) }

// Watch implements [stream.Store], for the sessions that are owned here.
func (st *Store) Watch(id stream.ID, ready chan<- struct{}) (stop func(), err error) {
	return st.front.Watch(id, ready)
}

// Pressed reports whether who writes faster than its reader reads should wait, so that
// there is room in memory.
func (st *Store) Pressed(lease stream.Lease) bool { return st.front.Pressed(lease) }

// Tight reports whether who writes should wait until its reader has all, and [Store.Shed]
// what that has read.
func (st *Store) Tight(lease stream.Lease) bool { return st.front.Tight(lease) }

// Shed gives back, while room in memory is tight, what a stream said up to an entry.
func (st *Store) Shed(id stream.ID, upTo uint64) { st.front.Shed(id, upTo) }

// Acknowledge implements [stream.Store], for the sessions that are owned here. The
// engine keeps the stream for as long as others, for whoever takes its session over.
func (st *Store) Acknowledge(id stream.ID) { st.front.Acknowledge(id) }

// Count implements [stream.Store], for what this node keeps in memory.
func (st *Store) Count(lease stream.Lease, tenant string) { st.front.Count(lease, tenant) }

// Hold counts what a session that is owned here holds in this node's memory, if there is room.
func (st *Store) Hold(lease stream.Lease, n int64) bool { return st.front.Hold(lease, n) }

// MustHold is Hold, whether there is room or not.
func (st *Store) MustHold(lease stream.Lease, n int64) { st.front.MustHold(lease, n) }

// Held returns how many bytes sessions hold in this node's memory.
func (st *Store) Held() int64 { return st.front.Held() }

// Keys of the engine's.
func recordKey(key stream.SessionKey) string { return "s." + string(key) }
func framesKey(key stream.SessionKey) string { return "e." + string(key) }

const recordPrefix = "s."

// checkKey reports whether an engine can keep what is under a session's key.
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

// How long one question to the engine may take before it is asked again, and the
// pauses between.
const (
	attempt = 3 * time.Second
	minWait = 5 * time.Millisecond
	maxWait = 500 * time.Millisecond
)

// A retry is how often, and for how long, something is asked again.
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

// once gives one question its time.
func (r *retry) once() (context.Context, context.CancelFunc) {
	end := time.Now().Add(attempt)
	if end.After(r.end) {
		end = r.end
	}
	return context.WithDeadline(r.ctx, end)
}

// again waits until it is time to ask again, and reports whether there is time left:
// there is none once the store is closed.
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

// ask asks until the answer is known.
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
