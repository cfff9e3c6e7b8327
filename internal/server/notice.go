package server

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"holdfast/stream"
)

// A notice is what one node tells another without being asked. It may be lost.
type notice struct {
	// Taken is a session that the sender has taken over.
	Taken stream.SessionKey `json:"taken,omitempty"`

	// Left is a session whose client, at an address, left the sender with bytes
	// unread.
	Left      stream.SessionKey `json:"left,omitempty"`
	Principal []byte            `json:"principal,omitempty"`
	From      string            `json:"from,omitempty"`

	// Request is the name of a request that the sender has forwarded, and whose client
	// has left. A light call would be answered to nobody.
	Request string `json:"request,omitempty"`
}

// tell tells a node something, if it is there.
func (p *peers) tell(node string, n *notice) {
	text, err := json.Marshal(n)
	if err == nil {
		err = p.node.Notify(node, text)
	}
	if err != nil {
		p.h.logger.Debug("node not told", "node", node, "error", err)
	}
}

// told takes in what another node tells.
func (p *peers) told(text []byte) {
	var n notice
	if err := json.Unmarshal(text, &n); err != nil {
		p.h.logger.Warn("another node is not understood", "error", err)
		return
	}
	if n.Taken != "" {
		p.h.sessions.VerifySession(n.Taken)
	}
	if n.Request != "" {
		p.abandon(n.Request)
	}
	if n.Left == "" {
		return
	}
	p.depart(n.From)
	if s, err := p.h.sessions.FindName(string(n.Left), string(n.Principal)); err == nil {
		s.Disconnected(n.From, time.Time{})
	}
}

// abandon has the light call of a forwarded request wait no longer.
func (p *peers) abandon(request string) {
	p.depart(request) // it may come only now
	p.mu.Lock()
	leave := p.waiting[request]
	p.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// attend returns a context that ends when the client of a forwarded request leaves the
// node that it is connected to, or with ctx, or when done is called.
func (p *peers) attend(ctx context.Context, request string) (_ context.Context, done func()) {
	began := time.Now()
	ctx, leave := context.WithCancel(ctx)
	p.mu.Lock()
	p.waiting[request] = leave
	p.mu.Unlock()
	if p.hasLeft(request, began.Add(-departedFor)) {
		leave()
	}
	return ctx, func() {
		leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, request)
	}
}

// departedFor is how long it is remembered that a client left another node, and
// mostDeparted how many are before old ones are looked for.
const (
	departedFor  = 10 * time.Second
	mostDeparted = 1 << 10
)

// depart notes that a client, or that of a request, left: what it was told may be on its way to the other
// node still.
func (p *peers) depart(from string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.departed) >= mostDeparted {
		maps.DeleteFunc(p.departed, func(_ string, at time.Time) bool { return time.Since(at) > departedFor })
	}
	p.departed[from] = time.Now()
}

// hasLeft says whether a client is known to have left since a time.
func (p *peers) hasLeft(from string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.departed[from]
	return ok && !at.Before(since)
}

// A parting is what a session's node is told when the client leaves that was told
// of the session here.
type parting struct {
	peers *peers
	node  string
	left  notice
}

func (p *parting) tell() { p.peers.tell(p.node, &p.left) }

func (p *placement) parting() *parting {
	return &parting{p.h.peers, p.node, notice{Left: p.key, Principal: p.visit.Principal, From: p.x.r.RemoteAddr}}
}

// finished notes that all of a stream was written to the client, which does not say that
// it has arrived.
func (p *placement) finished() {
	below := p.h.watched.at(p.x.r)
	switch {
	case below == nil:
	case below.gone():
		p.parting().tell()
	default:
		below.passed(p.parting())
	}
}
