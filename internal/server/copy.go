package server

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/stream"
)

// A conn is one connection to one client, which reads one stream of the log, or
// the standalone stream together with others.
type conn struct {
	h   *Handler
	s   *session.Session
	out sink
	// What comes in on the same connection, if that is its way.
	duplex *duplex

	sources []source
	first   int // the source that comes first in the next turn
	ready   chan struct{}

	ids     bool   // events carry ids
	primes  bool   // the client knows events with empty data
	prefix  string // of event ids: names the session where nothing else does
	url     bool   // the client came through the stream URL, or may
	sentID  bool   // an id was written
	resumed bool   // the client came back for a call
	young   bool   // it answers initialize: who lost that begins anew
	away    bool   // another node passes it on to the client
	stays   bool   // the client is not to be sent away: there is more on its connection
	unseen  bool   // and did not arrive: the client had left before
	pinged  bool   // the client was pinged, so that an id is written

	opened  time.Time
	written time.Time // when the client was last told anything
	asking  time.Time // since when there is nothing to do but wait for the client's input

	leaving time.Time // when to leave, as the node is drained; zero: it is not
	recover time.Time // when there will be calls to continue; zero: that will be said
	from    string    // the client's address
	watched *watched  // the connection below; nil if it can't be asked
	heeded  bool      // another node asks it, and tells
}

// A sink is how messages get to a client: as events, for one. Only the
// connection's loop uses it.
type sink interface {
	// append appends a message as it will be written; id is its event id, or nil.
	append(text, id, data []byte) []byte
	// write writes what was appended, without waiting for a slow client for ever.
	// Nothing will follow what is the last.
	write(text []byte, last bool) error
	// keep says something that means nothing, for the sake of saying it.
	keep() error
	// leave tells the client to come back after a time: the connection ends.
	leave(retry time.Duration) error
}

// source is one stream that a connection reads.
type source struct {
	*session.Reader
	name  string
	about *asked // what else a duplex connection knows of it
	ended bool   // nothing follows
	told  bool   // and all was written
	noted bool   // what was written so far is on record
}

// page is what one turn of the loop needs. Connections that wait hold none.
type page struct {
	entries [64]stream.Entry
	text    []byte
	id      [96]byte
}

var pages = sync.Pool{New: func() any { return &page{text: make([]byte, 0, 8<<10)} }}

// mostText is how many bytes are gathered before they are written: a message that
// begins below it is the last one of its write.
const mostText = 64 << 10

// read adds a stream to what the connection reads.
func (c *conn) read(ctx context.Context, cursor stream.Cursor) error {
	r, err := c.s.Read(ctx, cursor.Stream.Number, cursor.Epoch, cursor.Seq, c.ready)
	if err != nil && c.s.Moved() {
		return session.ErrMoved
	}
	if err != nil {
		return err
	}
	src := source{Reader: r}
	if c.ids {
		src.name = c.prefix + c.s.StreamName(cursor.Stream.Number)
	}
	c.sources = append(c.sources, src)
	return nil
}

// Why a connection ends.
var (
	errTaken  = errors.New("a newer connection reads the stream")
	errLeft   = errors.New("the client has left")
	errKicked = errors.New("the connection was ended, to be resumed")
)

