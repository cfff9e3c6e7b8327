package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

const codeInvalid = jsonrpc.CodeInvalidRequest

func errf(code int, format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(code, format, args...)
}

// This file is the one place where a call begins, for every transport: the rules that
// its messages must keep, and which call they mean.

// A starter has the calls of exchanges begin: at once, or when it is their turn.
type starter struct {
	sessions  *session.Manager
	nodes     *placement.Nodes // nil where there is no other node
	watched   *watch.Connections
	response  Response
	stateless bool
	draining  <-chan struct{}
	observers observe.Observers
}

// A stage is how far the session has come that messages are for.
type stage int

const (
	stageNone stage = iota // there is none: each request stands alone, or names its session itself
	stageNew               // it waits for its initialize request
	stageOpen              // its initialize request has come
)

// stageOf returns the stage of a session.
func stageOf(s *session.Session) stage {
	if s.Initializing() != nil || s.Revision() != "" { // in this order
		return stageOpen
	}
	return stageNew
}

// checkMessages checks what came at a time against the stage and the protocol revision
// of its session. Whether there are batches is decided by the revision that initialize
// has settled on, and not by the header of one request, which could claim any.
func checkMessages(msgs []jsonrpc.Message, batch bool, at stage, revision string) error {
	initialize := initializes(msgs)
	switch {
	case initialize && len(msgs) > 1:
		return errf(codeInvalid, "initialize must not be part of a batch")
	case initialize && at == stageOpen:
		return errf(codeInvalid, "the session is initialized already")
	case initialize && len(msgs[0].Raw) > session.MaxInitialize: // before a backend is opened for it
		return session.ErrInitialize
	case !initialize && at == stageNew:
		return errf(codeInvalid, "the first message must be an initialize request")
	case batch && !protocol.Batches(revision):
		return errf(codeInvalid, "protocol revision %s has no batches: send one message", revision)
	}
	return nil
}

// initializes reports whether one of the messages is an initialize request.
func initializes(msgs []jsonrpc.Message) bool {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && msgs[i].Method == "initialize" {
			return true
		}
	}
	return false
}

// A runOnce says under what name requests run once, however often they come.
type runOnce struct {
	key   string // the client's idempotency key, or ""
	name  string // the name that the node gave that forwards the requests, or ""
	again bool   // they may have come before, under that name or, before their session moved, without it

	admitted bool        // limits have let them begin
	pass     *limit.Pass // and this is what they take; nil: nothing
}

// A begun is the call that requests have begun.
type begun struct {
	session *session.Session
	call    *session.Call // which is to be delivered; nil if the same requests began it before
	number  uint64        // of its stream; 0 while it is light
	again   bool          // the requests may have run before, on a node that was lost
}

// begin begins the call of the requests among msgs, or finds the one that the same
// requests have begun before. from says where they come from. The errors are those of [session.Session.Begin] and
// [session.Session.BeginOnce].
func begin(s *session.Session, msgs []jsonrpc.Message, light bool, once runOnce, from session.Origin) (begun, error) {
	switch {
	case once.key != "":
		call, known, err := s.BeginOnce(session.Once{Key: once.key}, joined(msgs), msgs, from)
		return begunOf(s, call, known, err)
	case once.name != "" && (!light || s.SingleStream()):
		call, known, err := s.BeginOnce(session.Once{Name: once.name}, joined(msgs), msgs, from)
		if !once.again || !errors.Is(err, session.ErrDuplicate) {
			b, err := begunOf(s, call, known, err)
			// It may have been light before, without the name: the node that was lost can have
			// known a tool to be safe that is not known here.
			b.again = once.again
			return b, err
		}
		if s.SingleStream() { // whose calls have no streams: its client reads the one that the session has
			return begun{session: s}, nil
		}
		fallthrough // who has taken the session over makes it again already
	case once.name != "" && once.again:
		if number := inFlight(s, from.Guest, msgs); number != 0 {
			return begun{session: s, number: number}, nil
		}
	}
	call, err := s.Begin(msgs, light, from)
	if err != nil {
		return begun{}, err
	}
	return begun{session: s, call: call, number: call.Number(), again: once.again}, nil
}

