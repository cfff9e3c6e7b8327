package limit

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// A Refusal says that a limit has refused calls. They were not begun, and may be made again.
type Refusal struct {
	reason string
	text   string
	after  time.Duration // how long to wait before that; 0: not known
	never  bool          // there will never be room for so many

	limiter *Limiter
	demands []demand
	waits   bool // they may wait for others to end
}

// Error implements error.
func (r *Refusal) Error() string { return r.text }

// Reason names the limit: one of a few words.
func (r *Refusal) Reason() string { return r.reason }

// Never reports whether the same calls would be refused at any time.
func (r *Refusal) Never() bool { return r.never }

// RetryAfter returns in how many seconds the calls may be made again, at least 1.
func (r *Refusal) RetryAfter() int {
	return max(1, int((r.after+time.Second-1)/time.Second))
}

// refusalOf returns the refusal of a request because its count i is full.
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

// whose returns the reason of a rate's refusal, and the client that the rate bounds, in words.
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

// String returns "50 calls a second", or the same with a minute or an hour.
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

// A Turn is the place of a refused call in the queue.
type Turn struct {
	refusal *Refusal
	w       *waiter // nil: the call does not wait
	pass    *Pass
	err     error // why the call has no place
}

// Queue puts the refused call into the queue. It does not wait: calls that one goroutine queues
// have their turns in that order. [Turn.Wait] must follow.
func (r *Refusal) Queue() Turn {
	t := Turn{refusal: r}
	var no *Refusal
	if t.w, t.pass, no = r.limiter.join(r.demands); no != nil {
		t.err = no
	}
	return t
}

// Wait waits until there is room for the call, which counts as in flight from then on. Its rates
// were charged already. The error is the context's, or a *[Refusal] that cannot be queued again:
// the queue is full, the time is over, stop was closed, or a rate is used up.
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
