package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
)

// What follows is for sessions that are not on this node: where they are, and what
// becomes of a request that concerns one. docs/decisions/0013-forwarding.md.

// mostMoves is how often an exchange may turn out to concern a session that is not
// here, or not any more, before it is refused.
const mostMoves = 4

// errNotHere is ErrNotFound as far as this node knows.
var errNotHere = fmt.Errorf("%w on this node", session.ErrNotFound)

// errUnreached says that neither a session's owner could be reached nor the
// session be taken over, for as long as that was tried.
var errUnreached = errors.New("the session's node does not answer")

// reachFor is how long that is.
const reachFor = 10 * time.Second

// displaced reports whether an exchange was not served because its session is not here,
// or because it is to be begun on another node.
func (h *Handler) displaced(x *exchange, err error) bool {
	if err == nil || h.peers == nil {
		return false
	}
	var away *session.Redirect
	return errors.As(err, &away) || errors.Is(err, errNotHere) || errors.Is(err, session.ErrMoved) ||
		x.anywhere() && errors.Is(err, session.ErrClosing)
}

// place goes on with an exchange that was not served because of err. If that is because
// its session, or another that it concerns, is not here, it is served where the session is,
// or here once the session has come here. Any other error is the answer.
//
//go:noinline
func (h *Handler) place(w http.ResponseWriter, x *exchange, err error) {
	switch displaced := h.displaced(x, err); {
	case displaced && x.purpose == forSocket && x.from == nil && !x.opens():
		if err = h.socketElsewhere(w, x); err == nil {
			return
		}
	case displaced:
		y := *x
		defer h.holds(y.msgs)()
		p := h.newPlacement(w, &y)
		if err = p.run(err); err == nil || p.out != nil {
			return
		}
	}
	if errors.Is(err, session.ErrClosing) && h.peers != nil && x.r.Method == http.MethodGet && h.isLeaving() && h.alone() && x.from == nil {
		// A moment later nobody listens here: some clients who would try again then
		// take 503 for the end of their session.
		panic(http.ErrAbortHandler)
	}
	if x.purpose == forModern {
		h.failModern(w, x, err)
		return
	}
	h.failMessages(w, err, x.msgs, x.batch)
}

// A placement is an exchange on its way to a session that is, or was, on another node.
// It is forwarded again, to whichever node has the session by then, where that is safe;
// and a stream of events that breaks is gone on with in the same response.
//
//	state     | what it is                                              | next
//	----------|---------------------------------------------------------|----------------
//	placed    | no node can have taken it                               | sent, streaming, done
//	sent      | another node may have taken it, and has not answered    | streaming, done
//	streaming | a node's stream is written to the client                | broken, done
//	broken    | the stream has ended too soon, and is to be gone on with | streaming, done
//	done      | it was answered, or is given up                         |
//
// From sent on its requests run once, under the name in visit.Once.
type placement struct {
	target
	h *Handler
	w http.ResponseWriter
	x *exchange

	home    target // the session that the exchange names itself
	state   placementState
	visit   visit            // what another node is told
	node    string           // to which it was forwarded last
	gone    string           // the node that has turned out to be gone
	held    *session.Remote  // the session as it was when the exchange was forwarded to its owner
	out     *forwardedStream // the stream that answers; nil before it begins
	end     time.Time        // until when it is tried
	leaving departure
}

// A placementState is how far a placement has come.
type placementState int

const (
	placed placementState = iota
	sent
	streaming
	broken
	done
)

// nextStates are the states that may follow each.
var nextStates = [...][]placementState{
	placed:    {sent, streaming, done},
	sent:      {streaming, done},
	streaming: {broken, done},
	broken:    {streaming, done},
	done:      {},
}

// to makes a transition, if there is one from the state in which the placement is. It is
// the only thing that does.
func (p *placement) to(next placementState) {
	if slices.Contains(nextStates[p.state], next) {
		p.state = next
	}
}

