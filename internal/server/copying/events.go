package copying

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/guard"
	"holdfast/internal/server/life"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// Responses are what a handler's event streams have in common.
type Responses struct {
	Stateless       bool          // clients get no ids: there is nothing to come back to
	Retry           time.Duration // what clients are told to wait before they come back
	KeepAlive       time.Duration // silence after which a comment is sent; 0 or less: never
	PingAfter       time.Duration // silence after which a client that knows no empty events is given an id by a ping; 0 or less: never
	DisconnectAfter time.Duration // age at which a connection is ended, to be resumed; 0: never
	InputGrace      time.Duration // how long a connection is held while the client is asked
	WriteTimeout    time.Duration // how long one write may wait for a slow client
	Life            *life.Life
	Nodes           *placement.Nodes // nil where there is no other node
	Watched         *watch.Connections
	Answers         *answering.Writer
	Logger          *slog.Logger
}

// Events is a response of server-sent events: the sink of the stream that it copies. It
// has more fields than others, as it is all that is allocated for a request that waits.
type Events struct {
	Copier
	client
	of *Responses
	W  http.ResponseWriter
	c  *http.ResponseController
	to *placement.Answer // what the response is, or goes on with; nil: it is that of an HTTP request, and begins here

	Rights Rights // of the client; nil: they do not change, or another node watches them

	mu      sync.Mutex // held while the response is written
	wrote   int        // bytes
	written time.Time  // when anything was written last

	opened  time.Time
	Asking  time.Time // since when there is nothing to do but wait for the client's input
	Leaving time.Time // when to leave, as the node is drained; zero: it is not

	due time.Time // when there will be calls to continue; zero: not known

	continued *continued // calls that are continued beside the standalone stream; nil until there is one
}

