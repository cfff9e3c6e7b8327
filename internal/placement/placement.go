// Package placement finds the node that serves an exchange, and sends the exchange there. It is
// the only package that knows of other nodes: where sessions are, requests, streams and notices
// between nodes, taking over the sessions of nodes that are lost, and what becomes of clients of
// other nodes' sessions when this node ends. docs/decisions/0013-forwarding.md.
//
// The server of this node stands above it. It hands over what it can't serve as a [Request],
// whose [Exchange] placement calls when the session has come here.
package placement

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// MostMoves is how often an exchange may turn out to concern a session that is not
// here, or not any more, before it is refused.
const MostMoves = 4

// ErrNotHere is ErrNotFound as far as this node knows.
var ErrNotHere = fmt.Errorf("%w on this node", session.ErrNotFound)

// ErrUnreached says that neither a session's owner could be reached nor the
// session be taken over, for as long as that was tried.
var ErrUnreached = errors.New("the session's node does not answer")

// reachFor is how long that is.
const reachFor = 10 * time.Second

// IsElsewhere reports whether an exchange was not served because of an error that says that its
// session, or another that it concerns, is not on this node.
func IsElsewhere(err error) bool {
	var away *session.Redirect
	return errors.As(err, &away) || errors.Is(err, ErrNotHere) || errors.Is(err, session.ErrMoved)
}

// An Exchange is what is placed. Its methods are called one at a time.
type Exchange interface {
	// Serve serves the exchange on this node. An error says that nothing was answered.
	Serve(w http.ResponseWriter, run *Run) error
	// Continue has to.Onto, to which a stream was written up to the event to.Last, go on with it, as the
	// session has come here. An error says that it is to be tried again.
	Continue(to *Answer, s *session.Session) error
	// Repeatable reports whether its requests can be made again without harm, by this node or by
	// its client.
	Repeatable() bool
	// Lost returns what its client is told at the end of a stream that nobody can continue: a message, or after which time it is to
	// come back; nil and a negative time: nothing.
	Lost() (message []byte, retry time.Duration)
	// Streams says that a stream begins to be passed on to its client, which has begun at another node with a
	// header, or was begun here (nil). calls says that it is of calls, and not a standalone one.
	Streams(head http.Header, calls bool)
	// Passed says that another node has answered it. It is called once, at the end of the answer.
	Passed(how *Passed)
}

// Passed is how another node has answered an exchange.
type Passed struct {
	Status  int    // of HTTP; 0: the client has left before there was one
	Refused string // why it was refused before there was a call, or ""
	// Streamed says that Exchange.Streams was called, and Why why that stream is not passed on any more.
	Streamed bool
	Why      observe.Why
}

// A Run is how an exchange is served on this node once it was placed.
type Run struct {
	// Session has come here; nil: there is none yet. Redirected says that the exchange came in
	// another session, or in none.
	Session    *session.Session
	Redirected bool
	// Name is that under which its requests run once; "": they have none. Again says that they
	// may have come before, under that name or without it.
	Name  string
	Again bool
}

// A Request is an exchange that is to be placed. Visit, and what follows it, is not set for one
// that another node has forwarded.
type Request struct {
	HTTP      *http.Request
	Exchange  Exchange
	Principal caller.Principal  // who asks
	Key       stream.SessionKey // of the session that the exchange names; "": of none
	ID        string            // its secret id, if the exchange names it by that: then it can be revived
	Revision  string            // that the client says it speaks, or ""
	From      *Visit            // what the node has told that has forwarded it; nil: it came from a client
	Again     bool              // its requests may have come before
	Anywhere  bool              // any node can serve it, as long as none has begun to
	// Modern says that it is of revision 2026-07-28: its stream can't be continued, and no node
	// knows its requests by a name.
	Modern bool
	// Cuts says that its client cannot ask for its call but by making it again: the node that has it is told at once that the client
	// has left.
	Cuts bool

	Visit    Visit // what another node is told
	Wait     Wait
	Messages []jsonrpc.Message
	Batch    bool
	Conn     *watch.Conn // its client's; nil: it is not watched
}

