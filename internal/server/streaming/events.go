package streaming

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
	"holdfast/internal/server/drain"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/guard"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// Responses has the settings that a handler's event streams share.
type Responses struct {
	Stateless       bool          // clients get no ids, as they can't come back for a stream
	Retry           time.Duration // how long clients are told to wait before they come back
	Patience        time.Duration // how long a client with an event id has to come back with it
	KeepAlive       time.Duration // silence after which a comment is sent; 0 or less: never
	PingAfter       time.Duration // silence after which a client that knows no empty events gets an id with a ping; 0 or less: never
	DisconnectAfter time.Duration // age at which a connection is ended, for the client to resume; 0: never
	InputGrace      time.Duration // how long a connection is held while the call waits for the client's input
	WriteTimeout    time.Duration // how long one write may wait for a slow client
	Life            *drain.Life
	Nodes           *placement.Nodes // nil if this node is alone
	Watched         *watch.Connections
	Answers         *answering.Writer
	Logger          *slog.Logger
}

// Events is a response of server-sent events: the sink of the stream that it copies. It
// has many fields, as it is the only allocation for a request that waits.
type Events struct {
	Copier
	client
	of *Responses
	W  http.ResponseWriter
	c  *http.ResponseController
	to *placement.Answer // the response, or the one that it continues (Onto); nil: the response is of an HTTP request, and begins here

	Rights Rights // of the client; nil: they do not change, or another node watches them

	mu      sync.Mutex // held while the response is written
	wrote   int        // bytes
	written time.Time  // the time of the last write

	opened  time.Time
	Asking  time.Time // since when the call waits for the client's input
	Leaving time.Time // when to end the connection, as the node is drained; zero: not yet set

	due time.Time // when more calls may have to be continued; zero: not known

	continued *continued // calls continued beside the standalone stream; nil before the first
}

// A client is the client of an event stream.
type client struct {
	From    string      // its address
	watched *watch.Conn // its connection; nil if it can't be asked
	Via     via
	far     session.Connection // its connection to another node; nil if it can't be asked
	Wants   Want
	Primes  bool // the client knows events with empty data
	URL     bool // the client came through the stream URL
	behind  bool // the request has passed a proxy, by its header
	shown   shown
}

// via is how the client is connected.
type via uint8

const (
	direct        via = iota
	forwarded         // to another node, which passes the stream on
	forwardedSeen     // the same, and that node tells this one if the client leaves with bytes unread
	muxed             // to another node, which passes the stream on among others
	muxedSeen
	muxedHere // to this node, which writes the stream among others
)

// IsForwarded reports whether another node passes the stream on.
func (v via) IsForwarded() bool { return v != direct && v != muxedHere }

// IsMuxed reports whether the client's connection carries more than the stream, so that it must not be ended for the stream.
func (v via) IsMuxed() bool { return v >= muxed }

// IsSeen reports whether another node tells this one if the client leaves with bytes unread.
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

// Want is the kind of answer that the client waits for.
type Want uint8

// The wants.
const (
	WantsCall       Want = iota // an answer to its request, or a stream of the session
	WantsInitialize             // an answer to initialize: a client that lost it begins anew
	WantsResume                 // the rest of a call
)

// shown is the state of the first event id for the client, which may come back with it:
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

// write notes that an id was written.
func (s *shown) write() {
	if at := s.Load(); at < shownWritten {
		s.CompareAndSwap(at, shownWritten)
	}
}

// any reports whether an id was written, and may have arrived.
func (s *shown) any() bool { return s.Load() == shownWritten }

// To returns the event stream of an exchange in a session. It writes nothing yet.
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

// Read attaches to a stream of the session. Clients of a stateless handler get no ids.
func (c *Events) Read(ctx context.Context, cursor stream.Cursor) error {
	return c.Copier.Read(ctx, cursor, !c.of.Stateless)
}