// copy writes what the sources hold until they end (nil), the client is gone,
// or the connection is ended for another reason. It is the only loop that
// writes messages to a client.
func (c *conn) copy(ctx context.Context) error {
	ready := c.ready // all that the timer holds
	timer := time.AfterFunc(time.Hour, func() { session.Wake(ready) })
	defer timer.Stop()
	for {
		gone := c.sources[0].Gone() // asked before, so that what was said until then is written
		more, err := c.turn(ctx)
		switch {
		case err != nil && c.s.Moved() && ctx.Err() == nil:
			return c.sendOn() // nothing is kept of it here
		case err != nil || c.over():
			return err
		case more:
			continue
		case gone && c.duplex == nil && c.s.Moved():
			return c.sendOn()
		case gone && c.duplex == nil:
			return errTaken
		case gone:
			c.duplex.lose()
		}
		if err := c.due(ctx); err != nil {
			return err
		}
		timer.Reset(c.next())
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
}

// turn writes what is ready, in one write, and says whether there may be more.
func (c *conn) turn(ctx context.Context) (more bool, err error) {
	p := pages.Get().(*page)
	text := p.text[:0]
	if c.duplex != nil {
		text, more = c.duplex.takeUp(text)
	}
	first := c.first
	c.first = 0
	for n := range c.sources {
		i := (first + n) % len(c.sources)
		src := &c.sources[i]
		if i > 0 && src.Gone() && !src.ended {
			src.ended = true // its client reads it on another connection
			if c.duplex != nil && src.about.session.Moved() && c.duplex.leads(src) {
				more = true
			}
		}
		if src.ended || src.noted && len(c.sources) > 1 && !src.Behind() {
			continue
		}
		if len(text) >= mostText {
			more, c.first = true, i
			break
		}
		entries, err := src.Next(ctx, p.entries[:0])
		src.noted = src.noted && len(entries) == 0
		text = c.gather(p, text, src, entries)
		switch {
		case err == nil:
			more = more || len(entries) == cap(p.entries) || len(text) >= mostText
		case errors.Is(err, io.EOF):
			src.ended = true
		case c.duplex != nil && c.duplex.lost(ctx, src, err):
			more = true
		default:
			p.release(text)
			return false, err
		}
	}
	if c.duplex != nil {
		c.duplex.forget()
	}
	if len(text) > 0 {
		err = c.out.write(text, c.over())
	}
	p.release(text)
	if err != nil {
		return false, err
	}
	left := c.left(ctx) // what is written to a client that has left does not fail at once
	for i := range c.sources {
		src := &c.sources[i]
		if src.noted && src.told == src.ended {
			continue
		}
		if left != nil && src.Cursor().Stream.Number != 0 {
			continue // the standalone stream is not told twice, though
		}
		src.Delivered()
		src.noted = true
		if src.ended && !src.told {
			c.finished(src, i > 0)
		}
		src.told = src.ended
	}
	c.drop()
	return more, left
}

// drop lets go of the continued calls that are over, or that their client reads
// on another connection. A connection is as it was before it took them.
func (c *conn) drop() {
	kept := c.sources[:1]
	for _, src := range c.sources[1:] {
		if src.told {
			src.Detach(false, c.sentID, true)
		} else {
			kept = append(kept, src)
		}
	}
	clear(c.sources[len(kept):])
	c.sources = kept
}

func (p *page) release(text []byte) {
	clear(p.entries[:])
	if cap(text) <= 2*mostText {
		p.text = text
	}
	pages.Put(p)
}

// gather appends what entries say, and gives back to the source those that
// are too much for one write.
func (c *conn) gather(p *page, text []byte, src *source, entries []stream.Entry) []byte {
	if len(entries) == 0 {
		return text
	}
	var id []byte
	epoch := uint64(0) // that id is of
	for i := range entries {
		if len(text) >= mostText {
			src.Rewind(entries[i-1])
			break
		}
		e := &entries[i]
		src.ended = src.ended || e.Last
		if len(e.Data) == 0 {
			continue // the end of a call that was cancelled
		}
		if c.ids {
			c.sentID = true
			if e.Epoch != epoch {
				epoch = e.Epoch
				id = session.AppendEventID(p.id[:0], src.name, epoch, 0)
				id = id[:len(id)-1]
			}
			text = c.out.append(text, strconv.AppendUint(id, e.Seq, 36), e.Data)
		} else {
			text = c.out.append(text, nil, e.Data)
		}
	}
	return text
}

// over says whether nothing will follow: every source has ended.
func (c *conn) over() bool {
	if c.duplex != nil {
		return c.duplex.over()
	}
	for i := range c.sources {
		if !c.sources[i].ended {
			return false
		}
	}
	return true
}

// next returns how long to wait at the most before something is due.
func (c *conn) next() time.Duration {
	now := time.Now()
	due := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(due) {
			due = t
		}
	}
	if c.h.opts.KeepAlive > 0 {
		sooner(c.written.Add(c.h.opts.KeepAlive))
	}
	if c.h.opts.DisconnectAfter > 0 && c.mayLeave() {
		sooner(c.opened.Add(c.h.opts.DisconnectAfter))
	}
	if !c.recover.IsZero() {
		sooner(c.recover)
	}
	if c.pings() {
		sooner(c.opened.Add(c.h.opts.PingAfter))
	}
	if !c.leaving.IsZero() && c.quiet() {
		sooner(c.leaving)
	}
	if c.duplex != nil {
		due = c.duplex.next(due)
	}
	if c.waitsForInput() {
		if c.asking.IsZero() {
			c.asking = now
		}
		sooner(c.asking.Add(c.h.opts.InputGrace))
	} else {
		c.asking = time.Time{}
	}
	return max(due.Sub(now), 0)
}

// waitsForInput says whether the call waits for its client, which knows how to
// come back for the rest (SEP-1335, "Multi-turn").
func (c *conn) waitsForInput() bool {
	return (c.url || c.primes) && c.mayLeave() && len(c.sources) == 1 && c.sources[0].AwaitsInput()
}

