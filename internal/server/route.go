package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for sessions that are not on this node: where they are, and what
// becomes of a request that concerns one. docs/decisions/0013-forwarding.md.

// errAnswered says that another node has answered the request, or that it was
// answered in that node's place.
var errAnswered = errors.New("the request was answered")

// errUnreached says that neither a session's owner could be reached nor the
// session be taken over, for as long as that was tried.
var errUnreached = errors.New("the session's node does not answer")

// reachFor is how long that is.
const reachFor = 10 * time.Second

// An errand is what a request wants of a session that is not here.
type errand struct {
	key stream.SessionKey // "": a new one
	at  *session.Remote   // where it was just now, if that is known
	// as says that the request goes there as that session's client's: it came in
	// another session, or in none.
	as    bool
	msgs  []jsonrpc.Message // of a POST
	batch bool
	pair  bool           // the doors of revision 2024-11-05
	where string         // and what those tell their clients
	who   *string        // the principal, where the request can't tell
	local *session.Range // of what the node knows by itself this one wants to know
	again bool           // its call may be on record where the session is by now
	keyed bool           // its client can make it again
	stays bool           // its client is not to be sent away
}

// body returns what is sent on of a POST: without messages that have been taken
// here already.
func (e *errand) body() []byte {
	if e.msgs == nil {
		return nil
	}
	if !e.batch {
		return e.msgs[0].Raw
	}
	all := make([][]byte, len(e.msgs))
	for i := range e.msgs {
		all[i] = e.msgs[i].Raw
	}
	return appendAnswers(nil, all, true)
}

// asks says whether there are requests among the messages that begin calls.
func (e *errand) asks() bool {
	for i := range e.msgs {
		if e.msgs[i].Kind == jsonrpc.Request && !protocol.Resumes(e.msgs[i].Method) {
			return true
		}
	}
	return false
}

// reach goes where a session is that [session.Manager.Find] does not find here. It
// returns the session if it has come here, or been here all the time. Else another
// node answers the request, and the error is errAnswered; any other is to be
// answered by the caller.
func (h *Handler) reach(w http.ResponseWriter, r *http.Request, e errand) (*session.Session, error) {
	switch v := h.visit(r); {
	case h.peers == nil:
		return nil, session.ErrNotFound
	case v != nil:
		return h.host(w, r, v, &e)
	}
	return h.newRelay(w, r, &e).run()
}

// host is the same for a request of another node. It is not sent on: that node
// looks again where the session is, or is told that it is about another one.
func (h *Handler) host(w http.ResponseWriter, r *http.Request, v *visit, e *errand) (*session.Session, error) {
	switch {
	case v.here && h.isDraining():
		return nil, session.ErrClosing
	case v.here:
		return nil, errUnreached
	}
	if v.Take && e.key != "" {
		s, at, err := h.sessions.Locate(r.Context(), e.key, string(v.Principal))
		if err == nil && s == nil && h.abandoned(r.Context(), at) {
			s, err = h.takeOver(r.Context(), at)
		}
		if s != nil || err != nil && !errors.Is(err, stream.ErrConflict) {
			return s, err
		}
	}
	where := ""
	if e.as {
		where = string(e.key)
	}
	w.Header()[headerMoved] = []string{where}
	h.reject(w, http.StatusMisdirectedRequest, errf(jsonrpc.CodeServer, "the session is not on this node"))
	return nil, errAnswered
}

// abandoned says whether a session has no owner, or one that is gone.
func (h *Handler) abandoned(ctx context.Context, at *session.Remote) bool {
	node := h.peers.node
	if at.Owner == "" || at.Owner == node.Name() {
		return true
	}
	c, err := node.Dial(ctx, at.Owner) // who was heard of just now may be gone nevertheless
	if err == nil {
		c.Close()
		return false
	}
	return errors.Is(err, cluster.ErrNoNode) || node.Gone(ctx, at.Owner)
}