// A client is that of an event stream, and what is known of it.
type client struct {
	From    string      // its address
	watched *watch.Conn // its connection; nil if it can't be asked
	Via     via
	far     session.Connection // its connection to another node; nil if it can't be asked
	Wants   Want
	Primes  bool // it knows events with empty data
	URL     bool // it came through the stream URL
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

// IsForwarded reports whether another node passes the stream on.
func (v via) IsForwarded() bool { return v != direct && v != muxedHere }

// IsMuxed reports whether the client's connection carries more than the stream, so that the client is not to be sent away.
func (v via) IsMuxed() bool { return v >= muxed }

// IsSeen reports whether another node tells if the client leaves with bytes unread.
func (v via) IsSeen() bool { return v == forwardedSeen || v == muxedSeen }

// viaOf returns how the client of an exchange is connected.
func viaOf(x *exchange.Exchange) via {
	switch v := x.From; {
	case v == nil && x.Muxed:
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

// Want is what the client has asked for.
type Want uint8

// What it may be.
const (
	WantsCall       Want = iota // an answer to its request, or a stream of the session
	WantsInitialize             // an answer to initialize: who lost that begins anew
	WantsResume                 // to go on with a call
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

// To prepares the event stream of an exchange, of a session; nothing is written yet.
func (of *Responses) To(w http.ResponseWriter, x *exchange.Exchange, s *session.Session) *Events {
	c := &Events{of: of, W: w, opened: time.Now()}
	if c.to, _ = w.(*placement.Answer); c.goesOn() {
		c.W = c.to.Onto
	}
	c.c = http.NewResponseController(c.W)
	c.Session, c.Ready, c.Sink = s, make(chan struct{}, 1), c
	c.Door = x.Door()
	c.From, c.Via = x.HTTP.RemoteAddr, viaOf(x)
	c.Primes = !of.Stateless && protocol.Primes(s.Revision())
	if !c.Via.IsForwarded() {
		c.watched = of.Watched.At(x.HTTP)
	}
	if v := x.From; v != nil && v.Node != "" && !v.Stays {
		c.far = of.Nodes.ClientOf(v)
	}
	c.behind = guard.Passed(x.HTTP)
	if c.watched != nil || c.Via.IsSeen() {
		s.Streams().ConfirmArrival(c.From)
	}
	return c
}

// Read attaches to a stream of the session. Clients of a stateless handler get no ids: there is nothing to come back to.
func (c *Events) Read(ctx context.Context, cursor stream.Cursor) error {
	return c.Copier.Read(ctx, cursor, !c.of.Stateless)
}

// Open sends the header, and what comes before any message: the priming event, first, or a comment. last says that the stream
// ends with what is first.
func (c *Events) Open(first []byte, last bool) error {
	// A server's timeouts are meant for requests; a stream has its own.
	_ = c.c.SetReadDeadline(time.Time{})
	if !c.goesOn() {
		c.begin()
	}
	switch {
	case c.Primes:
		first = c.prime(c.of.Retry)
	case c.goesOn() && len(first) > 0: // its client has it
		c.mu.Lock()
		defer c.mu.Unlock()
		c.written = time.Now()
		return nil
	case len(first) == 0:
		first = c.comment() // some proxies hold the header until there is a body
	}
	return c.Flush(first, last)
}

// goesOn reports whether the response has begun.
func (c *Events) goesOn() bool { return c.to != nil && c.to.Onto != nil }

// begin sends the header.
func (c *Events) begin() {
	head := c.W.Header()
	answering.OpenEvents(head)
	if c.Via.IsForwarded() {
		head[placement.HeaderAt] = []string{string(c.EventID())}
		head[placement.HeaderDoor] = []string{c.Door.String()}
		if c.Primes {
			head[placement.HeaderReturns] = []string{"1"}
		}
	}
	if c.Via.IsMuxed() {
		head[HeaderClient] = []string{clientOf(c.Session)}
	}
	c.W.WriteHeader(http.StatusOK)
	if to := placement.SinkOf(c.W); to != nil {
		to.Open(head)
	}
}

// comment returns what says nothing, to a client that would get no sign of life otherwise.
func (c *Events) comment() []byte {
	if placement.SinkOf(c.W) != nil {
		return nil
	}
	return []byte(sse.Comment)
}

// prime returns an event that carries a new id for the place that the stream was copied to.
func (c *Events) prime(retry time.Duration) []byte {
	at := c.Reader.Cursor()
	id := ticket.AppendEvent(make([]byte, 0, 128), c.name, at.Epoch, at.Seq)
	id = append(id, '~')
	id = strconv.AppendUint(id, uint64(rand.Uint32()), 36)
	c.shows()
	id = append(id, c.tail...)
	if to := placement.SinkOf(c.W); to != nil {
		return to.Append(nil, bytes.Clone(id), nil) // or each id would be on the heap
	}
	return sse.AppendPriming(make([]byte, 0, 192), id, retry)
}

// EventID returns the id of the event that was copied last.
func (c *Events) EventID() []byte {
	at := c.Reader.Cursor()
	return append(ticket.AppendEvent(make([]byte, 0, 128), c.name, at.Epoch, at.Seq), c.tail...)
}

// Append implements [Sink].
func (c *Events) Append(text, id, data []byte) []byte {
	if id != nil {
		c.shows()
	}
	return c.Event(text, id, data)
}

// shows notes that the client gets an id.
func (c *Events) shows() {
	if c.shown.write(); c.goesOn() && c.to.HasID != nil {
		c.to.HasID()
	}
}

// Event appends an event to text, as Flush takes it.
func (c *Events) Event(text, id, data []byte) []byte {
	return placement.AppendEvent(c.W, text, id, data)
}

// Write implements [Sink]. Before a whole stream counts as delivered, the network is
// asked whether the client is there: it knows sooner than the request's context.
func (c *Events) Write(text []byte, last bool) error {
	err := c.Flush(text, last && c.continued == nil)
	if err == nil && last && c.Gone() {
		return ErrLeft
	}
	return err
}

// Flush writes and flushes. The time that it may take is bounded: a client that does not read holds up nobody but itself, and not
// for ever. The last of a response goes out with its end: see [placement.WriteLast].
func (c *Events) Flush(text []byte, last bool) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.to != nil {
		defer func() { c.to.Broken = cmp.Or(c.to.Broken, err) }()
	}
	c.written = time.Now()
	c.wrote += len(text)
	if to := placement.SinkOf(c.W); to != nil {
		return to.Write(text)
	}
	_ = c.c.SetWriteDeadline(c.written.Add(c.of.WriteTimeout))
	if last {
		return placement.WriteLast(c.W, text, c.wrote)
	}
	if len(text) > 0 {
		if _, err = c.W.Write(text); err != nil {
			return err
		}
	}
	if err = c.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Gone reports whether the network says that the client has left.
func (r *client) Gone() bool { return r.watched != nil && r.watched.Gone() }

// Finished implements [Sink]. That all was written does not say that it has arrived.
func (c *Events) Finished() { c.arrives(&c.Copier, false) }

// arrives notes that all of the stream that cp copied was written. besides says that it was written beside another stream.
func (c *Events) arrives(cp *Copier, besides bool) {
	c.mu.Lock()
	wrote := c.written
	c.mu.Unlock()
	switch {
	case c.of.Stateless || c.Wants == WantsInitialize:
	case c.Wants == WantsResume && c.Primes:
		// Clients that know ids and come back without one after this have forgotten it:
		// they lost the connection.
		cp.Reader.Completed("", wrote, besides, c.Connection())
	case c.Via.IsSeen():
		cp.Reader.Completed(c.From, wrote, besides, c.Connection())
		if c.of.Nodes.HasLeft(c.From, c.opened) {
			c.Session.Streams().Disconnected(c.From, time.Time{})
		}
	case c.watched != nil:
		cp.Reader.Completed(c.From, wrote, besides, c.Connection())
	}
}

// Unseen notes that the client had left before anything was written.
func (c *Events) Unseen() { c.shown.Store(shownUnseen) }

// NameSession has the event ids name the session, and notes that the first event has one.
func (c *Events) NameSession() {
	c.name = c.Session.Name() + "." + c.name
	c.shows()
}

// Connection returns the client's connection, or nil if it can't be asked.
func (r *client) Connection() session.Connection {
	if r.far == nil && r.watched != nil {
		return r.watched
	}
	return r.far
}

// Copy copies the stream that was opened until it ends (nil), or the connection is ended for another reason.
func (c *Events) Copy(ctx context.Context) error {
	err := c.Run(ctx)
	if c.continued != nil {
		err = c.continued.wait(err)
	}
	if errors.Is(err, session.ErrMoved) {
		return c.sendOn()
	}
	return err
}

// ErrGoesOn is ErrSuperseded for a client that could not come back: this node goes on with its stream,
// as a node does that has forwarded it.
var ErrGoesOn = fmt.Errorf("%w: its session has left", ErrSuperseded)

// sendOn has the client come back where its session is by now. When that is because
// this node is drained, so have many others: they come one after the other.
func (c *Events) sendOn() error {
	switch {
	case c.Via.IsForwarded():
		return ErrSuperseded // its node goes on there
	case !c.mayLeave() && c.of.Nodes != nil:
		return ErrGoesOn
	}
	retry := time.Duration(0)
	if c.of.Life.IsDraining() {
		retry = c.of.Retry + c.of.Life.Delay()
	}
	if err := c.leave(retry); err != nil {
		return err
	}
	return ErrSuperseded
}

// Close ends the event stream, after the copying has ended with err. The connection below may be used for more requests.
func (c *Events) Close(err error) {
	c.Detach(err)
	_ = c.c.SetWriteDeadline(time.Time{})
	how := placement.EndsItself
	switch {
	case c.Session.Moved() && c.state < last:
		how = placement.EndsMoved
	case errors.Is(err, ErrSuperseded) && c.IsStandalone() && c.Session.Ended(): // nobody has taken it
	case errors.Is(err, ErrSuperseded):
		how = placement.EndsTaken
	}
	switch {
	case c.to != nil:
		c.to.Last, c.to.Others, c.to.Ending = string(c.EventID()), c.continued != nil, max(c.to.Ending, how)
	case how == placement.EndsMoved && c.Via.IsForwarded():
		panic(http.ErrAbortHandler) // the node goes on with it where the session is
	case c.Via.IsForwarded() && how == placement.EndsTaken, c.Via.IsMuxed() && how == placement.EndsTaken:
		c.W.Header().Set(http.TrailerPrefix+placement.HeaderTaken, "1")
	case c.Via.IsForwarded() && errors.Is(err, ErrComeBack):
		c.W.Header().Set(http.TrailerPrefix+placement.HeaderAway, "1")
	}
}

// Detach lets go of what is read, after the copying has ended with err.
func (c *Events) Detach(err error) {
	broke := err != nil && !errors.Is(err, ErrSuperseded) && !errors.Is(err, ErrComeBack)
	if broke {
		c.Session.Streams().Disconnected(c.From, time.Now().Add(-justBefore))
	}
	c.Reader.Detach(broke && c.state != delivered, c.shown.any(), false)
	if c.continued != nil {
		c.continued.detach(err != nil)
	}
	if errors.Is(err, stream.ErrTrimmed) {
		c.of.Logger.Warn("slow reader: what it missed is no longer kept", "session", c.Session.Name())
	}
}

// Link offers the URL at which the stream can be resumed from where it is now (SEP-1335, `rel="stream"` URL). It is relative to
// the request's own, so that it is right behind proxies that rewrite paths.
func (c *Events) Link() {
	if c.name == "" || c.goesOn() {
		return
	}
	id := c.EventID()
	c.W.Header().Set("Link", `<?stream=`+c.Session.Name()+"."+string(id)+`>; rel="stream"`)
}

// Standalone attaches to the standalone stream. Who knows how to resume, and shows no id, has heard nothing of it.
func (c *Events) Standalone(ctx context.Context) error {
	whole := c.Session.Resumes().EventIDs() || c.Session.Resumes() != nil && !c.Via.IsMuxed()
	return c.Copier.Standalone(ctx, c.of.Logger, whole, !c.of.Stateless)
}

// HeaderClient is what the owner of a session tells the node that the client is
// connected to, with the header of a stream: the words clientResumes and clientEventIDs.
const (
	HeaderClient   = "Holdfast-Client"
	ClientResumes  = "resumes"
	ClientEventIDs = "event-ids"
)

// clientOf returns what another node needs to know of the client of a session.
func clientOf(s *session.Session) string {
	switch {
	case s.Resumes().EventIDs():
		return ClientResumes + " " + ClientEventIDs
	case s.Resumes() != nil:
		return ClientResumes
	}
	return "-"
}
