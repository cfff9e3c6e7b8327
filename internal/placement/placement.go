// Package placement finds the node that serves an exchange, and sends the exchange there. It is
// the only package that knows of other nodes: where sessions are, requests, streams and notices
// between nodes, taking over the sessions of nodes that are lost, and disconnecting the clients
// of other nodes' sessions when this node ends. docs/decisions/0013-forwarding.md.
//
// The server of this node stands above it. It hands over each exchange that it can't serve as
// a [Request], and placement calls the request's [Exchange] when the session has come here.
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

// MostMoves is how often an exchange may turn out to concern a session that is
// not, or no longer, on this node before the exchange is refused.
const MostMoves = 4

// ErrNotHere says that this node does not have the session; another node may.
var ErrNotHere = fmt.Errorf("%w on this node", session.ErrNotFound)

// ErrUnreached says that within reachFor a session's owner could not be
// reached and the session could not be taken over.
var ErrUnreached = errors.New("the session's node does not answer")

// reachFor is for how long a placement is tried.
const reachFor = 10 * time.Second

// IsElsewhere reports whether err says that the session of an exchange, or another session that
// it concerns, is not on this node.
func IsElsewhere(err error) bool {
	var away *session.Redirect
	return errors.As(err, &away) || errors.Is(err, ErrNotHere) || errors.Is(err, session.ErrMoved)
}

// An Exchange is a client's exchange that is placed. Its methods are called one at a time.
type Exchange interface {
	// Serve serves the exchange on this node. After an error nothing was written to w.
	Serve(w http.ResponseWriter, run *Run) error
	// Continue writes the rest of a stream to to.Onto, which has it up to the event to.Last, as the
	// session has come here. After an error it is tried again.
	Continue(to *Answer, s *session.Session) error
	// Repeatable reports whether the exchange's requests can be made again without harm, by this
	// node or by the client.
	Repeatable() bool
	// Lost returns the last event of a stream that no node can continue: a message, or the time after which the client is to come
	// back; nil and a negative time: none.
	Lost() (message []byte, retry time.Duration)
	// Streams is called when a stream begins to be passed on to the client. head is the header from the other
	// node, or nil if the stream began on this node. calls says that the stream is of calls, and not standalone.
	Streams(head http.Header, calls bool)
	// Passed is called once, at the end of an answer from another node.
	Passed(how *Passed)
}

// Passed describes another node's answer to an exchange.
type Passed struct {
	Status  int    // of HTTP; 0: the client left before the answer began
	Refused string // why the exchange was refused before a call began, or ""
	// Streamed says that Exchange.Streams was called. Why is the reason that its stream has ended.
	Streamed bool
	Why      observe.Why
}

// A Run says how a placed exchange is served on this node.
type Run struct {
	// Session has come here; nil: the exchange has no session yet. Redirected says that the
	// exchange came in another session, or in none.
	Session    *session.Session
	Redirected bool
	// Name is the name under which the exchange's requests run once; "": they have none. Again
	// says that they may have come before, with or without that name.
	Name  string
	Again bool
}

// A Request is an exchange to place. Visit and the fields after it are not set for an exchange
// that another node has forwarded.
type Request struct {
	HTTP      *http.Request
	Exchange  Exchange
	Principal caller.Principal  // the client's
	Key       stream.SessionKey // of the session that the exchange names; "": of none
	ID        string            // the session's secret id, if the exchange has it: then the session can be revived
	Revision  string            // that the client claims to speak, or ""
	From      *Visit            // the visit from the node that has forwarded the exchange; nil: it came from a client
	Again     bool              // its requests may have come before
	Anywhere  bool              // any node can serve the exchange, until one has begun to
	// Modern says that the exchange is of revision 2026-07-28: its stream can't be continued,
	// and no node knows its requests by a name.
	Modern bool
	// Cuts says that the client can get its call back only by making it again: when the client leaves, the forwarded request is
	// cancelled at once.
	Cuts bool

	Visit    Visit // for the node to which the exchange is forwarded
	Wait     Wait
	Messages []jsonrpc.Message
	Batch    bool
	Conn     *watch.Conn // the client's; nil: it is not watched
}

