// Package streaming copies streams of the log to clients: one loop reads a stream at a cursor and writes it to a sink. The sinks of
// HTTP are here, of events and of plain JSON.
package streaming

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

// A Sink takes the messages of one stream. Only the goroutine that copies the stream uses it.
type Sink interface {
	// Append appends a message to text, in the client's format. id is its event id, or nil.
	Append(text, id, data []byte) []byte
	// Write writes the appended text, and waits only a bounded time for a slow client. last
	// says that the stream has ended. After an error the client has not received the text, as
	// far as is known; after ErrHeld the text is written together with the next.
	Write(text []byte, last bool) error
	// Idle is called when all entries of the stream so far were written. It does timed
	// work, such as keep-alives, and returns the latest time of its next call; zero:
	// when the stream has more. An error ends the copying.
	Idle(ctx context.Context, now time.Time) (next time.Time, err error)
	// Finished is called when the whole stream was written, and counts as delivered.
	Finished()
}

// A Copier copies one stream of the log into one sink. It is used by one goroutine.
type Copier struct {
	Session *session.Session
	Reader  *reading.Reader
	Call    *session.Call // the stream's call, if the client has just begun it; else nil
	Sink    Sink
	Ready   chan struct{}   // signalled when the copier may have something to do
	Drain   <-chan struct{} // closed when the node is drained; nil if the sink does not wait for that
	name    string          // of the stream in event ids; "": the client gets none
	tail    string          // end of event ids, see [session.Session.StreamName]
	// Yields says that a newer connection takes the stream over at once: no more is written
	// here, not even entries from before. Both may be one connection.
	Yields bool
	// Continues says that a node, and not the client, asks for the rest of the stream: see [exchange.Exchange].
	Continues bool
	// Resumes says that the client comes back with an event id.
	Resumes bool
	// Stays says that the connection may stay when a newer one reads the standalone stream.
	Stays bool
	state copyState
	Door  observe.Door
}

// A copyState is the progress of a copier:
//
//	attached  no entry was noted yet    → current: all entries so far were written and noted
//	current   all entries were noted    → last: the last entry was read
//	last      no entry follows          → delivered: it was written, and the client was there
//	delivered the end
//
// If a copier ends in an earlier state, the client may have missed messages.
type copyState uint8

const (
	attached copyState = iota
	current
	last
	delivered
)

// A Page has the buffers of one turn. Copiers that wait hold none.
type Page struct {
	Text    []byte // the buffer for gathered messages
	entries [64]stream.Entry
	id      [160]byte
}

var pages = sync.Pool{New: func() any { return &Page{Text: make([]byte, 0, 8<<10)} }}

// TakePage returns a page. The caller must release it.
func TakePage() *Page { return pages.Get().(*Page) }

// MostText is how many bytes are gathered before they are written: a message that begins below it is the last one of its write.
const MostText = 64 << 10

// Release gives a page back, with text as its buffer.
func (p *Page) Release(text []byte) {
	clear(p.entries[:])
	if cap(text) <= 2*MostText {
		p.Text = text
	}
	pages.Put(p)
}

// ErrHeld says that a sink writes nothing before the stream ends.
var ErrHeld = errors.New("written when the stream ends")

// Reasons that a connection ends.
var (
	ErrSuperseded = errors.New("a newer connection reads the stream")
	ErrLeft       = errors.New("the client has left")
	ErrComeBack   = errors.New("the connection was ended, to be resumed")
	ErrOver       = errors.New("the connection has ended") // the cause for the goroutines that end with it
)

// Read attaches the copier to a stream of its session, after a cursor. ids says that the client gets event ids.
func (c *Copier) Read(ctx context.Context, cursor stream.Cursor, ids bool) error {
	return c.readOn(ctx, cursor, ids, nil)
}

