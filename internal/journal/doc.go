// Package journal has the log of one session: what the session's streams say, on its way into
// the store. It numbers entries, and knows nothing of calls: it calls up through [Owner].
//
// One goroutine appends at a time, and what is queued meanwhile goes as the next append. The
// goroutine that finds no other appending does it for all, so none waits for work.
//
// A writer queues its entries under a lock of its own, which is their order. The log's lock comes
// after all locks of its owner but those that [Owner.Lease] and [Options.Go] take. It is not held while the store, or
// another method of the owner, is called.
package journal

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"holdfast/stream"
)

// A Writer is what says the entries of a stream.
type Writer interface {
	comparable
	Track() *Track
}

// A Track is how far the store has what a writer says. Only the goroutine that appends uses it, once
// anything was queued for it, but for [Track.Unstored] and [Track.End].
type Track struct {
	seq      uint64
	sealed   bool
	unstored atomic.Pointer[[]stream.Entry] // how the stream ends, where the store did not take it
}

// Seq is the sequence of the last entry in the store.
func (t *Track) Seq() uint64 { return t.seq }

// Resume says that the store has the entries of the track up to seq already.
func (t *Track) Resume(seq uint64) { t.seq = seq }

// EndUnstored has readers told from memory how the stream ends: by one entry at the least.
func (t *Track) EndUnstored(epoch uint64, end []stream.Entry) {
	for i := range end {
		end[i].Seq, end[i].Epoch = t.seq+1+uint64(i), epoch
	}
	t.unstored.Store(&end)
}

// Unstored appends to buf, up to its capacity, what [Track.EndUnstored] was given. It says
// whether the place after seq is there and no longer in the store; at the end of
// the stream it is io.EOF.
func (t *Track) Unstored(seq uint64, buf []stream.Entry) (_ []stream.Entry, ok bool, err error) {
	end := t.unstored.Load()
	if end == nil || seq+1 < (*end)[0].Seq {
		return buf, false, nil
	}
	rest := (*end)[min(seq+1-(*end)[0].Seq, uint64(len(*end))):]
	if len(rest) == 0 {
		return buf, true, io.EOF
	}
	return append(buf, rest[:min(len(rest), cap(buf)-len(buf))]...), true, nil
}

// End returns the last entry of the stream, if the store did not take it, or nil.
func (t *Track) End() *stream.Entry {
	if end := t.unstored.Load(); end != nil {
		return &(*end)[len(*end)-1]
	}
	return nil
}

// An Entry is a message, or a note, on its way into the log.
type Entry[W Writer] struct {
	By     W
	Number uint64 // of the stream
	Data   []byte
	Last   bool
	Note   bool
	Joined bool          // the entry that is queued next goes into the same append
	Done   chan struct{} // closed when the entry is stored, or will not be; nil if no goroutine waits
}

// An Owner is the session of a log. Refused, Unkept and Lost may ask for [Log.EachUnstored]. Entries and records
// are the log's again when the method returns.
type Owner[W Writer] interface {
	// Lease is the lease to append under. If ok is false the session has left this node, and nothing is
	// appended any more.
	Lease() (l stream.Lease, ok bool)
	// Stored tells of a record that is in the store.
	Stored(by W, r *stream.Record)
	// Refused tells of an entry that the store did not take, alone. The entries that it returns are put into its
	// place, if the store takes these: all or none. If one of them is the last of the stream, or the error is
	// [stream.ErrNotFound], nothing else is appended for the writer.
	Refused(x *Entry[W], err error) (instead []stream.Entry)
	// Unkept tells that the store did not take those either.
	Unkept(x *Entry[W], instead []stream.Entry, err error)
	// Lost tells that entries will not be stored, as the session has left this node, or, if err
	// is not nil, leaves it for that.
	Lost(unstored []Entry[W], err error)
}

// Options are what the logs of a node have in common.
type Options struct {
	Append     func(context.Context, stream.Lease, []stream.Record) error
	Context    context.Context //nolint:containedctx // of the node: appends end with it
	Timeout    time.Duration   // of an append; 0: none
	MostQueued int             // bytes of a log that wait, or are being appended, before [Log.Flush] waits for room

	Loses func(error) bool    // whether nothing can be appended to a session after an append that failed so; nil: never
	Count func(n int64)       // is told of bytes that are queued, and, negative, of those that are no more; nil: nothing is
	Go    func(f func()) bool // runs f on a goroutine of its own, if one may begin
}
