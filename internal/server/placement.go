package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file hands exchanges of sessions on other nodes to package placement.

// displaced reports whether err says that the session of an exchange is not here, or
// that another node has to begin it.
func (h *Handler) displaced(x *exchange.Exchange, err error) bool {
	return err != nil && h.nodes != nil && (placement.IsElsewhere(err) || x.Anywhere() && errors.Is(err, session.ErrClosing))
}

// place handles an exchange that was not served because of err. If its session, or another
// session that it concerns, is not here, the exchange is served where that session is, or
// here once it has come here. Any other error is the answer.
//
//go:noinline
func (h *Handler) place(w http.ResponseWriter, x *exchange.Exchange, err error) {
	switch displaced := h.displaced(x, err); {
	case displaced && x.Purpose == exchange.ForSocket && x.From == nil && !x.Opens():
		if err = h.socketElsewhere(w, x); err == nil {
			return
		}
	case displaced:
		y := *x
		defer h.bodies.holds(y.Msgs)()
		p := h.newPlacement(w, &y)
		if err = p.Run(err); err == nil || p.Begun() {
			return
		}
	}
	if errors.Is(err, session.ErrClosing) && h.nodes != nil && x.HTTP.Method == http.MethodGet && h.life.IsLeaving() && h.life.IsAlone() && x.From == nil {
		// A moment later this node accepts no connections. Some clients would retry
		// then, but take a 503 for the end of their session: cut them off instead.
		panic(http.ErrAbortHandler)
	}
	if x.Purpose == exchange.ForModern {
		h.modern.Fail(w, x, err)
		return
	}
	h.answers.FailMessages(w, err, x.Msgs, x.Batch)
}

// socketElsewhere serves a WebSocket for a session on another node. After an error the handshake is not answered.
func (h *Handler) socketElsewhere(w http.ResponseWriter, x *exchange.Exchange) error {
	for range placement.MostMoves {
		err := h.mux.SocketElsewhere(w, x)
		if errors.Is(err, placement.ErrHere) {
			if err = h.find(x); err == nil {
				err = h.mux.Socket(w, x)
			}
		}
		if !errors.Is(err, placement.ErrNotHere) && !errors.Is(err, session.ErrMoved) {
			return err
		}
	}
	return placement.ErrUnreached
}

// newPlacement prepares the placement of an exchange that is not served here. It keeps x.
func (h *Handler) newPlacement(w http.ResponseWriter, x *exchange.Exchange) *placement.Placement {
	p := &placed{h: h, x: x, began: time.Now()}
	answer, stays := w.(*placement.Answer)
	p.ours = stays && answer.Events == nil
	if x.From == nil && !x.Muxed && streaming.RightsOf(x.HTTP.Context()) != nil {
		ctx, deny := context.WithCancelCause(x.HTTP.Context())
		x.HTTP, p.deny = x.HTTP.WithContext(ctx), deny
	}
	p.req = placement.Request{
		HTTP:      x.HTTP,
		Exchange:  p,
		Principal: x.Principal,
		Key:       x.Name(),
		Revision:  versionOf(x.HTTP),
		From:      x.From,
		Again:     x.Once.Again,
		Anywhere:  x.Anywhere(),
		Modern:    x.Purpose == exchange.ForModern,
	}
	if x.Purpose == exchange.ForModern && x.Method() == protocol.MethodCallTool && !x.Modern.Resumes {
		key, _ := exchange.KeyOf(x.HTTP, x.Msgs)
		p.req.Cuts = key == ""
	}
	if x.Names() {
		p.req.ID = x.Secret
	}
	if x.From == nil {
		h.describe(x, &p.req)
	}
	return h.nodes.Place(w, &p.req)
}

// describe sets the visit of a request, and the fields that are for clients' exchanges only.
func (h *Handler) describe(x *exchange.Exchange, req *placement.Request) {
	req.Messages, req.Batch, req.Conn = x.Msgs, x.Batch, h.watched.At(x.HTTP)
	req.Visit = placement.Visit{
		Principal: []byte(x.Principal.Text()),
		From:      x.HTTP.RemoteAddr,
		Watched:   req.Conn != nil,
		Pair:      x.Pair(),
		Messages:  x.Endpoint,
		Stays:     x.Muxed,
		Revision:  h.revision(x),
		Info:      h.callers.pack(x.HTTP.Context()),
	}
	if x.Purpose == exchange.ForModern {
		req.Visit.Credential = x.Credential().Bytes()
	}
	if x.MayBeGuest(h.sessions) {
		req.Visit.Own = string(x.OwnSession())
	}
	switch {
	case x.Purpose == exchange.ForModern && x.IsListen():
		req.Wait = placement.ForNews
	case x.Purpose == exchange.ForModern:
		req.Wait = placement.ForAnswer
	case x.Begins():
		req.Visit.Once = rand.Text()
		req.Wait = placement.ForAnswer
	}
}

