// Package webhook tells servers that a request has ended: a POST, signed as
// Standard Webhooks (version 1.0.0) has it, and retried.
//
// The URLs are clients', who are not to be trusted with what this machine can
// reach: [Options.Allow] says where a POST may go.
// docs/decisions/0010-webhooks.md says what is refused, and what is not promised.
package webhook

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Options say how a Sender behaves. All fields but Secret may be left zero, which
// stands for the default given with each.
type Options struct {
	// Secret signs. Without it nothing is sent.
	Secret Secret
	// Allow is where webhooks may go beside port 443, by https, of public
	// addresses: there by http too, at any port.
	Allow []Allowed

	Tries      int           // at the most, for one event; 8
	Within     time.Duration // how long after an event it is tried; 1 h
	Pause      time.Duration // after the first try, and from there on three times as long each; 2 s
	Timeout    time.Duration // of one try; 15 s
	Queue      int           // events that are not sent yet, at the most: more are dropped; 10,000
	Concurrent int           // tries at a time; 16
	PerHost    int           // and of those, to one host and port; 4

	Resolver *net.Resolver // of host names; net.DefaultResolver
	TLS      *tls.Config   // for receivers whose certificates the system does not know
	Logger   *slog.Logger  // slog.Default()
}

// An Event is a request that has ended.
type Event struct {
	URL       string    // to tell; it may hold secrets, and is not logged
	RequestID []byte    // raw JSON, as its client spelled it
	Failed    bool      // its response is an error
	Time      time.Time // when it ended
}

// longestID bounds how many bytes a request's id may have. (Standard Webhooks:
// payloads smaller than 20 KB.)
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
	opts   Options
	policy policy
	signer *standardwebhooks.Webhook // nil: nothing is sent
	logger *slog.Logger
	http   *http.Transport

	ctx  context.Context // of the tries
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	queue   queue            // by the time that they are due
	hosts   map[string]*host // those that are being told, or wait for that
	held    int              // events in all: queued, parked, on their way
	working int              // goroutines
	timer   *time.Timer      // starts one for what is due next; nil if there was never any
	closed  atomic.Bool      // set with mu held
	empty   chan struct{}    // closed when nothing is held after Close
	dropped dropped
	unsent  int // given up by Close
}

// New returns a sender. The caller closes it.
func New(opts Options) *Sender {
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
	}
	if len(opts.Secret.key) > 0 {
		s.signer, _ = standardwebhooks.NewWebhookRaw(opts.Secret.key) // has no errors to return
	} else {
		s.logger.Error("webhooks are off: there is no secret to sign them with")
	}
	s.http = s.transport()
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// number sets a number that was not given.
func number[N int | time.Duration](n *N, to N) {
	if *n <= 0 {
		*n = to
	}
}

// Send has an event told, and does not wait for it. What cannot be told is
// logged.
func (s *Sender) Send(e Event) {
	to, err := s.policy.parse(e.URL)
	if err != nil {
		s.logger.Info("webhook refused", "url", to, "error", err)
		return
	}
	body, err := e.payload()
	switch {
	case err != nil:
	case s.signer == nil:
		err = errors.New("there is no secret to sign it with")
	default:
		err = s.add(&delivery{to: to, id: "msg_" + rand.Text(), body: body, first: time.Now(), due: time.Now()})
	}
	if err != nil {
		s.logger.Info("webhook not sent", "url", to, "error", err)
	}
}

// Close sends what there is: an event that has not arrived yet is tried once more
// at once, unless its receiver asked to wait. When ctx is done it gives up. The
// error says how many events were given up.
func (s *Sender) Close(ctx context.Context) error {
	s.hasten()
	var err error
	select {
	case <-s.empty:
	case <-ctx.Done():
		err = ctx.Err()
		s.stop() // whatever is on its way fails
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
	switch {
	case s.unsent == 0:
		return nil
	case err == nil:
		return fmt.Errorf("%d webhooks not sent: their receivers asked to wait", s.unsent)
	}
	return fmt.Errorf("%d webhooks not sent: %w", s.unsent, err)
}
