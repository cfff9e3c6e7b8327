package bridge

import (
	"context"
	"time"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// leave ends the bridge. If finish is set, the host's requests are answered first. A session
// that is kept waits for the next process; any other is ended.
func (b *bridge) leave(ctx context.Context, finish bool) {
	if finish {
		b.finish(ctx)
	}
	b.move(eventLeft)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil && b.store.isOpen() {
		// The host may be back already, with another bridge, which takes its calls over.
		b.requests.leave()
		b.save()
		b.settle(conn)
	}
	b.refuseRest()
	b.save()
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

// lookEvery is how often a bridge that waits for responses looks whether the host takes them.
const lookEvery = 50 * time.Millisecond

// finish waits until the requests of a host that has closed its stdin are answered. It ends before that
// if the host does not read, if the server waits for the host, if the host has come back with another
// bridge, or if ctx ends.
func (b *bridge) finish(ctx context.Context) {
	if b.store.isOpen() {
		b.requests.leave() // another bridge may take the calls over
		b.save()
	}
	asked := b.eras.legacy.leave()
	b.eras.modern.endListens()
	answered := b.host.waits.none()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-answered:
		case <-asked:
		case <-b.host.gone:
		case <-ctx.Done():
		case <-look.C:
			if !hasNoReader(b.host.out) && !b.store.anyTaken(b.requests.kept()) {
				continue
			}
		}
		return
	}
}

// errEnds answers the host's requests that have no response when the bridge ends.
var errEnds = jsonrpc.Errorf(jsonrpc.CodeServer, "holdfast connect ends before the request is answered")

// errEndsKept is errEnds where calls are kept.
var errEndsKept = jsonrpc.Errorf(jsonrpc.CodeServer, "holdfast connect ends before the request is answered; if it is a call that has begun, it goes on, "+
	"and the host gets its response when it makes the same call within %v, through another holdfast connect", repeatWithin)

// refuseRest answers the remaining requests of the host with errors.
func (b *bridge) refuseRest() {
	why := errEnds
	if b.store.isOpen() {
		why = errEndsKept
	}
	done := make(chan struct{})
	go func() {
		b.host.end(why)
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
