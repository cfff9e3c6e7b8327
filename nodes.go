package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/server"
)

// join makes the handler a node of those that share its store, and prepares to watch whether
// the store answers.
func (h *Handler) join(o *Options) {
	var failed error
	store, logger := o.Store, o.Logger
	if bus, ok := store.(cluster.Bus); ok && !o.Stateless {
		opts := cluster.Options{Logger: logger, Door: o.Role == RoleDoor, Load: func() (l cluster.Load) {
			l.Calls, l.Sessions = h.sessions.Load()
			return l
		}}
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
	if store, ok := store.(pinger); ok {
		h.health = newHealth(store, failed)
	}
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

// health watches the store of a handler.
type health struct {
	store  pinger
	failed error // the handler could not join the other nodes

	ctx  context.Context // done: stop
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex
	answered time.Time // when the store last answered
	why      error     // of the last ping
	draining bool
}

func newHealth(store pinger, failed error) *health {
	h := &health{store: store, failed: failed, answered: time.Now()}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
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

// start begins to ping the store. It calls back when the store answers again after it was away:
// other nodes may have taken this node's sessions over meanwhile.
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
	err := h.store.Ping(ctx)
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

// close stops the watch and waits for it.
func (h *health) close() {
	h.stop()
	h.work.Wait()
}