// revision returns the protocol revision that a client speaks, or "" if this
// node does not know it.
func (h *Handler) revision(x *exchange.Exchange) string {
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 {
		return v[0]
	}
	if id := x.HTTP.Header[protocol.HeaderSession]; len(id) > 0 {
		if s, err := h.sessions.Find(id[0], x.Principal); err == nil {
			return s.Revision()
		}
	}
	return ""
}

// A placed is an exchange that placement places: a [placement.Exchange].
type placed struct {
	h   *Handler
	x   *exchange.Exchange
	req placement.Request // with which x is handed to placement

	began time.Time
	door  observe.Door // by which the stream's reader came
	ours  bool         // this node has asked, and not a client

	deny    func(why error) // ends the exchange's request; nil: the client's rights do not change
	unwatch func()
}

// Streams implements [placement.Exchange].
func (p *placed) Streams(head http.Header, calls bool) {
	if p.ours {
		return
	}
	switch door, told := observe.DoorOf(head.Get(placement.HeaderDoor)); {
	case p.x.Muxed:
		p.door = p.x.MuxDoor
	case p.x.Purpose == exchange.ForSocket:
		p.door = observe.DoorSocket
	case told:
		p.door = door
	default:
		p.door = p.x.Door()
	}
	p.watchRights(head)
	if p.h.opts.Observers != nil {
		p.h.opts.Observers.Happened(observe.StreamPassed{Door: p.door, Resumes: calls && p.door.Resumes()})
	}
}

// watchRights ends the request of an exchange, and with it the stream that another node has begun with the header head, once
// the client has lost the right to read it.
func (p *placed) watchRights(head http.Header) {
	x := p.x
	if p.deny == nil || p.unwatch != nil {
		return
	}
	rights, returns := streaming.RightsOf(x.HTTP.Context()), head[placement.HeaderReturns] != nil || streaming.GoesWithRights(p.door)
	if rights == nil || !returns && x.Purpose != exchange.ForSocket && (x.Purpose != exchange.ForModern || !x.IsListen()) {
		return
	}
	p.unwatch = rights.Watch(func() {
		why := streaming.Denial(rights)
		if why == nil && x.Purpose == exchange.ForSocket && p.h.callers.bySingleTools(x.HTTP.Context()) {
			why = errNoSocket // messages on it are not checked on this node
		}
		if why != nil {
			p.deny(&placement.NotAllowed{Why: why.Text})
		}
	})
}

// Passed implements [placement.Exchange].
func (p *placed) Passed(how *placement.Passed) {
	if p.unwatch != nil {
		p.unwatch()
	}
	if p.ours || p.h.opts.Observers == nil {
		return
	}
	if how.Streamed {
		p.h.opts.Observers.Happened(observe.StreamPassedOver{Door: p.door, Why: how.Why})
	}
	p.h.opts.Observers.Happened(observe.RequestPassed{
		Begins: p.x.Begins(), Status: how.Status, Refused: how.Refused, Took: time.Since(p.began),
	})
}

// Serve implements [placement.Exchange].
func (p *placed) Serve(w http.ResponseWriter, run *placement.Run) error {
	x := p.x
	x.Once.Again = run.Again
	if run.Name != "" {
		x.Once.Name = run.Name
	}
	if !run.Redirected || x.Session == nil && x.Purpose != exchange.ForRequest {
		x.Session = run.Session
	}
	return p.h.serveIn(w, x)
}

// Continue implements [placement.Exchange].
func (p *placed) Continue(to *placement.Answer, s *session.Session) error {
	x := p.x
	rest := exchange.Exchange{Purpose: exchange.ForRead, HTTP: x.HTTP, Principal: x.Principal, Session: s, Secret: x.Secret, Last: to.Last, Muxed: x.Muxed, Continues: true}
	switch x.Purpose {
	case exchange.ForStream, exchange.ForAnswers:
		rest.Purpose, rest.Ref = exchange.ForStream, x.Ref
	case exchange.ForPairStream:
		rest.Purpose, rest.Ref, rest.Endpoint = exchange.ForPairStream, to.Last, x.Endpoint
	}
	err := p.h.serveIn(to, &rest)
	if err == nil {
		return nil
	}
	status, _ := p.h.answers.Explain(err)
	if p.h.displaced(&rest, err) || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		return err
	}
	return nil // the rest of the stream is lost
}

