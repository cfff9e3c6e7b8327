// Package copying copies streams of the log to clients: one loop reads a stream at a cursor and writes it to a sink. The sinks of
// HTTP are here, of events and of plain JSON.
package copying

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A Sink is where one stream is written. Only the goroutine that copies the stream uses it.
type Sink interface {
	// Append appends a message to text, as the client will see it. id is its event id,
	// or nil.
	Append(text, id, data []byte) []byte
	// Write writes what was appended, and waits for a slow client for a bounded time only.
	// last reports that the stream has ended. An error means that the client did not receive
	// it, as far as that can be known; ErrHeld, that it is written together with what follows.
	Write(text []byte, last bool) error
	// Idle is called when all that the stream holds was written. It does what its time
	// has come for, and returns when it is to be called again at the latest; zero: only
	// when the stream has more. An error ends the copying.
	Idle(ctx context.Context, now time.Time) (next time.Time, err error)
	// Finished is called when all of the stream was written, and counts as delivered.
	Finished()
}

// A Copier copies one stream of the log into one sink. It is used by one goroutine.
type Copier struct {
	Session *session.Session
	Reader  *reading.Reader
	Call    *session.Call // whose stream it is, if its client has just begun it; else nil
	Sink    Sink
	Ready   chan struct{}   // signalled when there may be something to do
	Drain   <-chan struct{} // closed when there is; nil where the sink does not want to know
	name    string          // names the stream in event ids; "": the client gets none
	tail    string          // what event ids end with: see [session.Session.EventTail]
	// Yields says that a newer connection has the stream to itself at once: nothing more is
	// written here, not even what was appended before. The two may be one connection.
	Yields bool
	// Continues says that a node goes on by itself after what it has written: see [exchange.Exchange].
	Continues bool
	// Resumes says that its client comes back with an event id.
	Resumes bool
	// Stays says that the connection may stay although a newer one has the standalone stream.
	Stays bool
	state copyState
	Door  observe.Door
}

// A copyState is how far a stream was copied:
//
//	attached  nothing was noted yet     → current: what there is was written and noted
//	current   all so far was noted      → last: the last entry was read
//	last      nothing follows           → delivered: it was written, and the client was there
//	delivered the end
//
// If a copier ends in an earlier state, its client may have missed something.
type copyState uint8

const (
	attached copyState = iota
	current
	last
	delivered
)

// A Page is what one turn needs. Copiers that wait hold none.
type Page struct {
	Text    []byte // room for what is gathered
	entries [64]stream.Entry
	id      [160]byte
}

var pages = sync.Pool{New: func() any { return &Page{Text: make([]byte, 0, 8<<10)} }}

// TakePage returns a page, which is to be released.
func TakePage() *Page { return pages.Get().(*Page) }

// MostText is how many bytes are gathered before they are written: a message that begins below it is the last one of its write.
const MostText = 64 << 10

// Release gives a page back, with the room of text.
func (p *Page) Release(text []byte) {
	clear(p.entries[:])
	if cap(text) <= 2*MostText {
		p.Text = text
	}
	pages.Put(p)
}

// ErrHeld reports that a sink writes nothing before the stream ends.
var ErrHeld = errors.New("written when the stream ends")

// Why a connection ends.
var (
	ErrSuperseded = errors.New("a newer connection reads the stream")
	ErrLeft       = errors.New("the client has left")
	ErrComeBack   = errors.New("the connection was ended, to be resumed")
	ErrOver       = errors.New("the connection has ended") // for a reason of its own: the cause of what ends with it
)