// A Placement is an exchange on its way to a session that is, or was, on another node.
// Where that is safe, the exchange is forwarded again, to the node that has the session
// by then; a stream of events that breaks continues in the same response.
//
//	state     | what it is                                              | next
//	----------|---------------------------------------------------------|----------------
//	placed    | no node can have taken it                               | sent, streaming, done
//	sent      | another node may have taken it, and has not answered    | streaming, done
//	streaming | a node's stream is written to the client                | broken, done
//	broken    | the stream has ended too soon, and must continue        | streaming, done
//	done      | it was answered, or is given up                         |
//
// From the state sent on, the requests run once, under the name in [Visit].Once.
type Placement struct {
	target
	nodes *Nodes
	w     http.ResponseWriter
	req   *Request

	home    target // the session that the exchange names itself
	state   placementState
	run     Run              // for Exchange.Serve
	node    string           // to which the exchange was forwarded last
	gone    string           // the last node that turned out to be lost
	held    *session.Remote  // the session as it was when the exchange was forwarded to its owner
	out     *forwardedStream // the stream that answers; nil before it begins
	end     time.Time        // of the tries
	leaving departure
	passed  *Passed // nil: no node has answered
	written bool    // the whole answer was written to the client; guarded by departed.mu
}

// A placementState is a state in the table of [Placement].
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

// to changes the state to next, if next may follow the present state. No other function changes it.
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

// InSession sets the session of an exchange that does not name one: the session of its
// connection. at is where that session was just now, or nil.
func (p *Placement) InSession(key stream.SessionKey, at *session.Remote) {
	p.home = target{key: key, at: at, redirected: true}
}

// AskLocally makes the exchange ask for the receiving node's own sessions alone, in a range.
func (p *Placement) AskLocally(in *session.Range) { p.req.Visit.Local = in }

// Begun reports whether a stream of events has begun to answer the exchange.
func (p *Placement) Begun() bool { return p.out != nil }

// Taken reports whether a newer connection has taken over the stream that answers the exchange.
func (p *Placement) Taken() bool { return p.out.isTaken() }

// Last returns the id of the event that was written last, or "".
func (p *Placement) Last() string {
	if p.out == nil {
		return ""
	}
	return p.out.last
}

