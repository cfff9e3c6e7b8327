// Package journal has the log of one session: the entries of the session's streams, on their way into the
// store. It numbers entries, and knows nothing of calls: it calls up through [Owner].
//
// One goroutine appends at a time, and entries that are queued meanwhile go into the next append. The
// goroutine that finds no other appending does it for all, so none waits for work.
//
// A writer queues its entries under a lock of its own, which keeps them in order. The log's lock comes after all locks of its owner,
// except those that [Owner.Lease] and [Options.Go] take. It is not held while the store, or another method of the owner, is called.
package journal

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"holdfast/stream"
)

// A Writer writes the entries of a stream.
type Writer interface {
	comparable
	Track() *Track
}

// A Track says how far the store has the entries of a writer. Once an entry was queued, only the goroutine
// that appends uses it, except [Track.Unstored] and [Track.End].
type Track struct {
	seq      uint64
	sealed   bool
	unstored atomic.Pointer[[]stream.Entry] // the end of the stream, if the store did not take it
}

// Seq is the sequence of the last entry in the store.
func (t *Track) Seq() uint64 { return t.seq }

// Resume says that the store has the entries of the track up to seq already.
func (t *Track) Resume(seq uint64) { t.seq = seq }

// EndUnstored sets the end of the stream, of at least one entry, that readers get from memory.
func (t *Track) EndUnstored(epoch uint64, end []stream.Entry) {
	for i := range end {
		end[i].Seq, end[i].Epoch = t.seq+1+uint64(i), epoch
	}
	t.unstored.Store(&end)
}

// Unstored appends to buf, up to its capacity, the entries after seq that [Track.EndUnstored] was given. ok
// says that the next entry is one of these, and not in the store; at the end of the stream the error is io.EOF.
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

// An Owner is the session of a log. Refused, Unkept and Lost may call [Log.EachUnstored]. Methods must not keep entries and records.
type Owner[W Writer] interface {
	// Lease is the lease to append under. If ok is false the session has left this node, and nothing is
	// appended any more.
	Lease() (l stream.Lease, ok bool)
	// Stored tells of a record that is in the store.
	Stored(by W, r *stream.Record)
	// Refused tells of an entry that the store did not take even alone. The entries that Refused returns are put
	// into its place, if the store takes these: all or none. If one of them is the last of the stream, or the
	// error is [stream.ErrNotFound], nothing else is appended for the writer.
	Refused(x *Entry[W], err error) (instead []stream.Entry)
	// Unkept tells that the store did not take the entries of Refused either.
	Unkept(x *Entry[W], instead []stream.Entry, err error)
	// Lost tells that entries will not be stored, as the session has left this node, or, if err is not nil,
	// leaves it because of that.
	Lost(unstored []Entry[W], err error)
}

// Options are those of all logs of a node.
type Options struct {
	Append     func(context.Context, stream.Lease, []stream.Record) error
	Context    context.Context //nolint:containedctx // of the node: appends end with it
	Timeout    time.Duration   // of an append; 0: none
	MostQueued int             // bytes of a log that wait, or are being appended, before [Log.Flush] waits for room

	Loses func(error) bool    // whether nothing can be appended to a session after this error of an append; nil: never
	Count func(n int64)       // gets the number of bytes that are queued, and, negative, of those that no longer are; may be nil
	Go    func(f func()) bool // runs f on a goroutine of its own, if one may begin
}
