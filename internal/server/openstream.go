package server

import (
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
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// stream answers an exchange with a stream of events. After an error nothing was
// answered: the session has left this node, and a call may be made on the session's node.
func (h *Handler) stream(w http.ResponseWriter, x *exchange.Exchange, o *outcome) error {
	c, began, err := h.openStream(w, x, o)
	if c == nil {
		return err
	}
	if began == nil {
		unwatch := c.WatchRights(x.HTTP.Context())
		began = c.Copy(x.HTTP.Context())
		unwatch()
	}
	c.Close(began)
	switch {
	case o.kind == outcomePair:
		h.leftPair(x, began)
	case errors.Is(began, streaming.ErrGoesOn):
		h.goOn(w, x, c)
	}
	return nil
}

// goOn continues a stream in the same response when its session has left this node, as the client has
// no event id to come back with.
//
//go:noinline
func (h *Handler) goOn(w http.ResponseWriter, x *exchange.Exchange, c *streaming.Events) {
	if _, ok := w.(*placement.Answer); ok {
		return // the placement that made w continues the stream
	}
	y := *x
	p := h.newPlacement(w, &y)
	if err := p.GoOn(c.Session.ID(), string(c.EventID())); err != nil {
		h.logger.Debug("stream not continued at another node", "session", c.Session.Name(), "error", err)
	}
}

// openStream prepares the copying of a stream to c. began is the error with which the
// copying begins. If c is nil, [Handler.stream] returns err, or nil if the exchange was
// answered. It is a function of its own so that the stack of a call that waits stays small.
//
//go:noinline
func (h *Handler) openStream(w http.ResponseWriter, x *exchange.Exchange, o *outcome) (c *streaming.Events, began, err error) {
	c = h.responses.To(w, x, o.Session)
	c.Call = o.Call
	c.Stays = o.kind != outcomePair && !c.Via.IsMuxed()
	var first []byte
	switch o.kind {
	case outcomeStream:
		if x.Purpose == exchange.ForMessages { // the call was begun before
			c.Door = observe.DoorKey
		}
		err = h.readOn(x, o, c)
	case outcomeStandalone:
		err = c.Standalone(x.HTTP.Context())
		if err == nil && !c.Via.IsMuxed() { // on a mux it is no sign that a call was lost
			x.Session.CameBack(0, nil)
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
		w.WriteHeader(http.StatusNoContent) // the stream was read to its end: the client is not to come back
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	began = c.Open(first, false)
	if began == nil && o.kind != outcomePair && c.IsStandalone() && !c.Via.IsMuxed() {
		c.ContinueLost(x.HTTP.Context()) // after the header, as its goroutines write too
	}
	return c, began, nil
}

// openCall is openStream for a call that has begun, which is read from its beginning. A
// stored call's messages go to the backend once the client can ask for the call again,
// and not at all if its stream can't be read.
func (h *Handler) openCall(w http.ResponseWriter, x *exchange.Exchange, o *outcome, c *streaming.Events) (_ *streaming.Events, began, err error) {
	stored := o.kind != outcomeLight
	if o.Call.Method() == "initialize" {
		c.Primes = false // the revision is not settled
		c.Wants = streaming.WantsInitialize
	}
	if err := c.Read(x.HTTP.Context(), stream.Cursor{Stream: stream.ID{Number: o.Call.Number()}}); err != nil {
		if stored {
			return nil, nil, h.undelivered(w, o.Call, x.Msgs, err)
		}
		return nil, nil, h.unreadable(w, x, o.Call, err)
	}
	if x.Purpose == exchange.ForMessages && !c.Via.IsMuxed() && h.sessions.MayRefuse(x.HTTP, x.Msgs) {
		if stored { // a light call's messages were delivered already
			o.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
			stored = false
		}
		if c.IsRefused(x.HTTP.Context(), o.Call) {
			return nil, nil, nil
		}
	}
	c.Link()
	if stored && c.Via.IsMuxed() { // the client's node finds the call by its name, and forwards the next message once this stream begins
		o.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
		stored = false
	}
	gone := c.Gone()
	began = c.Open(nil, false)
	if gone || x.HTTP.Context().Err() != nil {
		c.Unseen()
	}
	if stored {
		o.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
	}
	if !h.sessions.Shared() { // where nodes share a store, a note may still need them
		clear(x.Msgs) // a long call must not hold the body
	}
	return c, began, nil
}

// unreadable answers the messages of a running call when its stream can't be read. After an error nothing was answered.
func (h *Handler) unreadable(w http.ResponseWriter, x *exchange.Exchange, call *session.Call, err error) error {
	if call.Retriable() {
		return session.ErrMoved
	}
	call.ConnectionLost()
	h.logger.Warn("stream of a call not opened", "session", x.Session.Name(), "error", err)
	h.answers.FailMessages(w, fmt.Errorf("%w: %w", placement.ErrUnknown, err), x.Msgs, x.Batch)
	return nil
}

// readOn makes c read a stream from the cursor o.at. A client that resumes the standalone stream
// may have lost track of a call on another connection: some clients forget the id that they resumed
// with if the connection ends before the next id, and come back with nothing but the session. Both
// connections then read the standalone stream in turns, and either may continue the call.
func (h *Handler) readOn(x *exchange.Exchange, o *outcome, c *streaming.Events) error {
	h.speakAs(x, o.Session, c)
	c.URL = x.Purpose == exchange.ForStream || x.Purpose == exchange.ForAnswers
	c.Continues = x.Continues
	c.Resumes = x.Purpose == exchange.ForRead
	if err := c.Read(x.HTTP.Context(), o.at); err != nil {
		return err
	}
	c.Link()
	if o.at.Stream.Number != 0 {
		c.Wants = streaming.WantsResume
		if !c.Continues {
			o.Session.CameBack(o.at.Stream.Number, c.Connection())
		}
	}
	return nil
}

// forgotten answers a client that comes back for a call that no node knows any more, if its event id names the request: with an error,
// at once. Without that, the client might come back again and again until it gives up. forgotten reports whether it has answered.
func (h *Handler) forgotten(w http.ResponseWriter, x *exchange.Exchange, o *outcome, c *streaming.Events, err error) bool {
	if x.Continues || c.Via.IsMuxed() || !errors.Is(err, stream.ErrNotFound) && !errors.Is(err, stream.ErrTrimmed) {
		return false
	}
	event := x.Last
	if event == "" {
		event = x.Place()
	}
	e, bad := ticket.ParseEvent(o.Session.ID(), event)
	if bad != nil || e.Call == nil || o.at.Stream.Number == reading.Standalone || !o.Session.Streams().IsForgotten(o.at) {
		return false // the event is not from an earlier life of the session
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

// decodeGet decodes a GET, of a stream or for a WebSocket (2025-11-25, Transports,
// "Listening for Messages from the Server", "Resumability and Redelivery"). If it
// returns false, the request was answered.
func (h *Handler) decodeGet(w http.ResponseWriter, x *exchange.Exchange) bool {
	switch {
	case websocket.IsUpgrade(x.HTTP):
		x.Purpose = exchange.ForSocket
		if h.callers.bySingleTools(x.HTTP.Context()) {
			h.answers.FailDenied(w, errNoSocket, h.answers.Denied(x.HTTP, nil, h.callers.asker(x.HTTP)))
			return false
		}
		return h.identify(w, x) && !websocket.Refuse(w, x.HTTP) // before placement looks for its session
	case !accepts(x.HTTP.Header["Accept"], "text/event-stream"):
		h.answers.Reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: what a GET gets is a stream"))
		return false
	}
	x.Purpose = exchange.ForRead
	if x.Ref = streamParam(x.HTTP); x.Ref != "" {
		x.Purpose = exchange.ForStream
	}
	return h.identify(w, x)
}

// speakAs makes c write by the rules of the client's own revision: the stream may be of
// another session than the client's.
func (h *Handler) speakAs(x *exchange.Exchange, s *session.Session, c *streaming.Events) {
	if x.From != nil && x.From.Revision != "" {
		c.Primes = protocol.Primes(x.From.Revision)
		return
	}
	if x.HTTP.Header[protocol.HeaderSession] == nil || s.HasID(x.Secret) {
		return
	}
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 {
		c.Primes = protocol.Primes(v[0])
	} else if mine, err := h.sessions.Find(x.Secret, x.Principal); err == nil {
		c.Primes = protocol.Primes(mine.Revision())
	}
}

// startStream begins to serve a request at a stream URL. A call that waits for input and
// has no new message answers 204, which asks the client to POST its responses. A client
// without a Last-Event-ID may not have received the question: it is sent again if the
// client comes back unasked, or after that 204.
func (h *Handler) startStream(x *exchange.Exchange, o *outcome) (err error) {
	s := x.Session
	o.kind = outcomeStream
	if o.at, err = h.streamAt(x); err != nil {
		return err
	}
	if x.Purpose == exchange.ForAnswers {
		if len(x.HTTP.Header[protocol.HeaderLastEventID]) == 0 {
			o.at = s.Streams().DeliveredAt(o.at)
		}
		return h.send(x)
	}
	told, number := o.at, o.at.Stream.Number
	if x.Last == "" && !s.Streams().IsRead(number) {
		told = s.Streams().DeliveredAt(o.at)
	}
	switch {
	case !s.Streams().AwaitsInputAt(told):
	case x.Last != "" || s.SignalInputOnce(number):
		o.kind = outcomeNothing
	case s.Streams().AwaitsInputAt(o.at): // no message follows the cursor that the URL names
		o.at.Seq, o.at.Epoch = s.Streams().Oldest(x.HTTP.Context(), number), 0
	}
	return nil
}

// decodeAnswers decodes a POST of the responses that a client has gathered, at the URL of
// the stream that waits for them (SEP-1335, "Multi-turn requests"). If it returns false,
// the request was answered.
func (h *Handler) decodeAnswers(w http.ResponseWriter, x *exchange.Exchange) bool {
	if h.opts.Stateless || h.opts.Eras.RefusesLegacy() && x.From == nil {
		h.answers.Reject(w, http.StatusNotFound, errf(codeInvalid, "an endpoint without sessions has no stream URLs"))
		return false
	}
	if !h.readPost(w, x) {
		return false
	}
	for i := range x.Msgs {
		if x.Msgs[i].Kind != jsonrpc.Response {
			h.answers.Reject(w, http.StatusBadRequest, errf(codeInvalid, "only responses can be posted to a stream URL"))
			return false
		}
	}
	x.Purpose, x.Ref = exchange.ForAnswers, streamParam(x.HTTP)
	return h.identify(w, x)
}

// streamAt returns the cursor that a stream URL names. The URL, which is secret, is
// enough to read the stream, but only as the same principal.
func (h *Handler) streamAt(x *exchange.Exchange) (at stream.Cursor, err error) {
	s := x.Session
	if !h.mayRead(x, s) {
		return at, session.ErrNotFound
	}
	at, err = streaming.CursorOf(s, x.Place())
	if errors.Is(err, ticket.ErrBadEvent) {
		return at, session.ErrNotFound // a client that guesses URLs learns nothing
	}
	if err == nil && x.Last != "" {
		at, err = streaming.CursorAfter(x.HTTP.Context(), s, at.Stream.Number, x.Last)
	}
	return at, err
}

// mayRead reports whether a request may read a stream of s. Its session header, if it
// has one, must not be another client's: it names s, or, for a named principal or where
// requests are resumed (SEP-975), another session of that principal.
func (h *Handler) mayRead(x *exchange.Exchange, s *session.Session) bool {
	if x.HTTP.Header[protocol.HeaderSession] == nil || s.HasID(x.Secret) {
		return true
	}
	_, err := h.sessions.Find(x.Secret, x.Principal)
	if err != nil && h.nodes != nil {
		_, _, err = h.sessions.Locate(x.HTTP.Context(), whereabouts.KeyOf(x.Secret), x.Principal)
	}
	return err == nil && (!x.Principal.IsAnonymous() || s.Resumes() != nil)
}

// streamParam returns the stream in the query of a URL, or "".
func streamParam(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return r.URL.Query().Get(protocol.ParamStream)
}

// The following answers stored calls with plain JSON ([ResponseJSON]): the call is
// stored before it runs, and its answer before it is sent.

// plain answers a POST with the responses of a stored call, as soon as it has ended; or with its stream,
// if that has another message that the client takes. After an error nothing was answered.
func (h *Handler) plain(w http.ResponseWriter, x *exchange.Exchange, o *outcome) error {
	r := x.HTTP
	c := h.responses.To(w, x, o.Session)
	c.Call = o.Call
	err := c.Read(r.Context(), o.beginning())
	switch {
	case err == nil:
	case o.kind == outcomeLight:
		return h.unreadable(w, x, o.Call, err)
	case o.Call != nil:
		return h.undelivered(w, o.Call, x.Msgs, err)
	case o.kind == outcomeStream && errors.Is(err, io.EOF):
		w.WriteHeader(http.StatusNoContent) // the stream was read to its end
		return nil
	default:
		return err
	}
	if o.kind != outcomeLight { // a light call's messages were delivered already
		o.Deliver(x.Values(), x.Msgs, r.Header)
		confirmDelivery(w, x)
	}
	err = c.Respond(r.Context(), x, o.Call)
	switch {
	case errors.Is(err, streaming.ErrNotPlain):
		c.Link()
		if err = c.Open(nil, false); err == nil {
			err = c.Copy(r.Context())
		}
		c.Close(err)
		return nil
	case err == nil, c.IsRead(), r.Context().Err() != nil:
		c.Detach(err)
		return nil
	}
	c.Detach(nil)
	return h.interrupted(w, x, o, err)
}

// interrupted answers a POST when its call can't be read to its end here: as a rule
// its session has left this node. Then the node that forwarded the POST, or a
// placement on this one, asks for the call by its name where the session is now.
func (h *Handler) interrupted(w http.ResponseWriter, x *exchange.Exchange, o *outcome, err error) error {
	switch moved := errors.Is(err, session.ErrMoved); {
	case moved && x.From != nil:
		panic(http.ErrAbortHandler)
	case moved && (x.Once.Name != "" || o.Call != nil && o.Call.Retriable()):
		return session.ErrMoved
	}
	h.logger.Warn("call not read to its end", "session", o.Session.Name(), "error", err)
	h.answers.FailMessages(w, fmt.Errorf("%w: %w", placement.ErrUnknown, err), x.Msgs, x.Batch)
	return nil
}

// undelivered ends a call that has begun, but does not run, as its stream can't be
// read. After an error nothing was answered.
func (h *Handler) undelivered(w http.ResponseWriter, call *session.Call, msgs []jsonrpc.Message, err error) error {
	call.Abort(msgs, errf(jsonrpc.CodeServer, "not delivered: its stream cannot be read: %v", err))
	if errors.Is(err, session.ErrMoved) {
		return err
	}
	h.answers.Fail(w, err)
	return nil
}
