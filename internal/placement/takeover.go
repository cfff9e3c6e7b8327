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

// abandoned reports whether a session has no owner, or its owner is lost or is this node.
func (n *Nodes) abandoned(ctx context.Context, at *session.Remote) bool {
	node := n.node
	if at.Owner == "" || at.Owner == node.Name() {
		return true
	}
	c, err := node.Dial(ctx, at.Owner) // a node that was heard of just now may be lost nevertheless
	if err == nil {
		c.Close()
		return false
	}
	return errors.Is(err, cluster.ErrNoNode) || node.Gone(ctx, at.Owner)
}

// takeOver takes a session over, and tells the node that had it, which may be
// alive after all.
func (n *Nodes) takeOver(ctx context.Context, at *session.Remote) (*session.Session, error) {
	s, err := n.sessions.TakeOver(ctx, at)
	if err == nil && at.Owner != "" && at.Owner != n.node.Name() {
		n.notify(at.Owner, &notice{Taken: at.Key})
	}
	return s, err
}

// A target is the session that serves an exchange.
type target struct {
	key stream.SessionKey // "": a new one
	at  *session.Remote   // where the session was just now, or nil
	// redirected says that the exchange came in another session, or in none: it is
	// forwarded with this session's id.
	redirected bool
}

// hostForwarded handles an exchange that another node has forwarded, but that this node has no
// session for. If the visit says Take, it returns the session, which it takes over if need be. Else
// it answers with 421, and with the other session's name if the exchange turned out to concern one,
// so that the sender locates the session again. The exchange is not forwarded a second time.
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

// locate finds the session of the exchange: on this node, or where it is. A session that no node has can be revived, if the
// exchange has its id. The errors are those of [session.Manager.Locate] and [session.Manager.Revivable].
func (p *Placement) locate(ctx context.Context, principal caller.Principal) (*session.Session, *session.Remote, error) {
	s, at, err := p.nodes.sessions.Locate(ctx, p.key, principal)
	if errors.Is(err, session.ErrNotFound) && p.req.ID != "" && p.key == p.home.key {
		at, err = p.nodes.sessions.Revivable(ctx, p.req.ID, principal, p.req.HTTP, p.req.Revision)
	}
	return s, at, err
}

// step makes one try. It returns the session if that is on this node, or has come
// here. If it returns neither a session nor an error, another node has answered.
func (p *Placement) step(ctx context.Context) (*session.Session, error) {
	n := p.nodes
	if p.key == "" {
		return nil, p.abroad(ctx, nil)
	}
	at := p.at
	p.at = nil
	if at == nil && p.held != nil && p.held.Owner == p.gone {
		at = p.held // as it was when its node was lost: if another node is faster, taking it over conflicts
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

// abroad forwards the exchange to the least busy other node, which begins a session (at is
// nil) or takes one over, as this node takes on no new sessions.
func (p *Placement) abroad(ctx context.Context, at *session.Remote) error {
	node := p.nodes.node.Choose()
	if node == "" {
		return p.nodes.nobody()
	}
	return p.forward(ctx, node, at, true)
}

// lost checks whether a node that does not answer is lost, and notes that in p.gone.
func (p *Placement) lost(ctx context.Context, node string, err error) {
	if errors.Is(err, cluster.ErrNoNode) || p.nodes.node.Gone(ctx, node) {
		p.gone = node
	}
}
