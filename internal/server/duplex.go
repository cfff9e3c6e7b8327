package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A pipe carries messages both ways between a client and its [duplex]. read has
// one caller at a time, and so have the others together.
type pipe interface {
	// read returns the next message, which is the caller's to keep. A *jsonrpc.Error
	// says that one was left out, and why; io.EOF that no other will come, though the
	// client may still read. After any other error the pipe is of no use.
	read() ([]byte, error)
	// write writes messages, each of which ends in a line feed, without waiting for
	// a slow client for ever.
	write(lines []byte) error
	// ping asks the other end for a sign of life, and breaks the pipe if none comes.
	// It does not wait.
	ping()
	// close ends the pipe because of why, and with it read. retry is when the client
	// may come back.
	close(why error, retry time.Duration)
}

// A duplex is a connection on which messages go both ways. One goroutine takes
// what comes in (inbound.go), and one writes: the loop of [conn], which reads the
// standalone stream of the connection's session, and besides, each call that was
// made or resumed here, of whichever session.
type duplex struct {
	conn
	pipe      pipe
	principal string
	values    context.Context // of the request that began the connection; it does not end with it
	header    http.Header     // of that request
	returns   bool            // the client can connect again, to the same session

	mu       sync.Mutex
	room     sync.Cond         // told when arrivals were taken up, and at the end
	arrivals []arrival         // on their way to the loop
	bytes    int               // that they say
	finished bool              // nothing more comes in
	taking   bool              // what came in last is being handled
	waits    bool              // and the loop waits for that
	closed   bool              // nothing is taken up any more
	foreign  map[string]*asked // calls of other sessions, by the ids of their requests
	strands  int               // how many calls of other nodes are read
	afar     context.Context   // of the strands; nil until there is one
	part     context.CancelFunc
	roamed   bool // a call of another session was resumed here
	kicked   bool // the client is to come back, for what could not be gone on with here

	// The loop's own.
	light  []arrival // calls that are waited for, oldest first
	last   []byte    // what is to be said of streams that were lost
	retry  time.Duration
	quoted []byte // an event id
}

// asked is what a duplex connection knows of a stream that it reads, beside the
// stream.
type asked struct {
	session *session.Session // nil if it is on another node
	key     stream.SessionKey
	ids     [][]byte // of the requests
	strand  *strand  // that reads it there
	// msgs have to be asked again where the session is, if it leaves while the call
	// is light; nil where the client does that.
	msgs []jsonrpc.Message
}

// Why a duplex connection ends, besides.
var (
	errSessionEnded = errors.New("the session ended")
	errSilent       = errors.New("no initialize request came")
	errPanicked     = errors.New("a message was not handled to its end")
)

// newDuplex prepares a duplex connection in a session. r is the request that began
// it.
func (h *Handler) newDuplex(r *http.Request, s *session.Session) *duplex {
	d := &duplex{
		conn:      conn{h: h, s: s, ready: make(chan struct{}, 1), opened: time.Now()},
		principal: h.principal(r),
		values:    context.WithoutCancel(r.Context()),
		header:    r.Header,
	}
	d.out, d.duplex = d, d
	d.written = d.opened
	d.room.L = &d.mu
	return d
}

// serve carries messages until the client is gone (then it is ctx's error, or what
// the pipe said), the connection is ended for another reason, or, if the client
// has nothing more to say, all that it asked for has been said (nil). The
// standalone stream must be read already.
func (d *duplex) serve(ctx context.Context, p pipe) (err error) {
	d.pipe = p
	d.sources[0].name = d.s.StreamName(0)
	ctx, gone := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		err = d.copy(ctx)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = context.Cause(ctx)
		}
		d.close(err)
		p.close(err, d.retry)
	}()
	defer func() {
		gone(errPanicked) // if nothing has ended it yet
		<-over
	}()
	d.listen(gone)
	<-over
	return err
}

// source attaches to a stream of a session.
func (d *duplex) source(s *session.Session, at stream.Cursor, of *asked) (source, error) {
	r, err := s.Read(d.values, at.Stream.Number, at.Epoch, at.Seq, d.ready)
	if err != nil {
		return source{}, err
	}
	src := source{Reader: r, about: of}
	if d.tags() {
		src.name = s.StreamName(at.Stream.Number)
	}
	return src, nil
}

// refuse appends to text, for each request, the error that err means.
func (d *duplex) refuse(text []byte, ids [][]byte, err error) []byte {
	e := new(jsonrpc.Error)
	if !errors.As(err, &e) {
		_, e = d.h.explain(err)
	}
	for _, id := range ids {
		text = append(jsonrpc.AppendError(text, id, e), '\n')
	}
	return text
}

// lost goes on without a stream, or a part of it, that can no longer be read, and
// says whether that is possible.
func (d *duplex) lost(ctx context.Context, src *source, err error) bool {
	if errors.Is(err, session.ErrMoved) {
		return d.leads(src)
	}
	if !errors.Is(err, stream.ErrTrimmed) && !errors.Is(err, stream.ErrNotFound) {
		return false
	}
	if src.about != nil {
		src.ended = true
		d.last = d.refuse(d.last, src.about.ids, err)
		return true
	}
	if d.s.Ended() {
		d.lose()
		return true
	}
	d.h.logger.Warn("messages of the standalone stream were dropped unread", "session", d.s.Name())
	r, err := d.s.Read(ctx, 0, 0, d.s.Oldest(ctx), d.ready)
	if err != nil {
		return false
	}
	src.Detach(false, true, false)
	src.Reader = r
	return true
}