// readOn is Read for a call that is continued on a connection of the standalone stream, if on is not nil.
func (c *Copier) readOn(ctx context.Context, cursor stream.Cursor, ids bool, on *reading.Outlet) error {
	number, kind := cursor.Stream.Number, reading.Says
	switch {
	case number == 0 && c.Stays:
		kind = reading.Stays
	case c.Continues:
		kind = reading.GoesOn
	case c.Resumes && number != 0:
		kind = reading.Resumes
	}
	r, err := c.Session.Streams().ReadOn(ctx, kind, cursor, c.Ready, on)
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
// The error is [session.ErrMoved] if the stream goes on at another node, and ErrSuperseded if another connection reads it.
func (c *Copier) Run(ctx context.Context) error {
	var timer *time.Timer
	for {
		gone := c.Reader.Gone() // first, so that all entries before are written
		var more bool
		var err error
		if (!gone || !c.Yields) && !c.Reader.Aside(ctx) {
			more, err = c.Turn(ctx)
		}
		switch {
		case err != nil && c.Session.Moved() && ctx.Err() == nil:
			err = session.ErrMoved // the stream is no longer here
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

// rest calls the sink's Idle, and sets the timer for its next call. The timer is nil until it is needed.
func (c *Copier) rest(ctx context.Context, timer *time.Timer) (*time.Timer, error) {
	now := time.Now()
	next, err := c.Sink.Idle(ctx, now)
	switch {
	case err != nil || next.IsZero():
	case timer == nil:
		ready := c.Ready // the timer must hold no more
		timer = time.AfterFunc(next.Sub(now), func() { reading.Wake(ready) })
	default:
		timer.Reset(next.Sub(now))
	}
	return timer, err
}

// wait waits until the copier may have something to do. The fewer cases a select has, the less memory a waiting connection takes.
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

// Turn writes entries of the stream, in one write, and reports whether there may be more.
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
	left := ctx.Err() // a write to a client that has left does not fail at once
	if c.Yields && c.state == last {
		left = before // the client may have read the response and left since: it gets that at once, unlike the end of an HTTP response
	}
	if left != nil && errors.Is(context.Cause(ctx), ErrOver) {
		left = nil // the client has not left: the connection ends for another reason
	}
	if left != nil && c.Reader.Cursor().Stream.Number != 0 {
		c.Reader.Wrote()
		return false, left // but messages of the standalone stream are not sent twice
	}
	if news {
		c.note()
	}
	return more, left
}

// IsRead reports whether the last entry of the stream was read.
func (c *Copier) IsRead() bool { return c.state >= last }

// IsDelivered reports whether the whole stream was written while the client was there.
func (c *Copier) IsDelivered() bool { return c.state == delivered }

// note notes that the entries read so far were written.
func (c *Copier) note() {
	c.Reader.Delivered()
	if c.state < last {
		c.state = current
		return
	}
	c.Sink.Finished()
	c.state = delivered
}

// gather appends the messages of entries to the page's text, and gives entries that are too much for one write back to the reader.
func (c *Copier) gather(p *Page, entries []stream.Entry) []byte {
	text := p.Text[:0]
	var id []byte
	epoch := uint64(0) // of id
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

// Standalone attaches the copier to the session's standalone stream: after the last
// delivered message, or, if whole is set, at its beginning.
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

// CursorOf returns the cursor of an event id of a session. The error is [ticket.ErrBadEvent].
func CursorOf(s *session.Session, id string) (at stream.Cursor, err error) {
	e, err := ticket.ParseEvent(s.ID(), id)
	if err != nil {
		return at, err
	}
	return stream.Cursor{Stream: stream.ID{Session: stream.SessionKey(s.Name()), Number: e.Number}, Epoch: e.Epoch, Seq: e.Seq}, nil
}

// ResumedAt returns the session and the cursor of a requests/resume of a principal: after the event with the id last, or, if that is
// "", after the one that its _meta names, or else before the oldest message that is kept. [answering.Writer.Explain] knows the error.
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

// CursorAfter returns the cursor in a stream after the event with the id last, or, if that is "", before the oldest that is kept.
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
