package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// stream answers an exchange with a stream of events. An error says that nothing was
// answered: the session has left this node, and a call may be made where that is now.
func (h *Handler) stream(w http.ResponseWriter, x *exchange, o *outcome) error {
	c, began, err := h.openStream(w, x, o)
	if c == nil {
		return err
	}
	if began == nil {
		unwatch := c.watchRights(x.r.Context())
		began = c.copy(x.r.Context())
		unwatch()
	}
	c.close(began)
	switch {
	case o.kind == outcomePair:
		h.leftPair(x, began)
	case errors.Is(began, errGoesOn):
		h.goOn(w, x, c)
	}
	return nil
}

// goOn goes on with a stream whose session has left this node, in the same response: its client has no
// event id to come back with.
//
//go:noinline
func (h *Handler) goOn(w http.ResponseWriter, x *exchange, c *events) {
	if _, ok := w.(placement.Ender); ok {
		return // who has placed the exchange goes on with it
	}
	y := *x
	p := h.newPlacement(w, &y)
	if err := p.GoOn(c.s.ID(), string(c.eventID())); err != nil {
		h.logger.Debug("stream not continued at another node", "session", c.s.Name(), "error", err)
	}
}

// openStream does what comes before the copying, and returns with which error that
// begins. Without a connection the error is what [Handler.stream] returns. It is a function
// of its own so that the stack of a call that waits stays small.
//
//go:noinline
func (h *Handler) openStream(w http.ResponseWriter, x *exchange, o *outcome) (c *events, began, err error) {
	c = h.newConn(w, x, o.session)
	c.call = o.call
	c.stays = o.kind != outcomePair && !c.via.isMuxed()
	var first []byte
	switch o.kind {
	case outcomeStream:
		if x.purpose == forMessages { // begun before
			c.door = observe.DoorKey
		}
		err = h.readOn(x, o, c)
	case outcomeStandalone:
		err = c.standalone(x.r.Context())
		if err == nil && !c.via.isMuxed() { // else it is no sign that a call was lost
			x.session.CameBack(0, nil)
		}
	case outcomePair:
		first, err = h.readPair(x, o, c)
	default:
		return h.openCall(w, x, o, c)
	}
	switch {
	case err != nil && o.kind == outcomeStream && h.forgotten(w, x, o, c, err):
		return nil, nil, nil
	case errors.Is(err, io.EOF) && o.kind == outcomeStream:
		w.WriteHeader(http.StatusNoContent) // all was said; do not come back
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	began = c.open(first)
	if began == nil && o.kind != outcomePair && c.isStandalone() && !c.via.isMuxed() {
		c.continueLost(x.r.Context()) // after the header: its goroutines write, too
	}
	return c, began, nil
}

// openCall does so for a call that has begun: it is read from its beginning. If it is
// not light its messages go to the backend once the client can ask for it again, and not
// at all if there is no stream to ask for.
func (h *Handler) openCall(w http.ResponseWriter, x *exchange, o *outcome, c *events) (_ *events, began, err error) {
	stored := o.kind != outcomeLight
	if o.call.Method() == "initialize" {
		c.primes = false // the revision is not settled
		c.wants = wantsInitialize
	}
	if err := c.read(x.r.Context(), stream.Cursor{Stream: stream.ID{Number: o.call.Number()}}); err != nil {
		if stored {
			return nil, nil, h.undelivered(w, o.call, x.msgs, err)
		}
		return nil, nil, h.unreadable(w, x, o.call, err)
	}
	if x.purpose == forMessages && !c.via.isMuxed() && h.sessions.MayRefuse(x.r, x.msgs) {
		if stored { // else they are delivered, and its server has not answered them yet
			o.deliver(x.values(), x.msgs, x.r.Header)
			stored = false
		}
		if c.isRefused(x.r.Context(), o.call) {
			return nil, nil, nil
		}
	}
	c.link()
	if stored && c.via.isMuxed() { // whose node finds the call by its name, and forwards the next message when this one begins
		o.deliver(x.values(), x.msgs, x.r.Header)
		stored = false
	}
	gone := c.gone()
	began = c.open(nil)
	if gone || x.r.Context().Err() != nil {
		c.shown.Store(shownUnseen)
	}
	if stored {
		o.deliver(x.values(), x.msgs, x.r.Header)
	}
	if !h.sessions.Shared() { // else a note may need them yet
		clear(x.msgs) // the call may last for long, and must not hold the body
	}
	return c, began, nil
}

// unreadable answers the messages of a call that runs, and whose stream can't be read. An error says that nothing was
// answered.
func (h *Handler) unreadable(w http.ResponseWriter, x *exchange, call *session.Call, err error) error {
	if call.Retriable() {
		return session.ErrMoved
	}
	call.ConnectionLost()
	h.logger.Warn("stream of a call not opened", "session", x.session.Name(), "error", err)
	h.answers.FailMessages(w, fmt.Errorf("%w: %w", placement.ErrUnknown, err), x.msgs, x.batch)
	return nil
}

// readOn has a connection go on with a stream from a cursor. A client that resumes the standalone
// stream may, with another connection, have lost track of a call: some forget
// the id that they resumed with when the connection ends before the next one, and
// come back with nothing but the session. Both then read the standalone stream in
// turns, and either may continue the call.
func (h *Handler) readOn(x *exchange, o *outcome, c *events) error {
	h.speakAs(x, o.session, c)
	c.url = x.purpose == forStream || x.purpose == forAnswers
	c.continues = x.continues
	c.resumes = x.purpose == forRead
	if err := c.read(x.r.Context(), o.at); err != nil {
		return err
	}
	c.link()
	if o.at.Stream.Number != 0 {
		c.wants = wantsResume
		if !c.continues {
			o.session.CameBack(o.at.Stream.Number, c.connection())
		}
	}
	return nil
}

// forgotten answers a client that comes back for a call of which nothing is known any more, and whose event id names what the
// client waits for: it is told so at once. Else it might come back again and again until it gives up. It reports whether it has
// answered.
func (h *Handler) forgotten(w http.ResponseWriter, x *exchange, o *outcome, c *events, err error) bool {
	if x.continues || c.via.isMuxed() || !errors.Is(err, stream.ErrNotFound) && !errors.Is(err, stream.ErrTrimmed) {
		return false
	}
	event := x.last
	if event == "" {
		event = x.place()
	}
	e, bad := ticket.ParseEvent(o.session.ID(), event)
	if bad != nil || e.Call == nil || o.at.Stream.Number == reading.Standalone || !o.session.Streams().IsForgotten(o.at) {
		return false // it is not of an earlier life of the session
	}
	says := errf(protocol.CodeOutcomeUnknown, "%v: nothing is known of this call any more, as its node has ended or what it said is no longer kept; "+
		"see whether the tool has done its work before you call it again", placement.ErrUnknown)
	answering.OpenEvents(w.Header())
	w.WriteHeader(http.StatusOK)
	place, tail := event[:strings.IndexByte(event, '~')], event[strings.LastIndexByte(event, '~'):]
	fresh := append(strconv.AppendUint(append([]byte(place), '~'), uint64(rand.Uint32()), 36), tail...)
	_ = h.answers.Finish(w, sse.AppendMessage(nil, fresh, jsonrpc.AppendError(nil, e.Call, says)))
	return true
}

// link offers the URL at which the stream can be resumed from where it is now
// (SEP-1335, `rel="stream"` URL). It is relative to the request's own, so that
// it is right behind proxies that rewrite paths.
func (c *events) link() {
	if c.name == "" {
		return
	}
	id := c.eventID()
	c.w.Header().Set("Link", `<?stream=`+c.s.Name()+"."+string(id)+`>; rel="stream"`)
}

// decodeGet decodes a GET, of a stream or for a WebSocket (2025-11-25, Transports,
// "Listening for Messages from the Server", "Resumability and Redelivery"). If it is
// false the request was answered.
func (h *Handler) decodeGet(w http.ResponseWriter, x *exchange) bool {
	switch {
	case websocket.IsUpgrade(x.r):
		x.purpose = forSocket
		if h.callers.bySingleTools(x.r.Context()) {
			h.answers.FailDenied(w, errNoSocket, h.answers.Denied(x.r, nil, h.callers.asker(x.r)))
			return false
		}
		return h.identify(w, x) && !websocket.Refuse(w, x.r) // before anything is read for it
	case !accepts(x.r.Header["Accept"], "text/event-stream"):
		h.answers.Reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: what a GET gets is a stream"))
		return false
	}
	x.purpose = forRead
	if x.ref = streamParam(x.r); x.ref != "" {
		x.purpose = forStream
	}
	return h.identify(w, x)
}

// standalone attaches to the standalone stream. Who knows how to resume, and shows no
// id, has heard nothing of it.
func (c *events) standalone(ctx context.Context) error {
	whole := c.s.Resumes().EventIDs() || c.s.Resumes() != nil && !c.via.isMuxed()
	return c.copier.standalone(ctx, c.h.logger, whole, !c.h.opts.Stateless)
}

// speakAs has a connection speak to the client as its own revision has it: the stream need
// not be of the session that the client is in.
func (h *Handler) speakAs(x *exchange, s *session.Session, c *events) {
	if x.from != nil && x.from.Revision != "" {
		c.primes = protocol.Primes(x.from.Revision)
		return
	}
	if x.r.Header[protocol.HeaderSession] == nil || s.HasID(x.secret) {
		return
	}
	if v := x.r.Header[protocol.HeaderVersion]; len(v) > 0 {
		c.primes = protocol.Primes(v[0])
	} else if mine, err := h.sessions.Find(x.secret, x.principal); err == nil {
		c.primes = protocol.Primes(mine.Revision())
	}
}

// startStream begins to serve a request at a stream URL. A call that waits for input and
// has nothing to say answers 204, which asks the client to POST what it has. A client
// that does not say how far it has come may not have heard the question: if it comes
// back though nobody sent it away, or after that 204, it is told again.
func (h *Handler) startStream(x *exchange, o *outcome) (err error) {
	s := x.session
	o.kind = outcomeStream
	if o.at, err = h.streamAt(x); err != nil {
		return err
	}
	if x.purpose == forAnswers {
		if len(x.r.Header[protocol.HeaderLastEventID]) == 0 {
			o.at = s.Streams().DeliveredAt(o.at)
		}
		return h.send(x)
	}
	told, number := o.at, o.at.Stream.Number
	if x.last == "" && !s.Streams().IsRead(number) {
		told = s.Streams().DeliveredAt(o.at)
	}
	switch {
	case !s.Streams().AwaitsInputAt(told):
	case x.last != "" || s.SignalInputOnce(number):
		o.kind = outcomeNothing
	case s.Streams().AwaitsInputAt(o.at): // nothing follows the place that the URL names
		o.at.Seq, o.at.Epoch = s.Streams().Oldest(x.r.Context(), number), 0
	}
	return nil
}

// decodeAnswers decodes a POST of the responses that a client has gathered, at the URL of
// the stream that waits for them (SEP-1335, "Multi-turn requests"). If it is false the
// request was answered.
func (h *Handler) decodeAnswers(w http.ResponseWriter, x *exchange) bool {
	if h.opts.Stateless || h.opts.Eras.refusesLegacy() && x.from == nil {
		h.answers.Reject(w, http.StatusNotFound, errf(codeInvalid, "an endpoint without sessions has no stream URLs"))
		return false
	}
	if !h.readPost(w, x) {
		return false
	}
	for i := range x.msgs {
		if x.msgs[i].Kind != jsonrpc.Response {
			h.answers.Reject(w, http.StatusBadRequest, errf(codeInvalid, "only responses can be posted to a stream URL"))
			return false
		}
	}
	x.purpose, x.ref = forAnswers, streamParam(x.r)
	return h.identify(w, x)
}
