package reading

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"holdfast/stream"
)

// Streams are the streams of a session, with the calls that write them and their readers.
type Streams struct {
	owner      Owner
	opts       *Options
	key        stream.SessionKey
	standalone Call
	carrier    bool // its clients have one call each, and come back for no other

	mu      sync.Mutex
	last    uint64          // the last number given
	streams map[uint64]user // the streams that are written or read
	gaps    gaps
	told    tellings
	read    []uint64 // streams that were read to their end, since [Streams.TakeRead] was last called

	unread   absences // of clients that have yet to read how a call ended
	followed absences // of one of the clients of a call that may have several

	superseded *Reader       // a reader of the standalone stream that another one waits for
	left       chan struct{} // closed when that one leaves, or steps aside
	displaced  displaced

	losing sync.Mutex // held while the owner hears that a stream is lost. Taken first
	lost   loss
}

// A loss is a stream that its client has lost just now: the owner is about to hear of it. Guarded by Streams.mu.
type loss struct {
	number uint64
	back   *Reader // the first reader with which its client has come back meanwhile; nil: it has not
}

// A user is the call and the reader of a stream. The zero value stands for a stream that is not used.
type user struct {
	call   Call    // that writes it; nil if it has ended
	reader *Reader // the newest; nil if no client is connected
	blind  bool    // the requests that the stream answered are not known any more
}

// Init makes t the streams of a session. standalone writes its standalone stream. In a carrier each client has one call, and
// cannot come back for others.
func (t *Streams) Init(owner Owner, key stream.SessionKey, standalone Call, carrier bool, opts *Options) {
	t.owner, t.key, t.standalone, t.carrier, t.opts = owner, key, standalone, carrier, opts
}

// id returns the name of a stream in the store.
func (t *Streams) id(number uint64) stream.ID { return stream.ID{Session: t.key, Number: number} }

// set notes the user of a stream. t.mu is held.
func (t *Streams) set(number uint64, u user) {
	switch {
	case u != user{}:
		if t.streams == nil {
			t.streams = make(map[uint64]user, 1)
		}
		t.streams[number] = u
	case len(t.streams) > 1:
		delete(t.streams, number)
	case t.streams[number] != user{}:
		t.streams = nil
	}
}

// setReader notes the newest reader of a stream. t.mu is held.
func (t *Streams) setReader(number uint64, r *Reader) {
	u := t.streams[number]
	u.reader = r
	t.set(number, u)
}

// SetCall notes which call writes a stream.
func (t *Streams) SetCall(number uint64, c Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[number]
	u.call = c
	t.set(number, u)
}

// SetBlind notes that the requests that a stream answered are not known any more.
func (t *Streams) SetBlind(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[number]
	u.blind = true
	t.set(number, u)
}

// Resume notes that numbers up to last were given before.
func (t *Streams) Resume(last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last, last)
}

// Last is the last number that was given.
func (t *Streams) Last() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Add gives a call a stream, and returns its number; nil: the stream has no call.
func (t *Streams) Add(c Call) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.set(t.last, user{call: c})
	return t.last
}

// Remove forgets the call of a stream that has its last entry. comesBack says that its client comes back for the entry if it has not read it.
func (t *Streams) Remove(number uint64, comesBack bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[number]
	u.call = nil
	t.set(number, u)
	switch {
	case u.reader != nil:
		u.reader.all((*Reader).wake) // they may wait for entries, and no more come
	case comesBack:
		t.unread.add(number, awaitedFor)
	}
}

// awaitedFor is how long a client may be away, at the most, and still be waited for.
const awaitedFor = 10 * time.Second

// Awaits reports whether a client is likely to come back for the end of a stream:
// the client has yet to read it, and has been away for no longer than patience.
func (t *Streams) Awaits(patience time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unread.within(patience)
}

// user returns the user of a stream.
func (t *Streams) user(number uint64) user {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[number]
}

// IsBlind reports whether a stream's client can only be told that its outcome is not known.
func (t *Streams) IsBlind(number uint64) bool { return t.user(number).blind }

// Call returns the call that still writes a stream, or nil.
func (t *Streams) Call(number uint64) Call { return t.user(number).call }

// IsRead reports whether a stream has a reader.
func (t *Streams) IsRead(number uint64) bool { return t.user(number).reader != nil }

// Since returns when the reader of a stream came; zero: the stream has none.
func (t *Streams) Since(number uint64) time.Time {
	if r := t.user(number).reader; r != nil {
		return r.since
	}
	return time.Time{}
}

// ReadBesides reports whether a stream has a reader other than one that has written the answer what (nil: none has), and than one on
// a connection of the standalone stream. While the owner hears that the stream is lost, a reader counts that has come and left since.
func (t *Streams) ReadBesides(number uint64, what Sent) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if what == nil && t.lost.number == number && t.lost.back != nil {
		return true
	}
	r := t.streams[number].reader
	return r != nil && r.outlet == nil && (what == nil || r.sent != what)
}

// loses calls note, with t.mu held. If that reports that a stream is lost, loses calls hear, without the lock.
func (t *Streams) loses(number uint64, note func() bool, hear func()) {
	t.losing.Lock()
	defer t.losing.Unlock()
	t.mu.Lock()
	lost := note()
	if lost {
		t.lost = loss{number: number}
	}
	t.mu.Unlock()
	if !lost {
		return
	}
	hear()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = loss{}
}