// Run places the exchange, which was not served because of err, until it is answered. The
// caller answers with the error that Run returns, unless an answer has begun.
func (p *Placement) Run(err error) error {
	if p.req.From == nil {
		defer p.nodes.enter(&p.leaving)()
		defer func() {
			if p.passed != nil {
				p.req.Exchange.Passed(p.passed)
			}
		}()
	}
	// The client's messages are processed even if the client leaves.
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

// GoOn places the rest of a stream of which this node has written the events up to last. The stream's
// session, with the secret id, has left this node. The error is as in [Placement.Run].
func (p *Placement) GoOn(id, last string) error {
	p.home = target{key: whereabouts.KeyOf(id)}
	p.target = p.home
	p.out = &forwardedStream{p: p, c: http.NewResponseController(p.w), session: id, last: last, base: ticket.NameOf(last), continued: true}
	p.to(streaming)
	p.to(broken)
	p.streams(nil)
	return p.Run(errAgain)
}

// streams notes that a stream begins to be passed on. head is the header from the other node, or nil.
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

// aim sets the target of the next try from err, the reason that the exchange was not served
// here. It returns an error if there is no next target, or if moves has reached MostMoves.
func (p *Placement) aim(err error, moves int) error {
	var away *session.Redirect
	switch {
	case moves >= MostMoves:
		return err
	case errors.As(err, &away):
		p.target = target{key: away.Key, at: away.Remote, redirected: true}
	case errors.Is(err, ErrNotHere), errors.Is(err, session.ErrMoved):
		if p.home.key == "" && errors.Is(err, session.ErrMoved) {
			return err // the client asks again, and does not take this for the end of a session
		}
		if p.home.key == "" {
			return session.ErrNotFound // without a session's name, a try would begin a new session
		}
		p.run.Again = p.run.Again || errors.Is(err, session.ErrMoved)
		p.target, p.home.at = p.home, nil
	case moves == 0 && p.req.Anywhere && errors.Is(err, session.ErrClosing):
	default:
		return err
	}
	return nil
}

// try makes one try: it forwards the exchange to the node that has the session, or serves
// it here if the session has come here.
func (p *Placement) try(ctx context.Context) error {
	var s *session.Session
	var err error
	switch {
	case p.req.From != nil:
		s, err = p.hostForwarded()
	case p.nodes.isLeaving() && p.state == placed && !p.run.Again && p.req.Visit.Once != "":
		err = session.ErrClosing // no node has begun the exchange
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

// left notes that the client left before the end of its answer.
func (p *Placement) left() {
	if p.passed == nil {
		p.passed = &Passed{}
	}
	p.endsAs(observe.Cut)
}

// over returns the reason not to try again, or nil.
func (p *Placement) over() error {
	switch {
	case p.req.HTTP.Context().Err() != nil && (p.out != nil || p.req.Visit.Once == ""):
		return errLeft // no client waits, and no request is left to run
	case p.leaving.begun():
		return ErrLeaving
	case p.mayHaveRun():
		return ErrUnknown
	case time.Now().After(p.end):
		return ErrUnreached
	}
	return nil
}

// mayHaveRun reports whether a node may have begun a modern request that must not run twice: no
// other node could know that it has begun.
func (p *Placement) mayHaveRun() bool {
	return p.req.Modern && p.key == "" && p.state == sent && !p.req.Exchange.Repeatable()
}

// ErrHere says that the session of an exchange on a mux has come to this node: the mux serves the exchange.
var ErrHere = errors.New("the session has come to this node")

// serveIn serves the exchange on this node, in s: its own session, or the session that it concerns.
func (p *Placement) serveIn(s *session.Session) error {
	p.run.Session, p.run.Redirected = s, p.redirected
	switch {
	case p.out != nil:
		return p.continueIn(s)
	case p.req.Visit.Once != "" && (p.state == sent || p.run.Again): // the call may have begun already
		p.run = Run{Session: s, Name: p.req.Visit.Once, Again: true}
	case p.req.Visit.Stays && p.key == p.home.key: // not another session, which the request concerns
		return ErrHere
	}
	if p.req.From == nil {
		p.nodes.exit(&p.leaving) // while served here, it is drained with this node's own exchanges
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

// continueIn continues the stream that answers with the events that this node has.
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
	return nil // if the rest is lost, the client learns it when it comes back
}

// pause waits between two tries, with jitter: other placements may try for the same session.
func (p *Placement) pause(d time.Duration) {
	t := time.NewTimer(d + rand.N(5*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.nodes.quit:
		p.end = time.Time{}
	}
}

// ErrUnknown is the outcome of requests that a node may have taken before it was lost.
var ErrUnknown = errors.New(protocol.TextOutcomeUnknown)

// errLeft says that the client has left.
var errLeft = errors.New("the client has left")

// errAgain marks an error after which the request is not answered: the session
// is looked up again, and the request tried again.
var errAgain = errors.New("not answered")

// failed gives the placement up, and returns the error for the client. An answer that
// has begun ends, so that the client comes back.
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
		p.w.WriteHeader(http.StatusNoContent) // the session was deleted before its node was lost
		return nil
	}
	if was == sent && p.req.Visit.Once != "" && !errors.Is(err, session.ErrNotFound) && !p.req.Exchange.Repeatable() {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// waited notes that a node was asked at since and gave no answer. After a long wait
// the tries get their full time, reachFor, again; after a short one they do not, so
// that a node that breaks each connection at once is not tried for ever.
func (p *Placement) waited(since time.Time) {
	if time.Since(since) > reachFor/2 {
		p.end = time.Now().Add(reachFor)
	}
}
