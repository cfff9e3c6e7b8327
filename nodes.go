package holdfast

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"holdfast/internal/cluster"
	"holdfast/stream"
)

// join makes the handler a node of those that share its store, and begins to watch
// whether that answers.
func (h *Handler) join(store stream.Store, logger *slog.Logger, stateless bool) {
	var failed error
	if bus, ok := store.(cluster.Bus); ok && !stateless {
		if h.node, failed = cluster.Join(bus, cluster.Options{Logger: logger}); failed != nil {
			logger.Error("this node does not see others, and they don't see it", "error", failed)
		}
	}
	if pings, ok := store.(pinger); ok {
		h.health = &health{store: pings, failed: failed, quit: make(chan struct{})}
	}
}

// Ready says whether the handler takes requests: nil, or why not. Then a balancer
// should send them elsewhere. It never waits.
func (h *Handler) Ready() error {
	if h.health == nil {
		return nil
	}
	return h.health.ready()
}

// pinger is a store that can say whether its engine answers.
type pinger interface {
	Ping(ctx context.Context) error
}

// A store is asked every pingEvery, and is away when it has not answered for
// awayAfter.
const (
	pingEvery = time.Second
	awayAfter = 3 * time.Second
)

// health is what is known of a handler's store.
type health struct {
	store  pinger
	failed error // the handler could not join the others

	quit chan struct{}
	work sync.WaitGroup
	once sync.Once // closes quit

	mu       sync.Mutex
	answered time.Time // when the store last did
	why      error     // it does not
	draining bool
}

// errDraining says that a handler is about to end.
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

// start begins to ask the store. back is called when it answers again after it was
// away: others may have taken this node for lost.
func (h *health) start(back func()) {
	h.answered = time.Now()
	h.work.Go(func() {
		t := time.NewTicker(pingEvery)
		defer t.Stop()
		for {
			select {
			case <-h.quit:
				return
			case <-t.C:
			}
			if h.ask() {
				back()
			}
		}
	})
}

// ask asks the store, and says whether it is back.
func (h *health) ask() (back bool) {
	ctx, stop := context.WithTimeout(context.Background(), awayAfter)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-h.quit:
			stop()
		case <-ended:
		}
	}()
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

func (h *health) stop() {
	h.once.Do(func() { close(h.quit) })
	h.work.Wait()
}

// packToken makes what another node is told of who makes a request: what the
// go-sdk's auth middleware has found out.
func packToken(ctx context.Context) []byte {
	t := auth.TokenInfoFromContext(ctx)
	if t == nil {
		return nil
	}
	text, err := json.Marshal(t)
	if err != nil { // what a verifier put into Extra is not for others
		bare := *t
		bare.Extra = nil
		text, _ = json.Marshal(&bare)
	}
	return text
}

// unpackToken puts it into the context of the request there, for the server's
// handlers. Only the middleware can do that, so it is given a token that was
// checked already.
func unpackToken(r *http.Request, data []byte) *http.Request {
	t := new(auth.TokenInfo)
	if json.Unmarshal(data, t) != nil {
		return r
	}
	expires := t.Expiration
	verify := func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		t.Expiration = time.Time{} // it may pass on the way
		return t, nil
	}
	known := r
	take := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	carrier := r.Clone(r.Context())
	carrier.Header = http.Header{"Authorization": {"Bearer known"}}
	take(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { known = known.WithContext(r.Context()) })).
		ServeHTTP(nowhere{}, carrier)
	t.Expiration = expires
	return known
}

// nowhere is an answer that nobody gets.
type nowhere struct{}

func (nowhere) Header() http.Header            { return http.Header{} }
func (nowhere) WriteHeader(int)                {}
func (nowhere) Write(text []byte) (int, error) { return len(text), nil }