// newPlacement prepares the placement of an exchange that is not served here.
func (h *Handler) newPlacement(w http.ResponseWriter, x *exchange) *placement {
	p := &placement{h: h, w: w, x: x, end: time.Now().Add(reachFor)}
	p.home.key = x.name()
	if x.from != nil {
		return p
	}
	p.visit = visit{
		Principal: []byte(x.principal),
		From:      x.r.RemoteAddr,
		Watched:   h.watched.At(x.r) != nil,
		Pair:      x.pair(),
		Messages:  x.endpoint,
		Stays:     x.muxed,
		Revision:  h.revision(x),
		Info:      h.pack(x.r.Context()),
	}
	switch {
	case x.purpose == forModern && x.isListen():
		p.leaving.listens()
	case x.purpose == forModern:
		p.leaving.waits()
	case x.begins():
		p.visit.Once = rand.Text()
		p.leaving.waits()
	}
	return p
}

// revision returns the protocol revision that a client speaks, if that is known
// here.
func (h *Handler) revision(x *exchange) string {
	if v := x.r.Header[protocol.HeaderVersion]; len(v) > 0 {
		return v[0]
	}
	if id := x.r.Header[protocol.HeaderSession]; len(id) > 0 {
		if s, err := h.sessions.Find(id[0], x.principal); err == nil {
			return s.Revision()
		}
	}
	return ""
}

// run places the exchange, which was not served because of err, until it is answered. The
// error is to be the answer, unless one has begun.
func (p *placement) run(err error) error {
	if p.x.from == nil {
		defer p.h.peers.enter(p)()
	}
	// What the client has sent is taken, whether it stays or not.
	ctx := p.x.values()
	for moves, tries := 0, 0; err != nil; {
		if errors.Is(err, errAgain) {
			if fail := p.over(); fail != nil {
				return p.failed(fail)
			}
			p.pause(min(time.Duration(tries)*10*time.Millisecond, 200*time.Millisecond))
			tries++
		} else if fail := p.aim(err, moves); fail != nil {
			return p.failed(fail)
		} else {
			moves++
		}
		err = p.try(ctx)
	}
	p.to(done)
	return nil
}

// aim takes in why the exchange was not served here, and sets where it goes next. It returns
// the error that says that this is nowhere, after so many moves.
func (p *placement) aim(err error, moves int) error {
	var away *session.Redirect
	switch {
	case moves >= mostMoves:
		return err
	case errors.As(err, &away):
		p.target = target{key: away.Key, at: away.Remote, redirected: true}
	case errors.Is(err, errNotHere), errors.Is(err, session.ErrMoved):
		if p.home.key == "" && errors.Is(err, session.ErrMoved) {
			return err // it is to be asked again, and not taken for the end of a session
		}
		if p.home.key == "" {
			return session.ErrNotFound // no name at all: that would be a new session
		}
		p.x.once.again = p.x.once.again || errors.Is(err, session.ErrMoved)
		p.target, p.home.at = p.home, nil
	case moves == 0 && p.x.anywhere() && errors.Is(err, session.ErrClosing):
	default:
		return err
	}
	return nil
}

