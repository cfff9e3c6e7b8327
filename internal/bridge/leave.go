package bridge

import (
	"context"
	"log/slog"
	"time"

	"holdfast/client"
)

// leave ends the bridge. If finish is set the host may still read: its requests are answered first, of which those
// that are kept are waited for only for a moment. They wait for the next process. If nothing is kept the session is ended.
func (b *bridge) leave(ctx context.Context, finish bool) {
	b.move(eventLeft)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	switch {
	case conn == nil:
	case b.store.isOpen():
		if finish && !b.finish(ctx, answerWithin) {
			slog.Warn("stdin has ended, and calls go on at the server: whoever begins again and repeats one gets its response; with --state '' they are waited for")
		}
		// The host may be back already, with another bridge, which takes its calls over.
		b.requests.leave()
		b.save()
		b.settle(conn)
		b.save()
	case finish:
		b.finish(ctx, 0)
	}
	close(b.gone)
	switch {
	case conn == nil:
	case b.store.isOpen():
		conn.Detach()
	default:
		_ = conn.Close()
	}
	close(b.stop)
	b.store.close()
	done := make(chan struct{})
	go func() {
		b.eras.end()
		b.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(settleWithin): // a host that reads nothing may block a write for ever
	}
}

// answerWithin is how long what the host has asked is waited for, as the host may have said all that it has to say, and
// read on. If it has left and is back, its next bridge waits twice as long for word of its calls.
const answerWithin = decideTries * decidePause / 2

// finish waits until the host has all responses, and reports whether it has. If it has left, that is not waited for.
func (b *bridge) finish(ctx context.Context, within time.Duration) bool {
	var late <-chan time.Time
	if within > 0 {
		t := time.NewTimer(within)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-b.requests.allAnswered():
		return true
	case <-b.host.gone:
	case <-ctx.Done():
	case <-late:
		return false
	}
	return true
}

// settleWithin bounds how long a bridge that ends waits for responses that are being written,
// and for cancellations that are being sent.
const settleWithin = time.Second

// settle waits until responses that are being written are written, and the server knows what
// the host has cancelled.
func (b *bridge) settle(conn *client.Conn) {
	late := time.After(settleWithin)
	for !b.requests.settled(conn.State().Calls) {
		select {
		case <-late:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