// takeOver takes a session over, and tells the node that had it: it may be there
// after all.
func (h *Handler) takeOver(ctx context.Context, at *session.Remote) (*session.Session, error) {
	s, err := h.sessions.TakeOver(ctx, at)
	if err == nil && at.Owner != "" && at.Owner != h.peers.node.Name() {
		h.peers.tell(at.Owner, &notice{Taken: at.Key})
	}
	return s, err
}

// A relay is one request on its way to a session that is, or was, on another node.
// It is sent again, to whichever node has the session by then, where that is safe;
// and a stream of events that breaks is gone on with in the same response.
type relay struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	e       *errand
	visit   visit
	payload []byte
	gone    string          // the node that has turned out to be gone
	held    *session.Remote // the session as it was when the request was sent to its node
	sent    bool            // it may have arrived somewhere
	node    string          // to which it was sent last
	out     *follow         // what is told of the stream that answers; nil until it begins
	end     time.Time       // until when it is tried

	// For who drains this node.
	asks    bool        // it is a POST with requests
	told    atomic.Bool // and its client has got an event id
	listens atomic.Bool // its client waits for nothing in particular
	leaving atomic.Bool // it is being sent away
	gaveUp  error       // why the answer was ended before its end
	cancel  atomic.Pointer[context.CancelFunc]
}

func (h *Handler) newRelay(w http.ResponseWriter, r *http.Request, e *errand) *relay {
	rl := &relay{h: h, w: w, r: r, e: e, payload: e.body(), end: time.Now().Add(reachFor)}
	rl.visit = visit{
		Principal: []byte(h.principal(r)),
		From:      r.RemoteAddr,
		Watched:   h.watched.at(r) != nil,
		Pair:      e.pair,
		Messages:  e.where,
		Local:     e.local,
		Stays:     e.stays,
		Revision:  h.revision(r),
	}
	if e.who != nil {
		rl.visit.Principal = []byte(*e.who)
	}
	rl.visit.Info = h.pack(r.Context())
	if rl.asks = e.asks(); rl.asks {
		rl.visit.Once = rand.Text()
	}
	return rl
}

// revision returns the protocol revision that a client speaks, if that is known
// here.
func (h *Handler) revision(r *http.Request) string {
	if v := r.Header[protocol.HeaderVersion]; len(v) > 0 {
		return v[0]
	}
	if own := r.Header[protocol.HeaderSession]; len(own) > 0 {
		if s, err := h.sessions.Find(own[0], h.principal(r)); err == nil {
			return s.Revision()
		}
	}
	return ""
}

// run goes where the session is until the request is answered, or the session is
// here.
func (rl *relay) run() (*session.Session, error) {
	h := rl.h
	if h.isLeaving() && !rl.e.again && rl.asks {
		return nil, session.ErrClosing // before it is begun anywhere
	}
	defer h.peers.enter(rl)()
	// What the client has sent is taken, whether it stays or not.
	ctx := context.WithoutCancel(rl.r.Context())
	for n := 0; ; n++ {
		s, err := rl.step(ctx)
		switch {
		case s != nil && rl.out != nil:
			rl.out.continued = true
			err = rl.inside(rl.out, rl.resumption(rl.r.Context()))
		case s != nil && (rl.sent || rl.e.again) && rl.visit.Once != "":
			err = rl.inside(rl.w, rl.again(s))
		case s != nil:
			return s, nil
		}
		switch {
		case err == nil, errors.Is(err, errLeft):
			return nil, errAnswered
		case !errors.Is(err, errAgain):
			return nil, rl.failed(err)
		case rl.r.Context().Err() != nil && (rl.out != nil || rl.visit.Once == ""):
			return nil, errAnswered // nobody listens
		case rl.leaving.Load():
			return nil, rl.failed(errLeaving)
		case time.Now().After(rl.end):
			return nil, rl.failed(errUnreached)
		}
		rl.pause(min(time.Duration(n)*10*time.Millisecond, 200*time.Millisecond))
	}
}

