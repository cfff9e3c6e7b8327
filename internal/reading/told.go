package reading

import (
	"context"
	"slices"
	"time"

	"holdfast/stream"
)

// What follows is for clients that are told of a call on their standalone stream, as its own connection broke, and come back
// for the call by its event id all the same: what they were told there they do not get again.

// A telling is what a connection of the standalone stream was told of a call that it continues.
type telling struct {
	at      stream.Cursor // the last entry that was written
	all     bool          // it is the call's last
	from    uint64        // after which the connection was told of the call
	on      *Reader       // of the standalone stream
	arrived func() bool   // reports whether it is with the client, as far as that is known; may wait for a moment
}

// tellings are those of connections that live. Guarded by Streams.mu.
type tellings []telling

// An outlet is the connection that a call is told on, where that is one of the standalone stream.
type outlet struct {
	on      *Reader       // of the standalone stream
	arrived func() bool   // see [telling]
	left    chan struct{} // closed when the reader of the call's stream has left
}

// Beside has the reader be one of a call that is continued on a connection of the standalone stream. arrived reports
// whether all that was written there is with the client, as far as the network knows. The client may
// have given the call up, and make it again.
func (r *Reader) Beside(standalone *Reader, arrived func() bool) {
	r.t.mu.Lock()
	r.outlet = &outlet{standalone, arrived, make(chan struct{})}
	r.t.mu.Unlock()
	r.t.owner.Heard(r, Lost)
}

// tells notes what was written beside the standalone stream.
func (r *Reader) tells() {
	if r.outlet == nil {
		return
	}
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told.forget(r.cursor.Stream.Number)
	if len(t.told) >= mostGaps {
		t.told = slices.Delete(t.told, 0, 1)
	}
	t.told = append(t.told, telling{at: r.cursor, all: r.ended, from: r.began, on: r.outlet.on, arrived: r.outlet.arrived})
}

// forget forgets what was told of a stream.
func (d *tellings) forget(number uint64) {
	*d = slices.DeleteFunc(*d, func(x telling) bool { return x.at.Stream.Number == number })
}

// stopTelling notes that a reader leaves. What was told on its connection, if that is the standalone stream's, may not have
// arrived. t.mu is held.
func (t *Streams) stopTelling(r *Reader) {
	if r.outlet != nil {
		close(r.outlet.left)
	}
	if len(t.told) > 0 && r.cursor.Stream.Number == Standalone {
		t.told = slices.DeleteFunc(t.told, func(x telling) bool { return x.on == r })
	}
}

// toldOf returns what was told of a stream after an entry, if that has arrived. A client that has entries which only that
// connection was told has lost that connection.
func (t *Streams) toldOf(number, after uint64) (telling, bool) {
	t.mu.Lock()
	i := slices.IndexFunc(t.told, func(x telling) bool { return x.at.Stream.Number == number && x.at.Seq >= after && after <= x.from })
	if i < 0 {
		t.mu.Unlock()
		return telling{}, false
	}
	x := t.told[i]
	t.mu.Unlock()
	return x, x.arrived()
}

// toldAll reports whether a client that comes back for what follows a cursor was told all of it on its standalone stream.
func (t *Streams) toldAll(at stream.Cursor) bool {
	x, ok := t.toldOf(at.Stream.Number, at.Seq)
	return ok && x.all
}

// skipTold has the reader, which has just come, leave out what its client was told on its standalone stream. It waits until
// nothing more is written there, but not long.
func (r *Reader) skipTold(ctx context.Context) {
	if old := r.before; old != nil {
		r.before = nil
		t := time.NewTimer(supersedeWait)
		defer t.Stop()
		select {
		case <-old.outlet.left:
		case <-t.C:
		case <-ctx.Done():
		}
	}
	if x, ok := r.t.toldOf(r.cursor.Stream.Number, r.cursor.Seq); ok {
		r.cursor = x.at
	}
}

// pastOld returns the cursor after what was written to the client of a lost stream and is not to be written again, if that comes next.
// told is through what was written.
func (t *Streams) pastOld(ctx context.Context, at stream.Cursor, told uint64) stream.Cursor {
	var page [16]stream.Entry
	for at.Seq < told {
		entries, err := t.opts.Store.Read(ctx, at, page[:0])
		if err != nil || len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.Seq > told || !t.opts.IsOld(e.Data) {
				return at
			}
			at.Seq, at.Epoch = e.Seq, e.Epoch
		}
	}
	return at
}
