package server

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"holdfast/internal/limit"
	"holdfast/stream"
)

// A notice is a message from one node to another that has no answer. It may be lost.
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

	// Node has counted Limits, for which there are limits on all nodes.
	Node   string         `json:"node,omitempty"`
	Limits []limit.Number `json:"limits,omitempty"`
}

// notify sends a notice to a node, if that is there.
func (p *peers) notify(node string, n *notice) {
	text, err := json.Marshal(n)
	if err == nil {
		err = p.node.Notify(node, text)
	}
	if err != nil {
		p.h.logger.Debug("notice not sent", "node", node, "error", err)
	}
}

// noticed handles the notice of another node.
func (p *peers) noticed(text []byte) {
	var n notice
	if err := json.Unmarshal(text, &n); err != nil {
		p.h.logger.Warn("notice of another node not understood", "error", err)
		return
	}
	if n.Taken != "" {
		p.h.sessions.VerifySession(n.Taken)
	}
	if n.Request != "" {
		p.requestLeft(n.Request)
	}
	if n.Limits != nil && p.h.opts.Limits != nil {
		p.h.opts.Limits.Hear(n.Node, n.Limits)
	}
	if n.Left == "" {
		return
	}
	p.noteLeft(n.From)
	if s, err := p.h.sessions.FindName(string(n.Left), string(n.Principal)); err == nil {
		s.Disconnected(n.From, time.Time{})
	}
}

// requestLeft notes that the client of a forwarded request has left: nobody waits for the answer
// of its light call.
func (p *peers) requestLeft(request string) {
	p.noteLeft(request) // the request may come after this
	p.mu.Lock()
	leave := p.waiting[request]
	p.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// watchRequest returns a context that ends when the client of a forwarded request leaves the
// node that it is connected to, or with ctx, or when done is called.
func (p *peers) watchRequest(ctx context.Context, request string) (_ context.Context, done func()) {
	began := time.Now()
	ctx, leave := context.WithCancel(ctx)
	p.mu.Lock()
	p.waiting[request] = leave
	p.mu.Unlock()
	if p.hasLeft(request, began.Add(-leftFor)) {
		leave()
	}
	return ctx, func() {
		leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, request)
	}
}

// leftFor is how long a node remembers that a client left another node. Above
// mostRemembered clients it removes those that left before.
const (
	leftFor        = 10 * time.Second
	mostRemembered = 1 << 10
)

// noteLeft notes that a client, or the client of a request, left another node. What this node
// has sent it may be on its way to that node still.
func (p *peers) noteLeft(from string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.left) >= mostRemembered {
		maps.DeleteFunc(p.left, func(_ string, at time.Time) bool { return time.Since(at) > leftFor })
	}
	p.left[from] = time.Now()
}

// hasLeft reports whether a client is known to have left since a time.
func (p *peers) hasLeft(from string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.left[from]
	return ok && !at.Before(since)
}

// A leftNotice is sent to the node that has a session, when the session's client leaves this
// node.
type leftNotice struct {
	peers *peers
	node  string
	left  notice
}

func (p *leftNotice) send() { p.peers.notify(p.node, &p.left) }

// Disconnected implements [watch.Teller].
func (p *leftNotice) Disconnected(string, time.Time) { p.send() }

func (p *placement) leftNotice() *leftNotice {
	return &leftNotice{p.h.peers, p.node, notice{Left: p.key, Principal: p.visit.Principal, From: p.x.r.RemoteAddr}}
}

// finished notes that all of a stream was written to the client, which does not say that
// it has arrived.
func (p *placement) finished() {
	below := p.h.watched.At(p.x.r)
	switch {
	case below == nil:
	case below.Gone():
		p.leftNotice().send()
	default:
		below.Wrote(p.leftNotice())
	}
}