// Read attaches the copier to a stream of its session. ids reports whether the client gets event ids.
func (c *Copier) Read(ctx context.Context, cursor stream.Cursor, ids bool) error {
	number, kind := cursor.Stream.Number, reading.Says
	switch {
	case number == 0 && c.Stays:
		kind = reading.Stays
	case c.Continues:
		kind = reading.GoesOn
	case c.Resumes && number != 0:
		kind = reading.Resumes
	}
	r, err := c.Session.Streams().Read(ctx, kind, cursor, c.Ready)
	if err != nil && c.Session.Moved() {
		return session.ErrMoved
	}
	if err != nil {
		return err
	}
	c.Reader, c.state = r, attached
	r.Through(c.Door, c.Call.Like())
	if ids {
		c.name, c.tail = c.Session.StreamName(cursor.Stream.Number)
	}
	return nil
}

// Run copies the stream until it ends (nil) or the sink returns an error. It is the only loop that copies a stream to a client.
// The error is [session.ErrMoved] when the stream goes on at another node, and ErrSuperseded when another connection reads it.
func (c *Copier) Run(ctx context.Context) error {
	var timer *time.Timer
	for {
		gone := c.Reader.Gone() // asked first, so that everything before is written
		var more bool
		var err error
		if (!gone || !c.Yields) && !c.Reader.Aside(ctx) {
			more, err = c.Turn(ctx)
		}
		switch {
		case err != nil && c.Session.Moved() && ctx.Err() == nil:
			err = session.ErrMoved // its stream is no longer here
		case err != nil || c.state >= last:
		case more:
			continue
		case gone && c.Session.Moved():
			err = session.ErrMoved
		case gone:
			err = ErrSuperseded
		default:
			timer, err = c.rest(ctx, timer)
			if err == nil {
				err = c.wait(ctx)
			}
			if err == nil {
				continue
			}
		}
		if timer != nil {
			timer.Stop()
		}
		return err
	}
}

// rest has the sink do what is due, and sets the timer for what will be. It is nil until it is needed.
func (c *Copier) rest(ctx context.Context, timer *time.Timer) (*time.Timer, error) {
	now := time.Now()
	next, err := c.Sink.Idle(ctx, now)
	switch {
	case err != nil || next.IsZero():
	case timer == nil:
		ready := c.Ready // all that the timer holds
		timer = time.AfterFunc(next.Sub(now), func() { reading.Wake(ready) })
	default:
		timer.Reset(next.Sub(now))
	}
	return timer, err
}

// wait waits until there may be something to do. The less there is to select from, the less memory a waiting connection takes.
func (c *Copier) wait(ctx context.Context) error {
	select {
	case <-c.Ready:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.Drain:
		c.Drain = nil
	}
	return nil
}

// Turn writes what the stream holds, in one write, and reports whether there may be more.
func (c *Copier) Turn(ctx context.Context) (more bool, err error) {
	p := pages.Get().(*Page)
	entries, err := c.Reader.Next(ctx, p.entries[:0])
	if errors.Is(err, io.EOF) {
		c.state, err = last, nil
	}
	text := p.Text[:0]
	before := ctx.Err()
	if err == nil {
		text = c.gather(p, entries)
		more = len(entries) == cap(p.entries) || len(text) >= MostText
		if len(entries) > 0 || c.state == last {
			err = c.Sink.Write(text, c.state == last)
		}
	}
	news := len(entries) > 0 || c.state != current
	p.Release(text)
	switch {
	case errors.Is(err, ErrHeld):
		news = false
	case err != nil:
		return false, err
	}
	left := ctx.Err() // what is written to a client that has left does not fail at once
	if c.Yields && c.state == last {
		left = before // it may have read the response since: that is there at once, unlike the end of an HTTP response
	}
	if left != nil && errors.Is(context.Cause(ctx), ErrOver) {
		left = nil // it has not: the connection ends for another reason
	}
	if left != nil && c.Reader.Cursor().Stream.Number != 0 {
		c.Reader.Wrote()
		return false, left // of the standalone stream nothing is sent twice, though
	}
	if news {
		c.note()
	}
	return more, left
}

// IsRead reports whether the last entry of the stream was read: nothing follows.
func (c *Copier) IsRead() bool { return c.state >= last }

