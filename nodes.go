package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/outagelog"
	"holdfast/internal/server"
	"holdfast/stream"
)

// join makes the handler one of the nodes that share its store.
func (h *Handler) join(o *Options) {
	var failed error
	store, logger := o.Store, o.Logger
	if bus, ok := store.(cluster.Bus); ok && !o.Stateless {
		opts := cluster.Options{Logger: logger, Door: o.Role == RoleDoor, Load: func() (l cluster.Load) {
			l.Calls, l.Sessions = h.sessions.Load()
			return l
		}}
		if h.health != nil {
			opts.Bus = h.health.bus.set
		}
		if h.node, failed = cluster.Join(bus, opts); failed != nil {
			logger.Error("this node does not see others, and they don't see it", "error", failed)
		}
	}
	switch role := serverRole(o); {
	case role == server.RoleBoth && o.Role != RoleBoth:
		logger.Error("Options.Role is not one that is known: this node does everything", "role", o.Role)
	case role != server.RoleBoth && h.node == nil:
		logger.Error("a door or a worker needs a Store that nodes share: this one serves nobody", "role", o.Role)
	}
	if h.health != nil {
		h.health.failed = failed
	}
}

// watchStore prepares to watch whether the store answers. If it does not, this is logged here once, instead of by each
// request that fails.
func (h *Handler) watchStore(o *Options) {
	store, ok := o.Store.(pinger)
	if !ok || o.Stateless {
		return
	}
	h.health = newHealth(store, o.Logger, func() int {
		calls, _ := h.sessions.Load()
		return calls
	})
	o.Logger = slog.New(h.health.away.Handler(o.Logger.Handler(), func(err error) bool {
		return errors.Is(err, stream.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	}))
}

// serverRole returns the role that Options.Role names.
func serverRole(o *Options) server.Role {
	switch o.Role {
	case RoleDoor:
		return server.RoleDoor
	case RoleWorker:
		return server.RoleWorker
	}
	return server.RoleBoth
}

// Ready returns nil if the handler accepts requests, and otherwise an error that says why a
// load balancer should send them elsewhere: the handler shuts down, its store does not
// answer, or it could not join the other nodes. It does not wait.
func (h *Handler) Ready() error {
	if h.health == nil {
		return nil
	}
	return h.health.ready()
}

// pinger is a store that can check whether its engine answers.
type pinger interface {
	Ping(ctx context.Context) error
}

// A store is pinged every pingEvery. It is away if it has not answered for awayAfter.
const (
	pingEvery = time.Second
	awayAfter = 3 * time.Second
)

// health watches the store of a handler, and tells the operator when it is away.
type health struct {
	store  pinger
	failed error // the handler could not join the other nodes
	away   *outagelog.Outage
	full   *outagelog.Outage // nil: the store logs that itself
	bus    busHealth

	ctx  context.Context // done: stop
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex
	answered time.Time // when the store last answered
	why      error     // of the last ping
	draining bool
}

// busHealth says whether messages between nodes come through. While the store is away, no message comes through; that
// has no log line of its own.
type busHealth struct {
	silent atomic.Bool
	outage *outagelog.Outage
}

// set notes that the store has stopped carrying messages between nodes (silent), or carries them again.
func (b *busHealth) set(silent bool) {
	if b.silent.Store(silent); !silent {
		b.outage.Reached()
	}
}

func newHealth(store pinger, logger *slog.Logger, calls func() int) *health {
	h := &health{store: store, answered: time.Now()}
	h.ctx, h.stop = context.WithCancel(context.Background())
	about := outagelog.Options{Logger: logger, Calls: calls, Confirm: time.Second}
	if at, ok := store.(interface{ Address() string }); ok {
		about.Attrs = []any{"store", at.Address()}
	}
	const wait = "calls wait for it for up to 30s, and if they have begun by then their outcome is unknown; new sessions are refused with status 503. If it stays away, see that it runs and that this machine reaches it (--store)"
	away := about
	away.Away, away.Still, away.Back = "the store is away: "+wait, "the store is still away: "+wait, "the store is back"
	h.away = outagelog.New(away)
	if alone, ok := store.(interface{ Alone() bool }); !ok || !alone.Alone() {
		const room = "new calls are refused with status 503, and of calls whose messages it does not take the outcome is unknown. Give it more room, or have it keep less (--keep, --session-ttl)"
		full := about
		full.Away, full.Still, full.Back = "the store is full: "+room, "the store is still full: "+room, "the store has room again"
		h.full = outagelog.New(full)
	}
	const apart = "requests for sessions of other nodes wait, or are refused with status 503. If it stays so, see that this node may publish and subscribe there"
	bus := about
	bus.Away, bus.Still, bus.Back = "the store carries no messages between nodes: "+apart, "the store still carries no messages between nodes: "+apart, "the store carries messages between nodes again"
	h.bus.outage = outagelog.New(bus)
	return h
}

// outage returns the log of requests and calls that are lost because the store is away; nil: the store is in this process.
func (h *health) outage() *outagelog.Outage {
	if h == nil {
		return nil
	}
	return h.away
}

// errDraining says that a handler shuts down.
var errDraining = errors.New("draining")

func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return errDraining
	case h.failed != nil:
		return h.failed
	case time.Since(h.answered) > awayAfter:
		return fmt.Errorf("the store does not answer: %w", cmp.Or(h.why, context.DeadlineExceeded))
	}
	return nil
}

func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

// start begins to ping the store. It calls the function back when the store answers again after it
// was away: other nodes may have taken this node's sessions over meanwhile.
func (h *health) start(back func()) {
	h.work.Go(func() {
		t := time.NewTicker(pingEvery)
		defer t.Stop()
		for {
			select {
			case <-h.ctx.Done():
				return
			case <-t.C:
			}
			if h.ping() {
				back()
			}
		}
	})
}

// ping pings the store once, and reports whether it answers again after it was away.
func (h *health) ping() (back bool) {
	ctx, cancel := context.WithTimeout(h.ctx, awayAfter)
	defer cancel()
	silent := h.bus.silent.Load()
	err := h.store.Ping(ctx)
	if h.ctx.Err() == nil {
		h.tell(err, silent)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = err
	if err != nil {
		return false
	}
	back = time.Since(h.answered) > awayAfter
	h.answered = time.Now()
	return back
}

// tell logs for the operator how a ping has ended. silent says that no message between nodes came through before the ping.
func (h *health) tell(err error, silent bool) {
	switch {
	case errors.Is(err, stream.ErrFull):
		h.full.Failed(err)
		h.away.Reached()
	case err != nil:
		h.mu.Lock()
		since := h.answered
		h.mu.Unlock()
		h.away.FailedSince(since, cause(err))
		h.bus.outage.Reached() // a silent bus has no line of its own now
	default:
		h.full.Reached()
		h.away.Reached()
		if silent && h.bus.silent.Load() {
			h.bus.outage.Failed(errSilentBus)
		}
	}
}

// cause returns an engine's own error, without the words that wrap it in [stream.ErrUnavailable].
func cause(err error) error {
	if _, why, ok := strings.Cut(err.Error(), stream.ErrUnavailable.Error()+": "); ok {
		return errors.New(why)
	}
	return err
}

// errSilentBus says that messages do not come through, although the store answers.
var errSilentBus = errors.New("the store answers, but no message of this node comes back to it")

// close stops the watch and waits for it.
func (h *health) close() {
	h.stop()
	h.work.Wait()
	h.away.Close()
	h.full.Close()
	h.bus.outage.Close()
}