// IsUnused reports whether no stream is written or read.
func (t *Streams) IsUnused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.streams) == 0
}

// Calls returns the calls that still write streams, by the numbers of these.
func (t *Streams) Calls() map[uint64]Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[uint64]Call, len(t.streams))
	for number, u := range t.streams {
		if u.call != nil {
			all[number] = u.call
		}
	}
	return all
}

// Lags reports whether readers have entries that they have yet to tell their clients.
func (t *Streams) Lags() bool {
	t.mu.Lock()
	calls := make([]Call, 0, len(t.streams))
	for _, u := range t.streams {
		if u.reader != nil {
			calls = append(calls, u.reader.call)
		}
	}
	t.mu.Unlock()
	return slices.ContainsFunc(calls, func(c Call) bool {
		if c == nil {
			return true // until it has read the end
		}
		p := c.Progress()
		return p.Told < p.Said
	})
}

// Disconnect asks the reader of a stream, if there is one, to end its connection.
func (t *Streams) Disconnect(number uint64, k Disconnect) {
	if r := t.user(number).reader; r != nil {
		r.disconnect(k)
	}
}

// Wake tells the readers of a stream to look again.
func (t *Streams) Wake(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams[number].reader.all((*Reader).wake)
}

// Dismiss makes all readers see that they are gone.
func (t *Streams) Dismiss() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.streams {
		u.reader.all((*Reader).end)
	}
}

// CloseStandalone ends the connections of the standalone stream's readers.
func (t *Streams) CloseStandalone() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.streams[Standalone].reader; r != nil {
		t.setReader(Standalone, nil)
		r.all((*Reader).end)
	}
}

// mostRead bounds how many streams are remembered as read to their end.
const mostRead = 256

// TakeRead returns the streams that were read to their end since it was last called.
func (t *Streams) TakeRead() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	read := t.read
	t.read = nil
	return read
}

// Delivered returns the sequence of the last message of the standalone stream that
// was written to a client.
func (t *Streams) Delivered() uint64 { return t.standalone.Progress().Told }

// DeliveredAt moves a cursor on to the last entry of its stream that was written to
// a client, if the connection did not break after that.
func (t *Streams) DeliveredAt(at stream.Cursor) stream.Cursor {
	if t.IsLost(at.Stream.Number) {
		return at
	}
	if c := t.Call(at.Stream.Number); c != nil {
		if told := c.Progress().Told; told > at.Seq {
			at.Seq, at.Epoch = told, 0
		}
	}
	return at
}

// AwaitsInputAt reports whether the stream's call has said nothing after the cursor
// and waits for its client to answer.
func (t *Streams) AwaitsInputAt(at stream.Cursor) bool {
	c := t.Call(at.Stream.Number)
	if c == nil {
		return false
	}
	p := c.Progress()
	return p.Asks && p.Said == at.Seq
}

// Oldest returns the sequence before the oldest entry of a stream that is still kept; 0 if none is.
func (t *Streams) Oldest(ctx context.Context, number uint64) uint64 {
	oldest, _, err := t.opts.Store.Bounds(ctx, t.id(number))
	if err != nil {
		return 0
	}
	return oldest - 1
}

// Each calls do with the kept entries of a stream up to seq. The error is that of the store.
func (t *Streams) Each(ctx context.Context, number, seq uint64, do func(*stream.Entry)) error {
	at := stream.Cursor{Stream: t.id(number), Seq: t.Oldest(ctx, number)}
	buf := make([]stream.Entry, 0, 64)
	for at.Seq < seq {
		got, err := t.opts.Store.Read(ctx, at, buf[:0])
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := range got {
			if got[i].Seq <= seq {
				do(&got[i])
			}
			at.Seq, at.Epoch = got[i].Seq, got[i].Epoch
		}
		if err != nil || len(got) == 0 {
			break
		}
	}
	return nil
}

// End returns the last entry of the stream of a call that has ended; nil: it is not kept. The error is that of the store.
func (t *Streams) End(ctx context.Context, number uint64) (*stream.Entry, error) {
	_, next, err := t.opts.Store.Bounds(ctx, t.id(number))
	var end [1]stream.Entry
	got := end[:0]
	if err == nil && next > 1 {
		got, err = t.opts.Store.Read(ctx, stream.Cursor{Stream: t.id(number), Seq: next - 2}, got)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(got) == 0 || !got[0].Last {
		return nil, nil
	}
	return &got[0], nil
}

// HasAll notes that the client has all entries of a call's stream: if the call has
// ended, the store may drop the stream before its time. A stream that another
// client may come back for is not dropped for that.
func (t *Streams) HasAll(number uint64) {
	t.mu.Lock()
	over := t.streams[number].call == nil && !t.followed.has(number)
	t.mu.Unlock()
	if over && number != Standalone {
		t.owner.Arrived(number)
	}
}

// Has notes that the client has the entries of a stream through seq for certain:
// they were not only written.
func (t *Streams) Has(number, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.streams[number].reader; r != nil {
		r.acked = max(r.acked, seq)
	}
	t.gaps.acknowledge(number, seq)
}
