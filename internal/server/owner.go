package server

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/cluster"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// abandoned reports whether a session has no owner, or one that is gone.
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
		h.peers.notify(at.Owner, &notice{Taken: at.Key})
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
func (p *placement) hostForwarded() (*session.Session, error) {
	h, v, r := p.h, p.x.from, p.x.r
	if v.Take && p.key != "" && !h.isDoor() {
		s, at, err := h.sessions.Locate(r.Context(), p.key, string(v.Principal))
		if err == nil && s == nil && h.abandoned(r.Context(), at) {
			s, err = h.takeOver(r.Context(), at)
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
	h.reject(p.w, http.StatusMisdirectedRequest, errf(jsonrpc.CodeServer, "the session is not on this node"))
	return nil, nil
}

// step makes one try. It returns the session if it is here; else, without an error, the
// exchange was answered by another node.
func (p *placement) step(ctx context.Context) (*session.Session, error) {
	h := p.h
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
		at = h.peers.locations.find(p.key, p.x.principal)
	}
	if at == nil {
		s, found, err := h.sessions.Locate(ctx, p.key, p.x.principal)
		if errors.Is(err, stream.ErrConflict) {
			return nil, errAgain
		}
		if s != nil || err != nil {
			return s, err
		}
		at = found
		h.peers.locations.keep(at)
	}
	if at.Owner != "" && at.Owner != p.gone && at.Owner != h.peers.node.Name() {
		p.held = at
		err := p.forward(ctx, at.Owner, at, false)
		if err != nil {
			h.peers.locations.forget(at)
		}
		return nil, err
	}
	h.peers.locations.forget(at)
	if h.takesNothing() {
		return nil, p.abroad(ctx, at)
	}
	s, err := h.takeOver(ctx, at)
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
func (p *placement) abroad(ctx context.Context, at *session.Remote) error {
	node := p.h.peers.node.Choose()
	if node == "" {
		return p.h.nobody()
	}
	return p.forward(ctx, node, at, true)
}

// lost notes that a node does not answer, if it is gone.
func (p *placement) lost(ctx context.Context, node string, err error) {
	if errors.Is(err, cluster.ErrNoNode) || p.h.peers.node.Gone(ctx, node) {
		p.gone = node
	}
}