// Repeatable implements [placement.Exchange].
func (p *placed) Repeatable() bool {
	x := p.x
	key, _ := exchange.KeyOf(x.HTTP, x.Msgs)
	if key == "" && x.Purpose == exchange.ForModern && p.h.sessions.Tools.TellsOthers(x.Msgs) {
		return false // it is made again with its session, and a webhook would be told of both
	}
	return x.Muxed && !x.Unsafe || key != "" && !x.Pair() || p.h.sessions.Tools.Repeatable(x.Principal.Server(), x.Msgs)
}

// Lost implements [placement.Exchange]. A modern client, which cannot come back for the rest, gets the
// error outcome unknown; for a listen it gets nothing, and listens again. A client that sent
// initialize gets errNoAnswer. Others are told when to come back.
func (p *placed) Lost() (message []byte, retry time.Duration) {
	switch {
	case p.x.Purpose == exchange.ForSession:
		return jsonrpc.AppendError(nil, p.x.Msgs[0].ID, errNoAnswer), -1
	case p.x.Purpose != exchange.ForModern:
		retry = p.h.opts.Retry
		return nil, retry + mathrand.N(retry+1)
	case p.x.IsListen():
		return nil, -1
	}
	says := errf(protocol.CodeOutcomeUnknown, "%v: the node that ran this call was lost", placement.ErrUnknown)
	return answering.Error(p.x.Modern.ID, says), -1
}

// errNoAnswer answers an initialize when no node can continue its stream. Clients do not come back for that
// stream: without this error they would wait.
var errNoAnswer = errf(jsonrpc.CodeServer, "initialize was not answered: the node that had it has ended; connect again")

// A host makes the handler a [placement.Host].
type host struct{ *Handler }

// Receive implements [placement.Host].
func (h host) Receive(w http.ResponseWriter, r *http.Request, v *placement.Visit) {
	defer h.answers.Caught(w)
	r = h.callers.unpack(r, v.Info)
	r = r.WithContext(placement.WithVisit(r.Context(), v))
	if v.Pair {
		h.pair(w, r, v.Messages)
	} else {
		h.endpoint(w, r)
	}
}

// Reject implements [placement.Host].
func (h host) Reject(w http.ResponseWriter, status int, e *jsonrpc.Error) {
	h.answers.Reject(w, status, e)
}

// Finish implements [placement.Host].
func (h host) Finish(w http.ResponseWriter, body []byte) error { return h.answers.Finish(w, body) }

// Client implements [placement.Host].
func (h host) Client(address string) (open, left bool) { return h.watched.Client(address) }

// holds counts messages as on their way until done is called: until then they may
// have to be sent to another node again.
func (b *bodyReader) holds(msgs []jsonrpc.Message) (done func()) {
	size := int64(0)
	for i := range msgs {
		size += int64(len(msgs[i].Raw))
	}
	b.flight.Add(size)
	return func() { b.flight.Add(-size) }
}

// everywhere makes the request of x on each other node that has sessions of the principal,
// and returns their results: [placement.Nodes.Everywhere].
func (h *Handler) everywhere(x *exchange.Exchange, after stream.SessionKey) ([]json.RawMessage, session.Range, error) {
	return h.nodes.Everywhere(x.HTTP.Context(), &placement.Inquiry{
		Principal: x.Principal,
		After:     after,
		Known:     !exchange.IsBetweenNodes(x.Msgs[0].Method),
		Ask: func(to *placement.Answer) *placement.Placement {
			y := *x
			y.HTTP, y.From, y.Once = exchange.OwnPost(x.HTTP), nil, exchange.Once{}
			return h.newPlacement(to, &y)
		},
	})
}

// ask serves an exchange of this node's own, and returns the body of the answer, nil
// if it has none. The exchange's request is from [exchange.OwnPost].
func (h *Handler) ask(x *exchange.Exchange) (answer []byte, err error) {
	got := &placement.Answer{}
	if err = h.find(x); err == nil {
		err = h.serveIn(got, x)
	}
	if h.displaced(x, err) {
		err = h.newPlacement(got, x).Run(err)
	}
	if err != nil {
		return nil, err
	}
	return got.Body()
}
