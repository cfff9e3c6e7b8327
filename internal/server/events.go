package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/guard"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// events is a response of server-sent events: the sink of the stream that it copies. It
// has more fields than others, as it is all that is allocated for a request that waits.
type events struct {
	copier
	reader
	h *Handler
	w http.ResponseWriter
	c *http.ResponseController

	rights Rights // of the client; nil: they do not change, or another node watches them

	mu      sync.Mutex // held while the response is written
	wrote   int        // bytes
	written time.Time  // when anything was written last

	opened  time.Time
	asking  time.Time // since when there is nothing to do but wait for the client's input
	leaving time.Time // when to leave, as the node is drained; zero: it is not

	due time.Time // when there will be calls to continue; zero: not known

	continued *continued // calls that are continued beside the standalone stream; nil until there is one
}

// A reader is the client of an event stream, and what is known of it.
type reader struct {
	from    string      // its address
	watched *watch.Conn // its connection; nil if it can't be asked
	via     via
	far     session.Connection // its connection to another node; nil if it can't be asked
	wants   want
	primes  bool // it knows events with empty data
	url     bool // it came through the stream URL
	behind  bool // a proxy is between it and this connection, and says so
	shown   shown
}

// via is how the client is connected.
type via uint8

const (
	direct        via = iota
	forwarded         // to another node, which passes the stream on
	forwardedSeen     // the same, and that node tells if the client leaves with bytes unread
	muxed             // to another node, which passes the stream on together with others
	muxedSeen
	muxedHere // to this node, which does so
)

// isForwarded reports whether another node passes the stream on.
func (v via) isForwarded() bool { return v != direct && v != muxedHere }

// isMuxed reports whether the client's connection carries more than the stream, so
// that the client is not to be sent away.
func (v via) isMuxed() bool { return v >= muxed }

// isSeen reports whether another node tells if the client leaves with bytes unread.
func (v via) isSeen() bool { return v == forwardedSeen || v == muxedSeen }

// via returns how the client of an exchange is connected.
func (x *exchange) via() via {
	switch v := x.from; {
	case v == nil && x.muxed:
		return muxedHere
	case v == nil:
		return direct
	case v.Stays && v.Watched:
		return muxedSeen
	case v.Stays:
		return muxed
	case v.Watched:
		return forwardedSeen
	}
	return forwarded
}

// want is what the client has asked for.
type want uint8

const (
	wantsCall       want = iota // an answer to its request, or a stream of the session
	wantsInitialize             // an answer to initialize: who lost that begins anew
	wantsResume                 // to go on with a call
)

// shown reports whether the client has got an event id, so that it may come back with it:
//
//	none    → pinged: a ping was asked for, which has an id (docs/decisions/0021-ids-by-ping.md)
//	none, pinged → written: an id was written
//	any     → unseen: the client had left before anything was written
type shown struct{ atomic.Int32 }

const (
	shownNone int32 = iota
	shownPinged
	shownWritten
	shownUnseen
)

// write notes that an id is written.
func (s *shown) write() {
	if at := s.Load(); at < shownWritten {
		s.CompareAndSwap(at, shownWritten)
	}
}

// any reports whether an id was written that may have arrived.
func (s *shown) any() bool { return s.Load() == shownWritten }

// newConn prepares an event stream; nothing is written yet.
func (h *Handler) newConn(w http.ResponseWriter, x *exchange, s *session.Session) *events {
	c := &events{
		h:      h,
		w:      w,
		c:      http.NewResponseController(w),
		opened: time.Now(),
	}
	c.s, c.ready, c.sink = s, make(chan struct{}, 1), c
	c.door = x.door()
	c.from, c.via = x.r.RemoteAddr, x.via()
	c.primes = !h.opts.Stateless && protocol.Primes(s.Revision())
	if !c.via.isForwarded() {
		c.watched = h.watched.At(x.r)
	}
	if v := x.from; v != nil && v.Node != "" && !v.Stays {
		c.far = h.nodes.ClientOf(v)
	}
	c.behind = guard.Passed(x.r)
	if c.watched != nil || c.via.isSeen() {
		s.Streams().ConfirmArrival(c.from)
	}
	return c
}

// read attaches to a stream of the session. Clients of a stateless handler get no ids:
// there is nothing to come back to.
func (c *events) read(ctx context.Context, cursor stream.Cursor) error {
	return c.copier.read(ctx, cursor, !c.h.opts.Stateless)
}

// open sends the header, and what comes before any message: the priming event,
// first, or a comment.
func (c *events) open(first []byte) error { return c.openTo(first, false) }

// openTo is open. last says that the stream ends with what is first.
func (c *events) openTo(first []byte, last bool) error {
	// A server's timeouts are meant for requests; a stream has its own.
	_ = c.c.SetReadDeadline(time.Time{})
	head := c.w.Header()
	answering.OpenEvents(head)
	if c.via.isForwarded() {
		head[placement.HeaderAt] = []string{string(c.eventID())}
		head[placement.HeaderDoor] = []string{c.door.String()}
		if c.primes {
			head[placement.HeaderReturns] = []string{"1"}
		}
	}
	if c.via.isMuxed() {
		head[headerClient] = []string{clientOf(c.s)}
	}
	c.w.WriteHeader(http.StatusOK)
	switch {
	case c.primes:
		first = c.prime(c.h.opts.Retry)
	case len(first) == 0:
		first = []byte(sse.Comment) // some proxies hold the header until there is a body
	}
	return c.flush(first, last)
}