// mayLeave says whether the connection may be ended before its streams: the
// client can come back to the same place, or misses nothing if it does not.
func (c *conn) mayLeave() bool {
	if c.duplex != nil {
		return c.duplex.mayLeave()
	}
	return !c.stays && (c.sentID || c.url || c.sources[0].Cursor().Stream.Number == 0) && c.announced()
}

// announced says whether the client has been told how to resume all that it reads here,
// as far as that is told.
func (c *conn) announced() bool {
	for i := range c.sources {
		if src := &c.sources[i]; !src.ended && !src.PastPolicy() {
			return false
		}
	}
	return true
}

// quiet says whether the client waits for nothing in particular.
func (c *conn) quiet() bool {
	if c.duplex != nil && (!c.duplex.idle() || !c.duplex.alone()) || c.s.SingleStream() && c.s.Busy() {
		return false
	}
	return len(c.sources) == 1 && c.sources[0].Cursor().Stream.Number == 0
}

// wait waits until there is something to do.
func (c *conn) wait(ctx context.Context) error {
	draining := c.h.draining
	if !c.quiet() || !c.leaving.IsZero() {
		draining = nil // calls in flight are waited for
	}
	// The less there is to select from, the less memory a waiting connection takes.
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-draining:
		c.leaving = time.Now().Add(rand.N(c.h.spread + 1))
		return nil
	}
}

// due does what its time has come for.
func (c *conn) due(ctx context.Context) error {
	now := time.Now()
	opts := &c.h.opts
	for i := range c.sources {
		if !c.announced() || c.duplex != nil && !c.duplex.idle() {
			break // we are told when it is time
		}
		if retry, ok := c.sources[i].DisconnectRequest(); ok {
			return c.leave(retry)
		}
	}
	if c.duplex == nil && c.sources[0].LostChanged() || !c.recover.IsZero() && !now.Before(c.recover) {
		c.adopt(ctx)
	}
	if c.duplex != nil {
		if err := c.duplex.due(now); err != nil {
			return err
		}
	}
	if c.pings() && now.Sub(c.opened) >= opts.PingAfter {
		c.pinged = true
		c.sources[0].Ping()
	}
	switch {
	case !c.leaving.IsZero() && !now.Before(c.leaving) && c.quiet():
		// Spread over a second time of waiting, so that not all come back at once.
		return c.leave(opts.Retry + rand.N(opts.Retry+1))
	case opts.DisconnectAfter > 0 && c.mayLeave() && now.Sub(c.opened) >= opts.DisconnectAfter:
		return c.leave(-1)
	case !c.asking.IsZero() && now.Sub(c.asking) >= opts.InputGrace && c.waitsForInput():
		return c.leave(-1)
	case opts.KeepAlive > 0 && now.Sub(c.written) >= opts.KeepAlive:
		return c.out.keep()
	}
	return nil
}

// sendOn has the client come back where its session is by now. When that is because
// this node is drained, so have many others: they come one after the other.
func (c *conn) sendOn() error {
	switch {
	case c.duplex != nil:
		return errKicked
	case c.away:
		return errTaken // its node goes on there
	}
	retry := time.Duration(0)
	if c.h.isDraining() {
		retry = c.h.opts.Retry + rand.N(min(c.h.spread, mostDelay)+1)
	}
	if err := c.leave(retry); err != nil {
		return err
	}
	return errTaken
}

// leave ends the connection and tells the client when to come back (SEP-1699).
// Where the client could not come back, it stays.
func (c *conn) leave(retry time.Duration) error {
	if !c.mayLeave() {
		return nil
	}
	if retry < 0 {
		retry = c.h.opts.Retry
	}
	if err := c.out.leave(retry); err != nil {
		return err
	}
	return errKicked
}

// close detaches the readers, after the copying has ended with err.
func (c *conn) close(err error) {
	broke := err != nil && !errors.Is(err, errTaken) && !errors.Is(err, errKicked)
	if broke {
		c.s.Disconnected(c.from, time.Now().Add(-justBefore))
	}
	for i := range c.sources {
		src := &c.sources[i]
		// Of a connection that continued calls besides its own stream the client
		// knows one id at the most: it may come back for another stream.
		besides := i > 0
		src.Detach((broke || besides && err != nil) && !src.told, c.sentID && !c.unseen, besides)
	}
	if errors.Is(err, stream.ErrTrimmed) {
		c.h.logger.Warn("slow reader: what it missed is no longer kept", "session", c.s.Name())
	}
}
