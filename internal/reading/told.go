package reading

import (
	"context"
	"slices"
	"time"

	"holdfast/stream"
)

// This file is for clients that are told of a call on their standalone stream, as its own connection broke, and come back
// for the call by its event id all the same: they do not get the entries again that they were told there.

// A telling says how far a call was told on a connection of the standalone stream.
type telling struct {
	at      stream.Cursor // the last entry that was written
	all     bool          // that is the call's last entry
	from    uint64        // the connection was told the entries after this one
	on      *Reader       // of the standalone stream
	arrived func() bool   // see [Outlet]
}

// tellings are those on connections that live. Guarded by Streams.mu.
type tellings []telling

// An Outlet is a connection of the standalone stream on which another call is continued.
type Outlet struct {
	On *Reader // of the standalone stream
	// Arrived reports whether all bytes that were written there are with the client, as far as the network knows. It may wait for a moment.
	Arrived func() bool
	left    chan struct{} // closed when the reader of the call's stream has left
}

// tells notes how far the reader has written its call on the standalone stream's connection.
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
	t.told = append(t.told, telling{at: r.cursor, all: r.ended, from: r.began, on: r.outlet.On, arrived: r.outlet.Arrived})
}

// forget forgets the telling of a stream.
func (d *tellings) forget(number uint64) {
	*d = slices.DeleteFunc(*d, func(x telling) bool { return x.at.Stream.Number == number })
}

// stopTelling notes that a reader leaves. If it read the standalone stream, calls that were told on its connection may not
// have arrived. t.mu is held.
func (t *Streams) stopTelling(r *Reader) {
	if r.outlet != nil {
		close(r.outlet.left)
	}
	if len(t.told) > 0 && r.cursor.Stream.Number == Standalone {
		t.told = slices.DeleteFunc(t.told, func(x telling) bool { return x.on == r })
	}
}

// toldOf returns the telling of a stream from an entry on, and reports whether it has arrived. A client that has entries
// which only that connection was told has lost that connection.
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

// toldAll reports whether a client that comes back for the entries after a cursor was told all of them on its standalone stream.
func (t *Streams) toldAll(at stream.Cursor) bool {
	x, ok := t.toldOf(at.Stream.Number, at.Seq)
	return ok && x.all
}

// skipTold makes the reader, which has just come, leave out the entries that its client was told on its standalone stream.
// It waits until no more are written there, but not long.
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

// pastOld returns the cursor after those next entries of a lost stream that were written to the client and must not be written again.
// told is the last entry that was written.
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
