package limit

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// A Refusal says that calls were not begun, because of a limit. They may be made again.
type Refusal struct {
	reason string
	text   string
	after  time.Duration // when they may be; 0: nobody knows
	never  bool          // they are too many for ever

	limiter *Limiter
	demands []demand
	waits   bool // they may wait for others to end
}

// Error implements error.
func (r *Refusal) Error() string { return r.text }

// Reason is the limit: one of few.
func (r *Refusal) Reason() string { return r.reason }

// Never reports whether the same calls would be refused at any time.
func (r *Refusal) Never() bool { return r.never }

// RetryAfter is in how many seconds the calls may be made again, 1 at the least.
func (r *Refusal) RetryAfter() int {
	return max(1, int((r.after+time.Second-1)/time.Second))
}

// refusalOf returns the refusal of a request for which one of its counts has no room.
func refusalOf(d *demand, i int) *Refusal {
	at := d.counts[i]
	switch at.kind {
	case clientCalls:
		return &Refusal{reason: "client_calls", text: fmt.Sprintf("%d calls of this client are in flight, which is the most", at.most)}
	case serverCalls:
		return &Refusal{reason: "server_calls", text: fmt.Sprintf("%d calls of this server are in flight, which is the most", at.most)}
	}
	return &Refusal{reason: "tool_calls", text: fmt.Sprintf("%d calls of this tool are in flight, which is the most", at.most)}
}

// whose says what a rate is of.
func whose(kind kind) (reason, text string) {
	switch kind {
	case addressRate:
		return "address_rate", "this address"
	case serverRate:
		return "server_rate", "this client, at this server,"
	}
	return "client_rate", "this client"
}

func tooFast(kind kind, r Rate, after time.Duration) *Refusal {
	reason, text := whose(kind)
	return &Refusal{reason: reason, after: after, text: fmt.Sprintf("%s may begin %s, and %d at once", text, r, r.burst())}
}

func tooMany(kind kind, n int, r Rate, isOne bool) *Refusal {
	reason, text := whose(kind)
	if isOne {
		return &Refusal{reason: reason, never: true, text: fmt.Sprintf("the request counts as %d calls, of which %s may begin %d at once (--rate-burst): ask for less at a time", n, text, r.burst())}
	}
	return &Refusal{reason: reason, never: true, text: fmt.Sprintf("a batch of %d calls, of which %s may begin %d at once", n, text, r.burst())}
}

// String returns "50 calls a second", or the like of a minute or an hour.
func (r Rate) String() string {
	n, unit := r.PerSecond, "a second"
	switch {
	case n < 1.0/60:
		n, unit = n*3600, "an hour"
	case n < 1:
		n, unit = n*60, "a minute"
	}
	return strconv.FormatFloat(n, 'g', 4, 64) + " calls " + unit
}

// Waits reports whether [Refusal.Queue] may be called.
func (r *Refusal) Waits() bool { return r.waits }

// A Turn is the place in the queue of a call that was refused.
type Turn struct {
	refusal *Refusal
	w       *waiter // nil: it may begin
	pass    *Pass
	err     error // why it has none
}

// Queue puts the call that was refused into the queue. It does not wait: calls that one goroutine
// queues have their turns in that order. [Turn.Wait] must follow.
func (r *Refusal) Queue() Turn {
	t := Turn{refusal: r}
	var no *Refusal
	if t.w, t.pass, no = r.limiter.join(r.demands); no != nil {
		t.err = no
	}
	return t
}

// Wait waits until there is room for the call, which counts from then on. It was charged to its
// rates already. The error is the context's, or a *[Refusal] that does not wait: the queue is full,
// the time is over, stop was closed, or a rate is used up.
func (turn Turn) Wait(ctx context.Context, stop <-chan struct{}) (*Pass, error) {
	r, w, pass := turn.refusal, turn.w, turn.pass
	if w == nil {
		return pass, turn.err
	}
	l := r.limiter
	t := time.NewTimer(l.p.QueueWait)
	defer t.Stop()
	select {
	case <-w.ready:
		return w.pass, nil
	case <-stop:
	case <-t.C:
		if pass = l.leave(w); pass != nil {
			return pass, nil // just now
		}
		return nil, &Refusal{reason: "queue_wait", text: fmt.Sprintf("%s; it has waited for %v", r.text, l.p.QueueWait)}
	case <-ctx.Done():
		l.leave(w).Release()
		return nil, ctx.Err()
	}
	if pass = l.leave(w); pass != nil {
		return pass, nil // just now
	}
	return nil, &Refusal{reason: r.reason, text: r.text}
}