// try makes one try: the exchange is forwarded to the node that has its session, or served
// here if that has come here.
func (p *placement) try(ctx context.Context) error {
	var s *session.Session
	var err error
	switch {
	case p.x.from != nil:
		s, err = p.hostForwarded()
	case p.h.isLeaving() && p.state == placed && !p.x.once.again && p.visit.Once != "":
		err = session.ErrClosing // before it is begun anywhere
	default:
		s, err = p.step(ctx)
	}
	if s != nil {
		err = p.serveIn(s)
	}
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// over returns why it is not worth while to try again, or nil.
func (p *placement) over() error {
	switch {
	case p.x.r.Context().Err() != nil && (p.out != nil || p.visit.Once == ""):
		return errLeft // nobody listens
	case p.leaving.begun():
		return errLeaving
	case p.mayHaveRun():
		return errUnknown
	case time.Now().After(p.end):
		return errUnreached
	}
	return nil
}

// mayHaveRun reports whether a node may have begun a modern request that is not to run twice: no
// other node would know.
func (p *placement) mayHaveRun() bool {
	return p.x.purpose == forModern && p.key == "" && p.state == sent && !p.retries() && !p.h.sessions.RetrySafe(p.x.principal, p.x.msgs)
}

// errHere says that the session of an exchange on a mux has come here: the mux serves it.
var errHere = errors.New("the session has come to this node")

// serveIn serves the exchange here, as its session, or the one that it concerns, has come
// here.
func (p *placement) serveIn(s *session.Session) error {
	switch {
	case p.out != nil:
		return p.continueIn(s)
	case p.visit.Once != "" && (p.state == sent || p.x.once.again): // it may have begun already
		p.x.session = s
		p.x.once.name, p.x.once.again = p.visit.Once, true
	case p.x.muxed && p.key == p.home.key: // not another session, which the request concerns
		return errHere
	case !p.redirected, p.x.session == nil && p.x.purpose != forRequest:
		p.x.session = s
	}
	if p.x.from == nil {
		p.h.peers.exit(p) // drained as what is served here
		defer func() { p.h.peers.enter(p) }()
	}
	began := time.Now()
	err := p.h.serveIn(p.w, p.x)
	if errors.Is(err, session.ErrMoved) && p.x.once.name != "" && p.x.from == nil {
		p.to(sent)
		p.waited(began)
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// continueIn has the stream that answers go on with what this node has of it.
func (p *placement) continueIn(s *session.Session) error {
	p.to(streaming)
	p.out.continued = true
	p.out.rest = p.out.rest[:0] // half an event, which comes again
	rest := p.rest(s)
	err := p.h.serveIn(p.out, &rest)
	if err == nil {
		return p.out.result()
	}
	status, _ := p.h.explain(err)
	if p.h.displaced(&rest, err) || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return nil // nothing is kept: a client that comes back is told
}

// pause waits between two tries, which others who want the same session make too.
func (p *placement) pause(d time.Duration) {
	t := time.NewTimer(d + mathrand.N(5*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.h.peers.quit:
		p.end = time.Time{}
	}
}

// errUnknown stands for requests that may have been taken by a node that was lost
// then.
var errUnknown = errors.New(protocol.TextOutcomeUnknown)

// errAgain wraps what says that a request was not answered, and that it is to be
// looked again where the session is.
var errAgain = errors.New("not answered")

// failed gives the placement up, and returns what its client is to be told. Where the
// answer has begun that ends, for the client to come back.
func (p *placement) failed(err error) error {
	was := p.state
	p.to(done)
	if errors.Is(err, errLeft) {
		return nil
	}
	if p.out != nil && p.x.purpose == forModern {
		p.out.endModern()
		return err
	}
	if p.out != nil {
		p.out.giveUp()
		return err
	}
	if was == sent && p.x.r.Method == http.MethodDelete && errors.Is(err, session.ErrNotFound) {
		p.w.WriteHeader(http.StatusNoContent) // it was deleted before its node was lost
		return nil
	}
	if was == sent && p.visit.Once != "" && !p.retries() && !errors.Is(err, session.ErrNotFound) && !p.h.sessions.RetrySafe(p.x.principal, p.x.msgs) {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return err
}

// retries reports whether the client can make the requests again without harm, whatever
// they are.
func (p *placement) retries() bool {
	key, _ := keyOf(p.x.r, p.x.msgs)
	return p.x.muxed && !p.x.unsafe || key != "" && !p.x.pair()
}

// waited notes that the answer was waited for since a time, and did not come. If that
// was long, the session is looked for as long as it was at first. A node that breaks
// each connection at once is not tried for ever.
func (p *placement) waited(since time.Time) {
	if time.Since(since) > reachFor/2 {
		p.end = time.Now().Add(reachFor)
	}
}

// isDraining reports whether nothing new is taken on.
func (h *Handler) isDraining() bool {
	select {
	case <-h.draining:
		return true
	default:
		return false
	}
}