// A Placement is an exchange on its way to a session that is, or was, on another node.
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
// From sent on its requests run once, under the name in [Visit].Once.
type Placement struct {
	target
	nodes *Nodes
	w     http.ResponseWriter
	req   *Request

	home    target // the session that the exchange names itself
	state   placementState
	run     Run              // how it is served here
	node    string           // to which it was forwarded last
	gone    string           // the node that has turned out to be gone
	held    *session.Remote  // the session as it was when the exchange was forwarded to its owner
	out     *forwardedStream // the stream that answers; nil before it begins
	end     time.Time        // until when it is tried
	leaving departure
	passed  *Passed // nil: no node has answered
	written bool    // all was written to the client; guarded by departed.mu
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
func (p *Placement) to(next placementState) {
	if slices.Contains(nextStates[p.state], next) {
		p.state = next
	}
}

// Place prepares the placement of an exchange that is not served here.
func (n *Nodes) Place(w http.ResponseWriter, req *Request) *Placement {
	p := &Placement{nodes: n, w: w, req: req, end: time.Now().Add(reachFor), run: Run{Again: req.Again}}
	p.home.key = req.Key
	p.leaving.expect(req.Wait)
	return p
}

// InSession has the exchange be for a session that it does not name itself: that of the
// connection on which it came. at is where that was just now, or nil.
func (p *Placement) InSession(key stream.SessionKey, at *session.Remote) {
	p.home = target{key: key, at: at, redirected: true}
}

// AskLocally has the exchange ask for what a node knows by itself, of sessions in a range.
func (p *Placement) AskLocally(in *session.Range) { p.req.Visit.Local = in }

// Begun reports whether a stream of events has begun to answer the exchange.
func (p *Placement) Begun() bool { return p.out != nil }

// Taken reports whether a newer connection reads that stream.
func (p *Placement) Taken() bool { return p.out.isTaken() }

// Last returns the id of the event that was written last, or "".
func (p *Placement) Last() string {
	if p.out == nil {
		return ""
	}
	return p.out.last
}

// Run places the exchange, which was not served because of err, until it is answered. The
// error is to be the answer, unless one has begun.
func (p *Placement) Run(err error) error {
	if p.req.From == nil {
		defer p.nodes.enter(&p.leaving)()
		defer func() {
			if p.passed != nil {
				p.req.Exchange.Passed(p.passed)
			}
		}()
	}
	// What the client has sent is taken, whether it stays or not.
	ctx := context.WithoutCancel(p.req.HTTP.Context())
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

// GoOn places the rest of a stream that this node has written to the client up to an event, as its session,
// which has the secret id, has left this node. The error is as in [Placement.Run].
func (p *Placement) GoOn(id, last string) error {
	p.home = target{key: whereabouts.KeyOf(id)}
	p.target = p.home
	p.out = &forwardedStream{p: p, c: http.NewResponseController(p.w), session: id, last: last, base: ticket.NameOf(last), continued: true}
	p.to(streaming)
	p.to(broken)
	p.streams(nil)
	return p.Run(errAgain)
}

// streams notes that a stream begins to be passed on. head is the header of the node that it comes from, or nil.
func (p *Placement) streams(head http.Header) {
	p.passed = &Passed{Status: http.StatusOK, Streamed: true}
	p.req.Exchange.Streams(head, !ticket.IsStandalone(p.out.base))
}

// endsAs notes why a stream that was passed on ends.
func (p *Placement) endsAs(why observe.Why) {
	if p.passed != nil {
		p.passed.Why = why
	}
}

// aim takes in why the exchange was not served here, and sets where it goes next. It returns
// the error that says that this is nowhere, after so many moves.
func (p *Placement) aim(err error, moves int) error {
	var away *session.Redirect
	switch {
	case moves >= MostMoves:
		return err
	case errors.As(err, &away):
		p.target = target{key: away.Key, at: away.Remote, redirected: true}
	case errors.Is(err, ErrNotHere), errors.Is(err, session.ErrMoved):
		if p.home.key == "" && errors.Is(err, session.ErrMoved) {
			return err // it is to be asked again, and not taken for the end of a session
		}
		if p.home.key == "" {
			return session.ErrNotFound // no name at all: that would be a new session
		}
		p.run.Again = p.run.Again || errors.Is(err, session.ErrMoved)
		p.target, p.home.at = p.home, nil
	case moves == 0 && p.req.Anywhere && errors.Is(err, session.ErrClosing):
	default:
		return err
	}
	return nil
}

// try makes one try: the exchange is forwarded to the node that has its session, or served
// here if that has come here.
func (p *Placement) try(ctx context.Context) error {
	var s *session.Session
	var err error
	switch {
	case p.req.From != nil:
		s, err = p.hostForwarded()
	case p.nodes.isLeaving() && p.state == placed && !p.run.Again && p.req.Visit.Once != "":
		err = session.ErrClosing // before it is begun anywhere
	default:
		s, err = p.step(ctx)
	}
	if s != nil {
		err = p.serveIn(s)
	}
	if errors.Is(err, errLeft) {
		p.left()
		return nil
	}
	return err
}

// left notes that the client has left before it was answered, or before its stream has ended.
func (p *Placement) left() {
	if p.passed == nil {
		p.passed = &Passed{}
	}
	p.endsAs(observe.Cut)
}

// over returns why it is not worth while to try again, or nil.
func (p *Placement) over() error {
	switch {
	case p.req.HTTP.Context().Err() != nil && (p.out != nil || p.req.Visit.Once == ""):
		return errLeft // nobody listens
	case p.leaving.begun():
		return ErrLeaving
	case p.mayHaveRun():
		return ErrUnknown
	case time.Now().After(p.end):
		return ErrUnreached
	}
	return nil
}

// mayHaveRun reports whether a node may have begun a modern request that is not to run twice: no
// other node would know.
func (p *Placement) mayHaveRun() bool {
	return p.req.Modern && p.key == "" && p.state == sent && !p.req.Exchange.Repeatable()
}

// ErrHere says that the session of an exchange on a mux has come here: the mux serves it.
var ErrHere = errors.New("the session has come to this node")

// serveIn serves the exchange here, as its session, or the one that it concerns, has come
// here.
func (p *Placement) serveIn(s *session.Session) error {
	p.run.Session, p.run.Redirected = s, p.redirected
	switch {
	case p.out != nil:
		return p.continueIn(s)
	case p.req.Visit.Once != "" && (p.state == sent || p.run.Again): // it may have begun already
		p.run = Run{Session: s, Name: p.req.Visit.Once, Again: true}
	case p.req.Visit.Stays && p.key == p.home.key: // not another session, which the request concerns
		return ErrHere
	}
	if p.req.From == nil {
		p.nodes.exit(&p.leaving) // drained as what is served here
		defer func() { p.nodes.enter(&p.leaving) }()
	}
	began := time.Now()
	err := p.req.Exchange.Serve(p.w, &p.run)
	if errors.Is(err, session.ErrMoved) && p.run.Name != "" {
		p.to(sent)
		p.waited(began)
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// continueIn has the stream that answers go on with what this node has of it.
func (p *Placement) continueIn(s *session.Session) error {
	p.to(streaming)
	to := Answer{Onto: p.w, Last: p.out.last, HasID: p.leaving.hasID}
	if err := p.req.Exchange.Continue(&to, s); err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	p.out.last, p.out.ending, p.out.broken = to.Last, to.Ending, to.Broken
	p.out.others = p.out.others || to.Others
	switch {
	case to.Ending == EndsTaken:
		p.endsAs(observe.Superseded)
	case p.req.HTTP.Context().Err() != nil || to.Broken != nil:
		p.endsAs(observe.Cut)
	}
	if to.Ending == EndsMoved {
		return errAgain
	}
	return nil // if nothing is kept, a client that comes back is told
}

// pause waits between two tries, which others who want the same session make too.
func (p *Placement) pause(d time.Duration) {
	t := time.NewTimer(d + rand.N(5*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.nodes.quit:
		p.end = time.Time{}
	}
}

// ErrUnknown stands for requests that may have been taken by a node that was lost
// then.
var ErrUnknown = errors.New(protocol.TextOutcomeUnknown)

// errLeft says that the client has left.
var errLeft = errors.New("the client has left")

// errAgain wraps what says that a request was not answered, and that it is to be
// looked again where the session is.
var errAgain = errors.New("not answered")

// failed gives the placement up, and returns what its client is to be told. Where the
// answer has begun that ends, for the client to come back.
func (p *Placement) failed(err error) error {
	was := p.state
	p.to(done)
	if errors.Is(err, errLeft) {
		p.left()
		return nil
	}
	if p.out != nil {
		p.endsAs(observe.Disconnected)
		p.out.end()
		return err
	}
	if was == sent && p.req.HTTP.Method == http.MethodDelete && errors.Is(err, session.ErrNotFound) {
		p.w.WriteHeader(http.StatusNoContent) // it was deleted before its node was lost
		return nil
	}
	if was == sent && p.req.Visit.Once != "" && !errors.Is(err, session.ErrNotFound) && !p.req.Exchange.Repeatable() {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// waited notes that the answer was waited for since a time, and did not come. If that
// was long, the session is looked for as long as it was at first. A node that breaks
// each connection at once is not tried for ever.
func (p *Placement) waited(since time.Time) {
	if time.Since(since) > reachFor/2 {
		p.end = time.Now().Add(reachFor)
	}
}