// Open sends the header, and before any message the priming event, first, or a comment. last says that the stream ends with first.
func (c *Events) Open(first []byte, last bool) error {
	// A server's timeouts are meant for requests; a stream has its own.
	_ = c.c.SetReadDeadline(time.Time{})
	if !c.goesOn() {
		c.begin()
	}
	switch {
	case c.Primes:
		first = c.prime(c.of.Retry)
	case c.goesOn() && len(first) > 0: // the client has it
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

// comment returns a comment of the event stream, a sign of life; a sink needs none.
func (c *Events) comment() []byte {
	if placement.SinkOf(c.W) != nil {
		return nil
	}
	return []byte(sse.Comment)
}

// prime returns an event without data that has a new id for the copier's position.
func (c *Events) prime(retry time.Duration) []byte {
	at := c.Reader.Cursor()
	id := ticket.AppendEvent(make([]byte, 0, 128), c.name, at.Epoch, at.Seq)
	id = append(id, '~')
	id = strconv.AppendUint(id, uint64(rand.Uint32()), 36)
	c.shows()
	id = append(id, c.tail...)
	if to := placement.SinkOf(c.W); to != nil {
		return to.Append(nil, bytes.Clone(id), nil) // else each id would be on the heap
	}
	return sse.AppendPriming(make([]byte, 0, 192), id, retry)
}

// EventID returns the id of the last event that was copied.
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

// shows notes that an id is written to the client.
func (c *Events) shows() {
	if c.shown.write(); c.goesOn() && c.to.HasID != nil {
		c.to.HasID()
	}
}

// Event appends an event to text, in the form that Flush takes.
func (c *Events) Event(text, id, data []byte) []byte {
	return placement.AppendEvent(c.W, text, id, data)
}

// Write implements [Sink]. Before a whole stream counts as delivered, it asks the
// network whether the client is there, which knows sooner than the request's context.
func (c *Events) Write(text []byte, last bool) error {
	err := c.Flush(text, last && c.continued == nil)
	if err == nil && last && c.Gone() {
		return ErrLeft
	}
	return err
}

// Flush writes events and flushes, within WriteTimeout, so that a client that does not read holds up only itself, and not for
// ever. The last event of a response goes out with its end: see [placement.WriteLast].
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

// Finished implements [Sink]. The whole stream was written, but may not have arrived.
func (c *Events) Finished() { c.arrives(&c.Copier, false) }

// arrives notes that the whole stream of cp was written, and to which client. besides says that it was written beside another stream.
func (c *Events) arrives(cp *Copier, besides bool) {
	c.mu.Lock()
	wrote := c.written
	c.mu.Unlock()
	switch {
	case c.of.Stateless || c.Wants == WantsInitialize:
	case c.Wants == WantsResume && c.Primes:
		// Clients that know ids but come back without one after this have lost the connection.
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

// NameSession puts the session's name into event ids, and notes that the first event has an id.
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

// Copy copies the opened stream until it ends (nil), or the connection is ended for another reason.
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

// ErrGoesOn is ErrSuperseded for a client that could not come back: this node continues the stream, as
// if it had forwarded the exchange.
var ErrGoesOn = fmt.Errorf("%w: its session has left", ErrSuperseded)

// sendOn ends the connection after the session has left, so that the client comes back to
// the session's node. While this node is drained, clients are sent one after the other.
func (c *Events) sendOn() error {
	switch {
	case c.Via.IsForwarded():
		return ErrSuperseded // the client's node continues the stream
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
	case errors.Is(err, ErrSuperseded) && c.IsStandalone() && c.Session.Ended(): // no connection has taken it over
	case errors.Is(err, ErrSuperseded):
		how = placement.EndsTaken
	}
	switch {
	case c.to != nil:
		c.to.Last, c.to.Others, c.to.Ending = string(c.EventID()), c.continued != nil, max(c.to.Ending, how)
	case how == placement.EndsMoved && c.Via.IsForwarded():
		panic(http.ErrAbortHandler) // the client's node continues the stream where the session is
	case c.Via.IsForwarded() && how == placement.EndsTaken, c.Via.IsMuxed() && how == placement.EndsTaken:
		c.W.Header().Set(http.TrailerPrefix+placement.HeaderTaken, "1")
	case c.Via.IsForwarded() && errors.Is(err, ErrComeBack):
		c.W.Header().Set(http.TrailerPrefix+placement.HeaderAway, "1")
	}
}

// Link sets a header with the URL at which the stream can be resumed from here (SEP-1335, `rel="stream"` URL). It is relative
// to the request's own, so that it is right behind proxies that rewrite paths.
func (c *Events) Link() {
	if c.name == "" || c.goesOn() {
		return
	}
	id := c.EventID()
	c.W.Header().Set("Link", `<?stream=`+c.Session.Name()+"."+string(id)+`>; rel="stream"`)
}

// Standalone attaches to the standalone stream. A client that can resume but comes without an id has received none of it, and
// gets it from the beginning.
func (c *Events) Standalone(ctx context.Context) error {
	whole := c.Session.Resumes().EventIDs() || c.Session.Resumes() != nil && !c.Via.IsMuxed()
	return c.Copier.Standalone(ctx, c.of.Logger, whole, !c.of.Stateless)
}

// HeaderClient lists the capabilities of a session's client, in the header of a stream from
// the session's owner to the client's node: the words ClientResumes and ClientEventIDs.
const (
	HeaderClient   = "Holdfast-Client"
	ClientResumes  = "resumes"
	ClientEventIDs = "event-ids"
)

// clientOf returns the value of HeaderClient for a session's client.
func clientOf(s *session.Session) string {
	switch {
	case s.Resumes().EventIDs():
		return ClientResumes + " " + ClientEventIDs
	case s.Resumes() != nil:
		return ClientResumes
	}
	return "-"
}
