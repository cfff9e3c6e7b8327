// Package webhook sends completion webhooks: POSTs that tell a client's receiver how a
// request has ended, signed as Standard Webhooks 1.0.0 specifies, and retried.
//
// The public package holdfast/webhook has the options. docs/decisions/0010-webhooks.md says which URLs are refused, and what webhooks
// do not promise.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	options "holdfast/webhook"
)

// An Event is a request that has ended.
type Event struct {
	URL       string    // of the receiver; it may hold secrets and is not logged
	RequestID []byte    // raw JSON, as the client sent it
	Failed    bool      // its response is an error
	Time      time.Time // when it ended
	// Key is the same in all events of this request, on any node, and in no other event; "": there is only one event.
	Key string
}

// longestID bounds a request's id, in bytes. (Standard Webhooks: payloads smaller than 20 KB.)
const longestID = 4 << 10

// payload returns the body of an event's POST.
func (e *Event) payload() ([]byte, error) {
	if len(e.RequestID) > longestID {
		return nil, fmt.Errorf("the request's id is longer than %d bytes", longestID)
	}
	type data struct {
		RequestID json.RawMessage `json:"requestId"`
		Status    string          `json:"status"`
	}
	status := "completed"
	if e.Failed {
		status = "failed"
	}
	return json.Marshal(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      data      `json:"data"`
	}{"mcp.request.ended", e.Time.UTC(), data{e.RequestID, status}})
}

// A Sender sends events. Its methods may be called concurrently. It runs
// goroutines only while it has something to send.
type Sender struct {
	opts   options.Options
	policy policy
	signer *standardwebhooks.Webhook // nil: nothing is sent
	logger *slog.Logger
	http   *http.Transport

	observer func(result string) // nil: results are not observed

	outbox  Outbox        // nil: deliveries are in memory only
	node    string        // this node's name
	keeping chan struct{} // a semaphore of mostKeeping puts

	ctx      context.Context // of the tries
	stop     context.CancelFunc
	looking  context.Context // of looks for deliveries of ended nodes
	stopLook context.CancelFunc
	work     sync.WaitGroup

	mu      sync.Mutex
	queue   queue            // the next due first
	hosts   map[string]*host // receivers of POSTs that are queued or being sent
	held    int              // all deliveries: queued, parked, being sent
	working int              // goroutines
	timer   *time.Timer      // starts a goroutine when the next delivery is due; nil before the first use
	closed  atomic.Bool      // set with mu held
	empty   chan struct{}    // closed when nothing is held after Close
	dropped dropped
	unsent  int             // deliveries given up by Close
	left    int             // deliveries left by Close to other nodes
	ids     map[string]bool // the ids of held deliveries, if there is an outbox
	over    map[string]bool // the ids of deliveries that are over, but could not be removed from the outbox
}

// New returns a sender. Its caller must close it.
func New(opts options.Options) *Sender {
	number(&opts.Tries, 8)
	number(&opts.Within, time.Hour)
	number(&opts.Pause, 2*time.Second)
	number(&opts.Timeout, 15*time.Second)
	number(&opts.Queue, 10_000)
	number(&opts.Concurrent, 16)
	number(&opts.PerHost, 4)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Sender{
		opts:   opts,
		policy: newPolicy(opts.Allow),
		logger: opts.Logger,
		hosts:  make(map[string]*host),
		empty:  make(chan struct{}),
		over:   make(map[string]bool),
	}
	if len(opts.Secret.Key()) > 0 {
		s.signer, _ = standardwebhooks.NewWebhookRaw(opts.Secret.Key()) // it returns no error
	} else {
		s.logger.Error("webhooks are off: there is no secret to sign them with")
	}
	s.http = s.transport()
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.looking, s.stopLook = context.WithCancel(context.Background())
	return s
}

// Observe sets a function for the result of each try: "sent", "failed", "given_up", "refused" or "dropped". f must not block, and may
// be called concurrently. Observe is called before Send.
func (s *Sender) Observe(f func(result string)) { s.observer = f }

// report passes the result of a try to the observer.
func (s *Sender) report(result string) {
	if s.observer != nil {
		s.observer(result)
	}
}

// number sets n to a default if it is not positive.
func number[N int | time.Duration](n *N, to N) {
	if *n <= 0 {
		*n = to
	}
}

// Send queues the POST of an event. If there is an outbox, it waits until the outbox has the delivery. It logs an event that cannot
// be sent. told is false if the delivery is only in memory although there is an outbox, and after Close.
func (s *Sender) Send(e Event) (told bool) {
	to, err := s.policy.parse(e.URL)
	if err != nil {
		s.logger.Info("webhook refused", "url", to, "error", err)
		s.report("refused")
		return true
	}
	body, err := e.payload()
	switch {
	case err != nil:
	case s.signer == nil:
		err = errors.New("there is no secret to sign it with")
	default:
		now := time.Now()
		told, err = s.add(&delivery{to: to, id: idOf(e.Key), body: body, end: now.Add(s.opts.Within), due: now})
	}
	if err != nil {
		s.logger.Info("webhook not sent", "url", to, "error", err)
		s.report("dropped")
		return !errors.Is(err, errClosed)
	}
	return told
}

// Close tries each event that has not arrived yet once more at once, unless its receiver asked to wait. When ctx is done it gives up.
// The error says how many events were given up. Deliveries in an outbox that are not due are left to the node that finds them there.
func (s *Sender) Close(ctx context.Context) error {
	s.stopLook()
	s.hasten()
	var err error
	select {
	case <-s.empty:
	case <-ctx.Done():
		err = ctx.Err()
		s.stop() // tries that are under way fail
		s.mu.Lock()
		s.abandon()
		s.mu.Unlock()
		<-s.empty
	}
	s.work.Wait()
	s.stop()
	s.http.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left > 0 {
		s.logger.Info("webhooks that wait for another try are left to other nodes, or to the next process", "count", s.left)
	}
	switch {
	case s.unsent == 0:
		return nil
	case err == nil:
		return fmt.Errorf("%d webhooks not sent: their receivers asked to wait", s.unsent)
	}
	return fmt.Errorf("%d webhooks not sent: %w", s.unsent, err)
}
