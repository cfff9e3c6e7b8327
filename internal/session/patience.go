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
	kind  clientkind.Kind // of a carrier's clients
	known bool            // host and kind are set
	heard bool            // its client was shown our tools

	timer *time.Timer
	at    time.Duration // when the timer is due, by the manager's clock; 0: it is not set
}

// longestAgent bounds the part of a User-Agent that is kept, in bytes: its first product is enough.
const longestAgent = 128

// agentOf returns the part that is kept of the User-Agent of a request, or "" if no hosts are known.
func (o *Options) agentOf(r *http.Request) string {
	if o.Host == nil {
		return ""
	}
	agent := r.Header.Get("User-Agent")
	return strings.Clone(agent[:min(len(agent), longestAgent)])
}

// know takes in the client's host, by the params of its initialize. s.mu is held, or no other goroutine knows the session.
func (p *patience) know(s *Session, params []byte) {
	if s.m.opts.Host == nil {
		return
	}
	p.host, p.known = s.m.opts.Host(nameIn(params), s.agent), true
}

// nameIn returns the name of the client in the params of its initialize, or "".
func nameIn(params []byte) string { return jsonrpc.String(jsonrpc.Field(params, "clientInfo", "name")) }

// knowsByAgent reports whether the host of the session's client is known by its User-Agent alone. s.mu is held.
func knowsByAgent(s *Session) bool {
	if s.agent == "" || s.m.opts.Host == nil {
		return false
	}
	name := nameIn(jsonrpc.Field(s.backend.initialize, "params"))
	return s.m.opts.Host(name, s.agent) != s.m.opts.Host(name, "")
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