// pause waits between two tries, which others who want the same session make too.
func (rl *relay) pause(d time.Duration) {
	t := time.NewTimer(d + mathrand.N(5*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-rl.h.peers.quit:
		rl.end = time.Time{}
	}
}

// errUnknown stands for requests that may have been taken by a node that was lost
// then.
var errUnknown = errors.New(protocol.TextOutcomeUnknown)

// errAgain wraps what says that a request was not answered, and that it is to be
// looked again where the session is.
var errAgain = errors.New("not answered")

// step makes one try. It returns the session if it is here.
func (rl *relay) step(ctx context.Context) (*session.Session, error) {
	h := rl.h
	if rl.e.key == "" {
		return nil, rl.abroad(ctx, nil)
	}
	at := rl.e.at
	rl.e.at = nil
	if at == nil && rl.held != nil && rl.held.Owner == rl.gone {
		at = rl.held // as it was when its node was lost; else who is too late is told
	}
	rl.held = nil
	if at == nil {
		s, found, err := h.sessions.Locate(ctx, rl.e.key, string(rl.visit.Principal))
		if errors.Is(err, stream.ErrConflict) {
			return nil, errAgain
		}
		if s != nil || err != nil {
			return s, err
		}
		at = found
	}
	if at.Owner != "" && at.Owner != rl.gone && at.Owner != h.peers.node.Name() {
		rl.held = at
		return nil, rl.send(ctx, at.Owner, at, false)
	}
	if h.isDraining() {
		return nil, rl.abroad(ctx, at)
	}
	s, err := h.takeOver(ctx, at)
	switch {
	case errors.Is(err, stream.ErrConflict):
		err = errAgain
	case errors.Is(err, session.ErrClosing):
		return nil, rl.abroad(ctx, at)
	}
	return s, err
}

// abroad has another node begin a session (at is nil), or take one over, as this
// one takes on nothing new.
func (rl *relay) abroad(ctx context.Context, at *session.Remote) error {
	peers := rl.h.peers.node.Peers()
	if len(peers) == 0 {
		return session.ErrClosing
	}
	return rl.send(ctx, peers[mathrand.N(len(peers))], at, true)
}

// failed answers for what could not be done, where the answer has begun.
func (rl *relay) failed(err error) error {
	if rl.out != nil {
		rl.gaveUp = err
		rl.out.giveUp()
		return errAnswered
	}
	if rl.sent && rl.r.Method == http.MethodDelete && errors.Is(err, session.ErrNotFound) {
		rl.w.WriteHeader(http.StatusNoContent) // it was deleted before its node was lost
		return errAnswered
	}
	if rl.sent && rl.asks && !rl.e.keyed && !errors.Is(err, session.ErrNotFound) && !rl.h.sessions.RetrySafe(rl.e.msgs) {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return err
}

// waited notes that the answer was waited for since a time, and did not come. If that
// was long, the session is looked for as long as it was at first. A node that breaks
// each connection at once is not tried for ever.
func (rl *relay) waited(since time.Time) {
	if time.Since(since) > reachFor/2 {
		rl.end = time.Now().Add(reachFor)
	}
}

// lost notes that a node does not answer, if it is gone.
func (rl *relay) lost(ctx context.Context, node string, err error) {
	if errors.Is(err, cluster.ErrNoNode) || rl.h.peers.node.Gone(ctx, node) {
		rl.gone = node
	}
}

// inside has this node's own door go on with what another's has begun.
func (rl *relay) inside(w http.ResponseWriter, r *http.Request) error {
	v, began := rl.visit, time.Now()
	v.Again, v.here = true, true
	rl.h.visited(w, r, &v)
	switch {
	case v.moved:
		rl.sent = true
		rl.waited(began)
		return errAgain
	case rl.out == nil:
		return nil
	}
	return rl.out.result()
}

// isDraining says whether nothing new is taken on.
func (h *Handler) isDraining() bool {
	select {
	case <-h.draining:
		return true
	default:
		return false
	}
}