// IsDelivered reports whether all was written while the client was there.
func (c *Copier) IsDelivered() bool { return c.state == delivered }

// note notes that what was read so far has been written.
func (c *Copier) note() {
	c.Reader.Delivered()
	if c.state < last {
		c.state = current
		return
	}
	c.Sink.Finished()
	c.state = delivered
}

// gather appends what entries say to the page's text, and gives back to the reader those that are too much for one write.
func (c *Copier) gather(p *Page, entries []stream.Entry) []byte {
	text := p.Text[:0]
	var id []byte
	epoch := uint64(0) // that id is of
	for i := range entries {
		if len(text) >= MostText {
			c.Reader.Rewind(entries[i-1])
			break
		}
		e := &entries[i]
		if e.Last {
			c.state = last
		}
		switch {
		case len(e.Data) == 0: // the end of a call that was cancelled
		case c.name == "":
			text = c.Sink.Append(text, nil, e.Data)
		default:
			if e.Epoch != epoch {
				epoch = e.Epoch
				id = ticket.AppendEvent(p.id[:0], c.name, epoch, 0)
				id = id[:len(id)-1]
			}
			text = c.Sink.Append(text, append(strconv.AppendUint(id, e.Seq, 36), c.tail...), e.Data)
		}
	}
	return text
}

// Standalone attaches the copier to the session's standalone stream: after the last message
// that was delivered, or, if whole is set, at its beginning.
func (c *Copier) Standalone(ctx context.Context, logger *slog.Logger, whole, ids bool) error {
	keep := c.Session.Streams().Supersede(ctx)
	at := c.Session.Streams().Delivered()
	if whole {
		at = 0
	}
	err := c.Read(ctx, stream.Cursor{Seq: at}, ids)
	if errors.Is(err, stream.ErrTrimmed) || errors.Is(err, io.EOF) {
		logger.Warn("messages of the standalone stream were dropped unread", "session", c.Session.Name())
		err = c.Read(ctx, stream.Cursor{Seq: c.Session.Streams().Oldest(ctx, reading.Standalone)}, ids)
	}
	if err != nil {
		keep()
	}
	return err
}

// CursorOf returns the cursor that an event id of a session stands for. The error is [ticket.ErrBadEvent].
func CursorOf(s *session.Session, id string) (at stream.Cursor, err error) {
	e, err := ticket.ParseEvent(s.ID(), id)
	if err != nil {
		return at, err
	}
	return stream.Cursor{Stream: stream.ID{Session: stream.SessionKey(s.Name()), Number: e.Number}, Epoch: e.Epoch, Seq: e.Seq}, nil
}

// ResumedAt returns where a requests/resume of a principal asks to go on: after the event with the id last, or, if that is "", after
// the one that its _meta names, or else from the oldest message that is kept. The error is one that [answering.Writer.Explain] knows.
func ResumedAt(ctx context.Context, sessions *session.Manager, of caller.Principal, m *jsonrpc.Message, last string) (*session.Session, stream.Cursor, error) {
	s, number, err := sessions.Resumes().Find(jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken")), m.ID, of)
	if err != nil {
		return nil, stream.Cursor{}, err
	}
	if last == "" {
		last = jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaLastEventID))
	}
	at, err := CursorAfter(ctx, s, number, last)
	return s, at, err
}

// CursorAfter returns the place in a stream after an event, or, where its id is "", before the oldest that is kept.
func CursorAfter(ctx context.Context, s *session.Session, number uint64, last string) (stream.Cursor, error) {
	if last == "" {
		return stream.Cursor{Stream: stream.ID{Number: number}, Seq: s.Streams().Oldest(ctx, number)}, nil
	}
	at, err := CursorOf(s, last)
	if err == nil && at.Stream.Number != number {
		err = ticket.ErrBadEvent
	}
	return at, err
}