func begunOf(s *session.Session, call *session.Call, known *session.ExistingCall, err error) (begun, error) {
	switch {
	case err != nil:
		return begun{}, err
	case call == nil:
		return begun{session: known.Session, number: known.Number}, nil
	}
	return begun{session: s, call: call, number: call.Number()}, nil
}

// inFlight returns the number of the stream of the call that the first of the requests
// is part of, which is stored from now on; 0 if none is in flight. guest is as in [session.Origin].
func inFlight(s *session.Session, guest stream.SessionKey, msgs []jsonrpc.Message) uint64 {
	for i := range msgs {
		if msgs[i].Kind != jsonrpc.Request {
			continue
		}
		if c := s.CallFrom(guest, msgs[i].ID); c != nil {
			c.Promote()
			return c.Number()
		}
		return 0
	}
	return 0
}

// deliver hands the requests of a call that has begun just now to the backend.
func (b *begun) deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	switch {
	case b.call == nil:
	case b.again:
		b.call.Redeliver(ctx, msgs, header)
	default:
		b.call.Deliver(ctx, msgs, header)
	}
}

// joined returns what makes two bodies the same: their messages.
func joined(msgs []jsonrpc.Message) []byte {
	if len(msgs) == 1 {
		return msgs[0].Raw
	}
	var all []byte
	for i := range msgs {
		all = append(append(all, msgs[i].Raw...), '\n') // no message has a line break in it
	}
	return all
}

// brokenWithin is how long a request that comes again waits for the end of the connection that it first came on: the network may
// tell of that later than its client, which has made the request again.
const brokenWithin = time.Second

// attach finds the call of a request that its client makes once more, under the same id, because the connection of the first one
// has broken: some HTTP clients do that by themselves, for a POST, too. The error is fail unless that is so. ended says that the call
// has ended since, so that the id may be used.
func (st *starter) attach(x *exchange, guest stream.SessionKey, fail error) (b begun, ended bool, err error) {
	if len(x.msgs) != 1 || x.muxed {
		return begun{}, false, fail
	}
	c := x.session.CallFrom(guest, x.msgs[0].ID)
	if c == nil {
		return begun{}, true, fail
	}
	conn := st.origin(x).Conn
	for end := time.Now().Add(brokenWithin); ; time.Sleep(brokenWithin / 100) {
		same, lost := c.Again(&x.msgs[0], conn)
		switch {
		case x.session.CallFrom(guest, x.msgs[0].ID) != c:
			return begun{}, true, fail
		case same && lost:
			return begun{session: x.session, number: c.Number()}, false, nil
		case !same, time.Now().After(end), x.r.Context().Err() != nil:
			return begun{}, false, fail
		}
	}
}

// light reports whether requests start light. Where other nodes may take the session over,
// what is not safe to make again never does, whatever form the answer has.
func (st *starter) light(ctx context.Context, header http.Header, s *session.Session, msgs []jsonrpc.Message) bool {
	switch {
	case st.response == ResponseJSON && !st.sessions.Shared(), st.stateless:
		return true
	case st.response == ResponseSSE:
		return false
	}
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && !s.Tools.Light(ctx, &msgs[i], header) {
			return false
		}
	}
	return true
}

// beginModern begins the call of a modern request, or finds the one that was begun under the
// same idempotency key.
func (st *starter) beginModern(x *exchange, from session.Origin) (begun, error) {
	if x.once.key != "" {
		call, known, err := x.session.BeginOnce(session.Once{Key: x.once.key, Client: x.client(st.sessions)}, []byte(modern.SumOf(&x.msgs[0])), x.msgs, from)
		return begunOf(x.session, call, known, err)
	}
	// Who can come back for what is not safe to make again is told how before it runs.
	call, err := x.session.Begin(x.msgs, !x.modern.resumes || protocol.RetrySafe(x.msgs[0].Method, nil), from)
	return begunOf(x.session, call, nil, err)
}
