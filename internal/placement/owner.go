package placement

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/cluster"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// abandoned reports whether a session has no owner, or one that is gone.
func (n *Nodes) abandoned(ctx context.Context, at *session.Remote) bool {
	node := n.node
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
func (n *Nodes) takeOver(ctx context.Context, at *session.Remote) (*session.Session, error) {
	s, err := n.sessions.TakeOver(ctx, at)
	if err == nil && at.Owner != "" && at.Owner != n.node.Name() {
		n.notify(at.Owner, &notice{Taken: at.Key})
	}
	return s, err
}

// A target is the session that an exchange is placed with.
type target struct {
	key stream.SessionKey // "": a new one
	at  *session.Remote   // where it was just now, if that is known
	// redirected says that the exchange goes there as that session's client's: it came in
	// another session, or in none.
	redirected bool
}

// hostForwarded is what becomes of an exchange that another node has forwarded, where its
// session is not here. It is not forwarded again: that node looks again where the session
// is, or is told that it concerns another one. The session is returned if it has come here.
func (p *Placement) hostForwarded() (*session.Session, error) {
	n, v, ctx := p.nodes, p.req.From, p.req.HTTP.Context()
	if v.Take && p.key != "" && !n.opts.Door {
		s, at, err := p.locate(ctx, caller.Parse(string(v.Principal)))
		if err == nil && s == nil && n.abandoned(ctx, at) {
			s, err = n.takeOver(ctx, at)
		}
		if s != nil || err != nil && !errors.Is(err, stream.ErrConflict) {
			return s, err
		}
	}
	where := ""
	if p.redirected {
		where = string(p.key)
	}
	p.w.Header()[headerMoved] = []string{where}
	n.opts.Host.Reject(p.w, http.StatusMisdirectedRequest, jsonrpc.Errorf(jsonrpc.CodeServer, "the session is not on this node"))
	return nil, nil
}

// locate finds the session of the exchange, on this node or where it is. One that is nowhere can begin again, if the exchange
// names it by its id. The errors are those of [session.Manager.Locate] and [session.Manager.Revivable].
func (p *Placement) locate(ctx context.Context, principal caller.Principal) (*session.Session, *session.Remote, error) {
	s, at, err := p.nodes.sessions.Locate(ctx, p.key, principal)
	if errors.Is(err, session.ErrNotFound) && p.req.ID != "" && p.key == p.home.key {
		at, err = p.nodes.sessions.Revivable(ctx, p.req.ID, principal, p.req.HTTP.RemoteAddr, p.req.Revision)
	}
	return s, at, err
}

// step makes one try. It returns the session if it is here; else, without an error, the
// exchange was answered by another node.
func (p *Placement) step(ctx context.Context) (*session.Session, error) {
	n := p.nodes
	if p.key == "" {
		return nil, p.abroad(ctx, nil)
	}
	at := p.at
	p.at = nil
	if at == nil && p.held != nil && p.held.Owner == p.gone {
		at = p.held // as it was when its node was lost; else who is too late is told
	}
	p.held = nil
	if at == nil {
		at = n.locations.find(p.key, p.req.Principal)
	}
	if at == nil {
		s, found, err := p.locate(ctx, p.req.Principal)
		if errors.Is(err, stream.ErrConflict) {
			return nil, errAgain
		}
		if s != nil || err != nil {
			return s, err
		}
		at = found
		if at.Owner != "" {
			n.locations.keep(at)
		}
	}
	if at.Owner != "" && at.Owner != p.gone && at.Owner != n.node.Name() {
		p.held = at
		err := p.forward(ctx, at.Owner, at, false)
		if err != nil {
			n.locations.forget(at)
		}
		return nil, err
	}
	n.locations.forget(at)
	if n.takesNothing() {
		return nil, p.abroad(ctx, at)
	}
	s, err := n.takeOver(ctx, at)
	switch {
	case errors.Is(err, stream.ErrConflict):
		err = errAgain
	case errors.Is(err, session.ErrClosing):
		return nil, p.abroad(ctx, at)
	}
	return s, err
}

// abroad has the node with the least to do begin a session (at is nil), or take one over, as
// this one takes on nothing new.
func (p *Placement) abroad(ctx context.Context, at *session.Remote) error {
	node := p.nodes.node.Choose()
	if node == "" {
		return p.nodes.nobody()
	}
	return p.forward(ctx, node, at, true)
}

// lost notes that a node does not answer, if it is gone.
func (p *Placement) lost(ctx context.Context, node string, err error) {
	if errors.Is(err, cluster.ErrNoNode) || p.nodes.node.Gone(ctx, node) {
		p.gone = node
	}
}
