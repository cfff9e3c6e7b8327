package session

import (
	"net/http"
	"strings"
	"time"

	"holdfast/internal/clientkind"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A patience has the host of a session's client, which says how long the client waits, and when the session looks next at
// requests that take long. One timer is for all requests, so that a short request costs none. Guarded by Session.mu.
type patience struct {
	host  hosts.Host
	agent string          // the User-Agent of the request that began the session, if hosts are known
	kind  clientkind.Kind // of a carrier's clients
	known bool            // host and kind are set
	heard bool            // its client was shown our tools

	timer *time.Timer
	at    time.Duration // when the timer is due, by the manager's clock; 0: it is not set
}

// longestAgent bounds the part of a User-Agent that is kept, in bytes: its first product is enough.
const longestAgent = 128

// from takes in the request that begins the session, which no other goroutine knows yet.
func (p *patience) from(r *http.Request) {
	agent := r.Header.Get("User-Agent")
	p.agent = strings.Clone(agent[:min(len(agent), longestAgent)])
}

// know takes in the client's host, by the params of its initialize. s.mu is held, or no other goroutine knows the session.
func (p *patience) know(s *Session, params []byte) {
	if s.m.opts.Host == nil {
		return
	}
	p.host, p.known = s.m.opts.Host(jsonrpc.String(jsonrpc.Field(params, "clientInfo", "name")), p.agent), true
}

// hostOf returns the host that makes a request, as far as it is known. s.mu is held.
func (p *patience) hostOf(s *Session, m *jsonrpc.Message) hosts.Host {
	if s.m.opts.Host == nil {
		return hosts.Host{}
	}
	if !p.known {
		info := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientInfo)
		p.kind, p.known = clientkind.Of(info), true
		p.host = s.m.opts.Host(p.kind.Name, "")
	}
	h := p.host
	h.Heard = p.heard || s.taken || s.firstEpoch != 0 // it may have been shown our tools on another node, or in an earlier life of the session
	if !h.Heard && !h.Known && s.modern != "" {
		h.Heard = s.m.Kinds.HasHeard(p.kind)
	}
	return h
}

// hears notes that the client is shown our tools. s.mu is held.
func (p *patience) hears(s *Session) {
	p.heard = true
	if s.modern != "" && p.known {
		s.m.Kinds.Hears(p.kind)
	}
}

// wake makes the session look at its requests at a time, or before. s.mu is held.
func (p *patience) wake(s *Session, at time.Duration) {
	if p.at != 0 && p.at <= at {
		return
	}
	p.at = at
	d := max(at-s.m.clock(), 0)
	if p.timer == nil {
		p.timer = s.m.work.After(d, func() { tendLate(s) })
		return
	}
	p.timer.Reset(d)
}

// rest stops the timer: the session looks at no requests until the next wake. s.mu is held.
func (p *patience) rest() {
	if p.timer != nil {
		p.timer.Stop()
		p.at = 0
	}
}

// waits reports whether it matters how long requests take.
func (m *Manager) waits() bool { return m.added.IsOn() || m.opts.ProgressEvery != nil }