// lose lets go of the standalone stream, which is read elsewhere, or over.
func (d *duplex) lose() {
	if src := &d.sources[0]; !src.ended {
		src.ended, src.told = true, true
		src.Detach(false, true, false)
	}
}

// forget frees the ids of calls of other sessions that are over, before their
// client is told so.
func (d *duplex) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.foreign) == 0 {
		return
	}
	for i := range d.sources[1:] {
		src := &d.sources[i+1]
		if !src.ended || src.told || src.about.session == d.s {
			continue
		}
		d.release(src.about)
	}
}

// idle says whether nothing that was asked here is unanswered, but what is read as
// a stream.
func (d *duplex) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waits = d.taking
	return !d.taking && len(d.arrivals) == 0 && len(d.light) == 0
}

// alone says whether no call is read as a stream, here or from another node.
func (d *duplex) alone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sources) == 1 && d.strands == 0
}

// over says whether all has been said to a client that will say no more.
func (d *duplex) over() bool {
	d.mu.Lock()
	finished := d.finished
	d.mu.Unlock()
	return finished && d.alone() && d.idle() && len(d.last) == 0
}

// mayLeave says whether the connection may be ended: the client can connect again
// and find all that it has asked for, or is being sent away by a node that has
// nothing more to tell it.
func (d *duplex) mayLeave() bool {
	if !d.idle() {
		return false
	}
	select {
	case <-d.h.draining:
		return d.alone()
	default:
		return d.returns && (d.alone() || d.resumes() && d.announced())
	}
}

// next returns when something is due, if that is before the given time.
func (d *duplex) next(due time.Time) time.Time {
	if len(d.light) > 0 && d.h.opts.Response != ResponseJSON {
		if at := d.light[0].since.Add(d.h.opts.UpgradeAfter); at.Before(due) {
			due = at
		}
	}
	if at := d.opened.Add(d.h.opts.BodyTimeout); d.silent() && at.Before(due) {
		due = at
	}
	return due
}

// silent says whether the client of a connection that can be made again has yet to
// begin.
func (d *duplex) silent() bool { return d.returns && !d.begun() && !d.bare() }

// bare says whether the client came for calls of other sessions, and has begun none
// here.
func (d *duplex) bare() bool {
	d.mu.Lock()
	roamed := d.roamed
	d.mu.Unlock()
	return roamed && !d.begun()
}

// resumes says whether the client can resume what it hears of here.
func (d *duplex) resumes() bool { return d.s.Resumable() && d.s.Revision() != "" || d.bare() }

// tags says whether the client is told event ids. One that has begun nothing here has
// had no way to ask for them.
func (d *duplex) tags() bool { return d.s.EventIDs() || !d.begun() }

// begun says whether the session is initialized, or about to be.
func (d *duplex) begun() bool { return d.s.Initializing() != nil || d.s.Revision() != "" } // in this order

// due does what its time has come for.
func (d *duplex) due(now time.Time) error {
	if d.h.opts.Response != ResponseJSON {
		for i := range d.light {
			if now.Sub(d.light[i].since) < d.h.opts.UpgradeAfter {
				break
			}
			d.light[i].call.Promote() // which it tells
		}
	}
	d.mu.Lock()
	kicked := d.kicked
	d.mu.Unlock()
	switch {
	case kicked && d.idle() && d.announced():
		d.retry = d.h.opts.Retry
		return errKicked
	case d.s.Moved() && (d.returns || d.alone() && d.idle()):
		return errKicked
	case d.s.Moved(): // what its client has asked for is gone on with elsewhere
	case d.s.Ended() && d.alone() && d.idle():
		return errSessionEnded
	case d.silent() && now.Sub(d.opened) >= d.h.opts.BodyTimeout:
		return errSilent
	}
	return nil
}

// append implements [sink].
func (d *duplex) append(text, id, data []byte) []byte {
	if id != nil {
		d.quoted = append(append(append(d.quoted[:0], '"'), id...), '"')
		id = d.quoted
	}
	return appendTagged(text, id, data)
}

// appendTagged appends a message, with the id of its event, as JSON, unless that is
// nil or there is no place for it.
func appendTagged(text, id, data []byte) []byte {
	if id != nil && jsonrpc.Field(data, "method") != nil {
		data, _ = jsonrpc.Set(data, id, "params", "_meta", protocol.MetaEventID)
	}
	return append(append(text, data...), '\n')
}

// write implements [sink].
func (d *duplex) write(lines []byte, _ bool) error { return d.pipe.write(lines) }

// keep implements [sink].
func (d *duplex) keep() error {
	d.written = time.Now()
	d.s.Touch()
	d.pipe.ping()
	return nil
}

// leave implements [sink].
func (d *duplex) leave(retry time.Duration) error {
	d.retry = retry
	return nil
}

// close lets go of all that the connection reads and waits for, after the copying
// has ended with err.
func (d *duplex) close(err error) {
	d.mu.Lock()
	d.closed = true
	if d.part != nil {
		d.part()
	}
	rest := slices.Concat(d.light, d.arrivals)
	d.light, d.arrivals = nil, nil
	d.room.Broadcast()
	d.mu.Unlock()
	for i := range rest {
		d.drop(&rest[i])
	}
	if src := &d.sources[0]; !src.told {
		src.Detach(false, true, false)
	}
	for i := range d.sources[1:] {
		src := &d.sources[i+1]
		d.detach(src, err != nil && !src.told)
	}
}