// prime returns an event that carries a new id for the place that the stream was
// copied to.
func (c *events) prime(retry time.Duration) []byte {
	at := c.r.Cursor()
	id := ticket.AppendEvent(make([]byte, 0, 128), c.name, at.Epoch, at.Seq)
	id = append(id, '~')
	id = strconv.AppendUint(id, uint64(rand.Uint32()), 36)
	c.shown.write()
	return sse.AppendPriming(make([]byte, 0, 192), append(id, c.tail...), retry)
}

// eventID returns the id of the event that was copied last.
func (c *events) eventID() []byte {
	at := c.r.Cursor()
	return append(ticket.AppendEvent(make([]byte, 0, 128), c.name, at.Epoch, at.Seq), c.tail...)
}

// append implements [sink].
func (c *events) append(text, id, data []byte) []byte {
	if id != nil {
		c.shown.write()
	}
	return sse.AppendMessage(text, id, data)
}

// write implements [sink]. Before a whole stream counts as delivered, the network is
// asked whether the client is there: it knows sooner than the request's context.
func (c *events) write(text []byte, last bool) error {
	err := c.flush(text, last && c.continued == nil)
	if err == nil && last && c.gone() {
		return errLeft
	}
	return err
}

// flush writes and flushes. The time that it may take is bounded: a client that does not
// read holds up nobody but itself, and not for ever. The last of a response goes out with its end: see
// [placement.WriteLast].
func (c *events) flush(text []byte, last bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = time.Now()
	c.wrote += len(text)
	_ = c.c.SetWriteDeadline(c.written.Add(c.h.opts.WriteTimeout))
	if last {
		return placement.WriteLast(c.w, text, c.wrote)
	}
	if len(text) > 0 {
		if _, err := c.w.Write(text); err != nil {
			return err
		}
	}
	if err := c.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// gone reports whether the network says that the client has left.
func (r *reader) gone() bool { return r.watched != nil && r.watched.Gone() }

// finished implements [sink]. That all was written does not say that it has arrived.
func (c *events) finished() { c.arrives(&c.copier, false) }

// arrives notes that all of the stream that cp copied was written. besides says that it
// was written beside another stream.
func (c *events) arrives(cp *copier, besides bool) {
	c.mu.Lock()
	wrote := c.written
	c.mu.Unlock()
	switch {
	case c.h.opts.Stateless || c.wants == wantsInitialize:
	case c.wants == wantsResume && c.primes:
		// Clients that know ids and come back without one after this have forgotten it:
		// they lost the connection.
		cp.r.Completed("", wrote, besides, c.connection())
	case c.via.isSeen():
		cp.r.Completed(c.from, wrote, besides, c.connection())
		if c.h.nodes.HasLeft(c.from, c.opened) {
			c.s.Streams().Disconnected(c.from, time.Time{})
		}
	case c.watched != nil:
		cp.r.Completed(c.from, wrote, besides, c.connection())
	}
}

// connection returns the client's connection, or nil if it can't be asked.
func (r *reader) connection() session.Connection {
	if r.far == nil && r.watched != nil {
		return r.watched
	}
	return r.far
}

// copy copies the stream that was opened until it ends (nil), or the connection is
// ended for another reason.
func (c *events) copy(ctx context.Context) error {
	err := c.run(ctx)
	if c.continued != nil {
		err = c.continued.wait(err)
	}
	if errors.Is(err, session.ErrMoved) {
		return c.sendOn()
	}
	return err
}

// errGoesOn is errSuperseded for a client that could not come back: this node goes on with its stream,
// as a node does that has forwarded it.
var errGoesOn = fmt.Errorf("%w: its session has left", errSuperseded)

// sendOn has the client come back where its session is by now. When that is because
// this node is drained, so have many others: they come one after the other.
func (c *events) sendOn() error {
	switch {
	case c.via.isForwarded():
		return errSuperseded // its node goes on there
	case !c.mayLeave() && c.h.nodes != nil:
		return errGoesOn
	}
	retry := time.Duration(0)
	if c.h.life.IsDraining() {
		retry = c.h.opts.Retry + c.h.life.Delay()
	}
	if err := c.leave(retry); err != nil {
		return err
	}
	return errSuperseded
}

// close ends the event stream, after the copying has ended with err. The
// connection below may be used for more requests.
func (c *events) close(err error) {
	c.detach(err)
	_ = c.c.SetWriteDeadline(time.Time{})
	how := placement.EndsItself
	switch {
	case c.s.Moved() && c.state < last:
		how = placement.EndsMoved
	case errors.Is(err, errSuperseded) && c.isStandalone() && c.s.Ended(): // nobody has taken it
	case errors.Is(err, errSuperseded):
		how = placement.EndsTaken
	}
	w, ok := c.w.(placement.Ender)
	switch {
	case ok:
		w.Ends(how)
	case how == placement.EndsMoved && c.via.isForwarded():
		panic(http.ErrAbortHandler) // the node goes on with it where the session is
	case c.via.isForwarded() && how == placement.EndsTaken, c.via.isMuxed() && how == placement.EndsTaken:
		c.w.Header().Set(http.TrailerPrefix+placement.HeaderTaken, "1")
	case c.via.isForwarded() && errors.Is(err, errComeBack):
		c.w.Header().Set(http.TrailerPrefix+placement.HeaderAway, "1")
	}
}

// detach lets go of what is read, after the copying has ended with err.
func (c *events) detach(err error) {
	broke := err != nil && !errors.Is(err, errSuperseded) && !errors.Is(err, errComeBack)
	if broke {
		c.s.Streams().Disconnected(c.from, time.Now().Add(-justBefore))
	}
	c.r.Detach(broke && c.state != delivered, c.shown.any(), false)
	if c.continued != nil {
		c.continued.detach(err != nil)
	}
	if errors.Is(err, stream.ErrTrimmed) {
		c.h.logger.Warn("slow reader: what it missed is no longer kept", "session", c.s.Name())
	}
}
