package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/reading"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// A sink is where one stream is written. Only the goroutine that copies the stream
// uses it.
type sink interface {
	// append appends a message to text, as the client will see it. id is its event id,
	// or nil.
	append(text, id, data []byte) []byte
	// write writes what was appended, and waits for a slow client for a bounded time only.
	// last reports that the stream has ended. An error means that the client did not receive
	// it, as far as that can be known; errHeld, that it is written together with what follows.
	write(text []byte, last bool) error
	// idle is called when all that the stream holds was written. It does what its time
	// has come for, and returns when it is to be called again at the latest; zero: only
	// when the stream has more. An error ends the copying.
	idle(ctx context.Context, now time.Time) (next time.Time, err error)
	// finished is called when all of the stream was written, and counts as delivered.
	finished()
}

// A copier copies one stream of the log into one sink. It is used by one goroutine.
type copier struct {
	s     *session.Session
	r     *reading.Reader
	call  *session.Call // whose stream it is, if its client has just begun it; else nil
	sink  sink
	ready chan struct{}   // signalled when there may be something to do
	drain <-chan struct{} // closed when there is; nil where the sink does not want to know
	name  string          // names the stream in event ids; "": the client gets none
	tail  string          // what event ids end with: see [session.Session.EventTail]
	// yields says that a newer connection has the stream to itself at once: nothing more is
	// written here, not even what was appended before. The two may be one connection.
	yields bool
	// continues says that a node goes on by itself after what it has written: see [exchange].
	continues bool
	// resumes says that its client comes back with an event id.
	resumes bool
	// stays says that the connection may stay although a newer one has the standalone stream.
	stays bool
	state copyState
	door  observe.Door
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

// page is what one turn needs. Copiers that wait hold none.
type page struct {
	entries [64]stream.Entry
	text    []byte
	id      [160]byte
}

var pages = sync.Pool{New: func() any { return &page{text: make([]byte, 0, 8<<10)} }}

// mostText is how many bytes are gathered before they are written: a message that
// begins below it is the last one of its write.
const mostText = 64 << 10

func (p *page) release(text []byte) {
	clear(p.entries[:])
	if cap(text) <= 2*mostText {
		p.text = text
	}
	pages.Put(p)
}

// errHeld reports that a sink writes nothing before the stream ends.
var errHeld = errors.New("written when the stream ends")

// Why a connection ends.
var (
	errSuperseded = errors.New("a newer connection reads the stream")
	errLeft       = errors.New("the client has left")
	errComeBack   = errors.New("the connection was ended, to be resumed")
	errOver       = errors.New("the connection has ended") // for a reason of its own: the cause of what ends with it
)

// read attaches the copier to a stream of its session. ids reports whether the client
// gets event ids.
func (c *copier) read(ctx context.Context, cursor stream.Cursor, ids bool) error {
	number, kind := cursor.Stream.Number, reading.Says
	switch {
	case number == 0 && c.stays:
		kind = reading.Stays
	case c.continues:
		kind = reading.GoesOn
	case c.resumes && number != 0:
		kind = reading.Resumes
	}
	r, err := c.s.Streams().Read(ctx, kind, cursor, c.ready)
	if err != nil && c.s.Moved() {
		return session.ErrMoved
	}
	if err != nil {
		return err
	}
	c.r, c.state = r, attached
	r.Through(c.door, c.call.Like())
	if ids {
		c.name, c.tail = c.s.StreamName(cursor.Stream.Number)
	}
	return nil
}

// run copies the stream until it ends (nil) or the sink returns an error. It is the
// only loop that copies a stream to a client. The error is [session.ErrMoved] when the
// stream goes on at another node, and errSuperseded when another connection reads it.
func (c *copier) run(ctx context.Context) error {
	var timer *time.Timer
	for {
		gone := c.r.Gone() // asked first, so that everything before is written
		var more bool
		var err error
		if (!gone || !c.yields) && !c.r.Aside(ctx) {
			more, err = c.turn(ctx)
		}
		switch {
		case err != nil && c.s.Moved() && ctx.Err() == nil:
			err = session.ErrMoved // its stream is no longer here
		case err != nil || c.state >= last:
		case more:
			continue
		case gone && c.s.Moved():
			err = session.ErrMoved
		case gone:
			err = errSuperseded
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

// rest has the sink do what is due, and sets the timer for what will be. It is nil
// until it is needed.
func (c *copier) rest(ctx context.Context, timer *time.Timer) (*time.Timer, error) {
	now := time.Now()
	next, err := c.sink.idle(ctx, now)
	switch {
	case err != nil || next.IsZero():
	case timer == nil:
		ready := c.ready // all that the timer holds
		timer = time.AfterFunc(next.Sub(now), func() { reading.Wake(ready) })
	default:
		timer.Reset(next.Sub(now))
	}
	return timer, err
}

// wait waits until there may be something to do. The less there is to select from, the
// less memory a waiting connection takes.
func (c *copier) wait(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.drain:
		c.drain = nil
	}
	return nil
}

// turn writes what the stream holds, in one write, and reports whether there may be
// more.
func (c *copier) turn(ctx context.Context) (more bool, err error) {
	p := pages.Get().(*page)
	entries, err := c.r.Next(ctx, p.entries[:0])
	if errors.Is(err, io.EOF) {
		c.state, err = last, nil
	}
	text := p.text[:0]
	before := ctx.Err()
	if err == nil {
		text = c.gather(p, entries)
		more = len(entries) == cap(p.entries) || len(text) >= mostText
		if len(entries) > 0 || c.state == last {
			err = c.sink.write(text, c.state == last)
		}
	}
	news := len(entries) > 0 || c.state != current
	p.release(text)
	switch {
	case errors.Is(err, errHeld):
		news = false
	case err != nil:
		return false, err
	}
	left := ctx.Err() // what is written to a client that has left does not fail at once
	if c.yields && c.state == last {
		left = before // it may have read the response since: that is there at once, unlike the end of an HTTP response
	}
	if left != nil && errors.Is(context.Cause(ctx), errOver) {
		left = nil // it has not: the connection ends for another reason
	}
	if left != nil && c.r.Cursor().Stream.Number != 0 {
		c.r.Wrote()
		return false, left // of the standalone stream nothing is sent twice, though
	}
	if news {
		c.note()
	}
	return more, left
}

// note notes that what was read so far has been written.
func (c *copier) note() {
	c.r.Delivered()
	if c.state < last {
		c.state = current
		return
	}
	c.sink.finished()
	c.state = delivered
}

// gather appends what entries say to the page's text, and gives back to the reader
// those that are too much for one write.
func (c *copier) gather(p *page, entries []stream.Entry) []byte {
	text := p.text[:0]
	var id []byte
	epoch := uint64(0) // that id is of
	for i := range entries {
		if len(text) >= mostText {
			c.r.Rewind(entries[i-1])
			break
		}
		e := &entries[i]
		if e.Last {
			c.state = last
		}
		switch {
		case len(e.Data) == 0: // the end of a call that was cancelled
		case c.name == "":
			text = c.sink.append(text, nil, e.Data)
		default:
			if e.Epoch != epoch {
				epoch = e.Epoch
				id = ticket.AppendEvent(p.id[:0], c.name, epoch, 0)
				id = id[:len(id)-1]
			}
			text = c.sink.append(text, append(strconv.AppendUint(id, e.Seq, 36), c.tail...), e.Data)
		}
	}
	return text
}

// standalone attaches the copier to the session's standalone stream: after the last message
// that was delivered, or, if whole is set, at its beginning.
func (c *copier) standalone(ctx context.Context, logger *slog.Logger, whole, ids bool) error {
	keep := c.s.Streams().Supersede(ctx)
	at := c.s.Streams().Delivered()
	if whole {
		at = 0
	}
	err := c.read(ctx, stream.Cursor{Seq: at}, ids)
	if errors.Is(err, stream.ErrTrimmed) || errors.Is(err, io.EOF) {
		logger.Warn("messages of the standalone stream were dropped unread", "session", c.s.Name())
		err = c.read(ctx, stream.Cursor{Seq: c.s.Streams().Oldest(ctx, reading.Standalone)}, ids)
	}
	if err != nil {
		keep()
	}
	return err
}
