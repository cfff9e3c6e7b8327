package bridge

import (
	"context"
	"time"

	"holdfast/client"
)

// leave ends the bridge. What is kept waits for the next process. If nothing is kept, and
// finish is set, the host's requests are answered first; then the session is ended.
func (b *bridge) leave(ctx context.Context, finish bool) {
	b.move(eventLeft)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	switch {
	case conn == nil:
	case b.store.isOpen():
		// The host may be back already, with another bridge, which takes its calls over.
		b.requests.leave()
		b.save()
		b.settle(conn)
		b.save()
	case finish:
		select {
		case <-b.requests.allAnswered():
		case <-b.host.gone:
		case <-ctx.Done():
		}
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
