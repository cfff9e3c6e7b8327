package server

import (
	"errors"
	"net/http"
	"strconv"

	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// An outcomeKind is how an exchange is answered, once serving it has begun.
type outcomeKind int

const (
	outcomeAccepted   outcomeKind = iota // 202: notifications and responses were handed to the session
	outcomeNothing                       // 204: there is no message to read, or the session has ended
	outcomeAnswer                        // body is the answer
	outcomeBegun                         // the same, and a call has begun, which goes on
	outcomeLight                         // a light call has begun: JSON, unless it is stored before it ends
	outcomeJSON                          // a stored call has begun, which is answered with JSON
	outcomeCall                          // a stored call has begun, which is answered with its stream
	outcomeStream                        // a stream is read from a cursor
	outcomeStandalone                    // the standalone stream is read
	outcomePair                          // the one stream of a session of 2024-11-05 is read
	outcomeSocket                        // the connection becomes a WebSocket
)

// An outcome is the beginning of an exchange's answer. An exchange that concerns another session has no outcome, but the error
// *[session.Redirect]; if its session is elsewhere, the error is placement.ErrNotHere or [session.ErrMoved]. After these the
// exchange is placed again.
type outcome struct {
	kind outcomeKind
	exchange.Begun
	at   stream.Cursor
	body []byte
}

// beginning returns the cursor from which the stream of an outcome is read.
func (o *outcome) beginning() stream.Cursor {
	switch o.kind {
	case outcomeStream:
		return o.at
	case outcomeLight: // the call was stored since
		return stream.Cursor{Stream: stream.ID{Number: o.Call.Number()}}
	}
	return stream.Cursor{Stream: stream.ID{Number: o.Number}}
}

// serveIn serves an exchange in its session, which is here. After an error nothing was answered.
func (h *Handler) serveIn(w http.ResponseWriter, x *exchange.Exchange) error {
	if x.Purpose == exchange.ForModern {
		return h.modern.Serve(w, x) // which finds the session now
	}
	var o outcome
	if err := h.start(x, &o); err != nil {
		return err
	}
	switch o.kind {
	case outcomeLight:
		if stored, err := h.answerLight(w, x, &o); !stored {
			return err
		}
		if x.Form == answering.OnlyJSON {
			return h.plain(w, x, &o)
		}
		return h.stream(w, x, &o)
	case outcomeCall, outcomeStream:
		if x.Form == answering.OnlyJSON {
			return h.plain(w, x, &o)
		}
		return h.stream(w, x, &o)
	case outcomeStandalone, outcomePair:
		return h.stream(w, x, &o)
	}
	return h.write(w, x, &o)
}

// serveNew serves an exchange in a new session. After an error nothing was answered: the node is drained and begins no session,
// or the session that initialize came to has left it since ([session.ErrMoved]). serveNew answers other errors itself.
func (h *Handler) serveNew(w http.ResponseWriter, x *exchange.Exchange) (err error) {
	if h.opts.Stateless && h.opts.Limits.Bounds() { // before a backend is opened
		if err := h.starter.AdmitAlone(x); err != nil {
			h.answers.FailMessages(w, err, x.Msgs, x.Batch)
			return nil
		}
		defer x.Once.Pass.Release() // if no call has taken it
	}
	if err := h.open(x); errors.Is(err, session.ErrClosing) && !h.opts.Stateless {
		return err
	} else if err != nil {
		h.answers.FailMessages(w, err, x.Msgs, x.Batch)
		return nil
	}
	if h.opts.Stateless || x.Purpose == exchange.ForSocket {
		defer h.settle(x, nil)
	}
	if x.Purpose == exchange.ForSession && !h.opts.Stateless {
		w.Header()[protocol.HeaderSession] = []string{x.Session.ID()}
	}
	if err = h.serveIn(w, x); err != nil {
		w.Header().Del(protocol.HeaderSession)
	}
	h.settle(x, err)
	switch {
	case x.Purpose == exchange.ForSession && errors.Is(err, session.ErrMoved):
		return err
	case err != nil:
		h.answers.FailMessages(w, err, x.Msgs, x.Batch)
	}
	return nil
}

// settle ends the session that was begun for an exchange if its client can't know the session. err is the exchange's error.
func (h *Handler) settle(x *exchange.Exchange, err error) {
	s := x.Session
	ends := s.Revision() == ""
	switch {
	case h.opts.Stateless:
		ends = true
	case x.Purpose == exchange.ForPairStream:
		ends = err != nil
	case x.Purpose == exchange.ForSession && ends: // initialize has failed, or its client has left
		c := s.Initializing()
		ends = c == nil || x.HTTP.Context().Err() != nil
	}
	if ends {
		h.sessions.End(s)
	}
}

// start begins to serve an exchange in its session.
//
//go:noinline
func (h *Handler) start(x *exchange.Exchange, o *outcome) (err error) {
	s := x.Session
	o.Session = s
	if s != nil && s.Modern() != "" {
		return session.ErrNotFound // a carrier, which no client knows
	}
	if s != nil && s.SingleStream() != x.Pair() && x.Purpose != exchange.ForRequest {
		if x.Purpose == exchange.ForPairStream {
			return ticket.ErrBadEvent
		}
		return session.ErrNotFound // the session has other entry points
	}
	switch x.Purpose {
	case exchange.ForSession:
		if h.opts.Stateless {
			return h.startStateless(x, o)
		}
		return h.startCall(x, o)
	case exchange.ForMessages:
		err = h.startMessages(x, o)
	case exchange.ForNamed:
		o.kind = outcomeAccepted
		for i := 0; i < len(x.Msgs) && err == nil; i++ {
			_, err = h.deliver(x, &x.Msgs[i])
		}
	case exchange.ForRequest:
		return h.startRequest(x, o)
	case exchange.ForRead:
		o.kind = outcomeStandalone
		if x.Last != "" {
			o.kind = outcomeStream
			o.at, err = streaming.CursorOf(s, x.Last)
		}
	case exchange.ForStream, exchange.ForAnswers:
		return h.startStream(x, o)
	case exchange.ForEnd:
		h.sessions.End(s)
		o.kind = outcomeNothing
	case exchange.ForSocket:
		o.kind = outcomeSocket
	case exchange.ForPairStream:
		o.kind = outcomePair
		if x.Ref != "" {
			o.at, err = streaming.CursorOf(s, x.Place())
		}
		if err == nil && o.at.Stream.Number != 0 {
			err = ticket.ErrBadEvent
		}
	case exchange.ForPairMessages:
		err = h.startPairMessages(x, o)
	}
	if errors.Is(err, session.ErrCancelled) { // the client cancelled the request before the call began
		o.Begun, o.kind, err = exchange.Begun{Session: s}, outcomeAccepted, nil
	}
	return err
}

// write writes an outcome that is not a stream of events.
//
//go:noinline
func (h *Handler) write(w http.ResponseWriter, x *exchange.Exchange, o *outcome) error {
	switch o.kind {
	case outcomeNothing:
		w.WriteHeader(http.StatusNoContent)
	case outcomeAnswer:
		_ = h.answers.Answer(w, x.Form, [][]byte{o.body}, false)
	case outcomeBegun:
		if x.Form != answering.OnlyEvents {
			w.Header()["Content-Length"] = []string{strconv.Itoa(len(o.body))}
		}
		_ = h.answers.Answer(w, x.Form, [][]byte{o.body}, false)
		_ = http.NewResponseController(w).Flush() // delivering may take long
		o.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
	case outcomeJSON:
		return h.plain(w, x, o)
	case outcomeSocket:
		return h.mux.Socket(w, x)
	default:
		h.accepted(w, x)
		o.Deliver(x.Values(), x.Msgs, x.HTTP.Header) // of 2024-11-05: answers go to the session's stream
	}
	return nil
}
