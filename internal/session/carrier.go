package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/clientkind"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file is for modern requests, of revision 2026-07-28 and later, which have no sessions: each is a call
// of a session that Holdfast begins itself, a carrier. See docs/decisions/0024-two-eras.md.

// An authorizationTaker is a backend whose servers may get the Authorization header of clients.
type authorizationTaker interface {
	// TakesAuthorization reports whether the server of r gets the header, and may refuse any request for it; and
	// whether a conversation keeps the rights of the header that it began with, whichever client sends a message.
	TakesAuthorization(r *http.Request) (takes, keeps bool)
}

// A refuser is an authorizationTaker that can tell for a single message.
type refuser interface {
	// MayRefuse reports whether the server may refuse a message of r for its Authorization.
	MayRefuse(r *http.Request, m *jsonrpc.Message) bool
}

// A perRequest is a backend whose server depends on the request. The values are compared.
type perRequest interface {
	// ServerFor returns the server that a request is for.
	ServerFor(r *http.Request) any
	// WithServer returns the request to open that server with.
	WithServer(r *http.Request, server any) *http.Request
}

// mostSpellings bounds how many spellings of clients' texts about themselves are kept, and longSpelling the length of one, in bytes.
const (
	mostSpellings = 1000
	longSpelling  = 2048
)

// mostCarriers bounds how many carriers of one tenant may be idle when it begins another: the one that was
// used longest ago ends. mostLooked bounds how many carriers are looked at for that.
const (
	mostCarriers = 16
	mostLooked   = 1000
)

// carriers are the carriers of a manager.
type carriers struct {
	mu        sync.Mutex
	open      map[carrierKey]*carrier
	spellings map[string]string // see kindOf
}

// A carrier is a session for modern requests, or is becoming one.
type carrier struct {
	key   carrierKey
	ready chan struct{} // closed when the session is open, or could not be opened
	s     *Session
	err   error
	// capabilities are those of the carrier's clients, as JSON; nil: they are not known.
	capabilities []byte
	kind         clientkind.Kind
	tenant       *tenant // that lists the carrier; nil: none does; guarded by carriers.mu
}

// Carrier returns the session in which a modern request is a call: an open one for requests like it, or a new one. says has the
// clientInfo and the clientCapabilities in the request's _meta. The session does not end before the caller calls [Session.Release].
// Before a new one is opened admit is called, unless it is nil. The errors are those of admit and of [Manager.New].
func (m *Manager) Carrier(r *http.Request, client *Client, revision, says string, admit func() error) (_ *Session, err error) {
	key := carrierKey{principal: client.principal, tenant: client.tenant(), revision: revision, client: m.carriers.kindOf(says), credential: client.apart()}
	key.server, err = m.serverFor(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	for {
		m.carriers.mu.Lock()
		c, there := m.carriers.open[key]
		if !there && admit != nil {
			m.carriers.mu.Unlock()
			if err := admit(); err != nil {
				return nil, err
			}
			admit = nil
			continue
		}
		if !there {
			info, capabilities := parseClient(says)
			c = &carrier{key: key, ready: make(chan struct{}), capabilities: capabilities, kind: clientkind.Of(info)}
			if m.carriers.open == nil {
				m.carriers.open = make(map[carrierKey]*carrier)
			}
			m.carriers.open[key] = c
		}
		m.carriers.mu.Unlock()
		if !there {
			m.beginCarrier(c, r, says)
			return c.s, c.err
		}
		select {
		case <-c.ready: // the usual case
		default:
			select {
			case <-c.ready:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		if c.err == nil && m.carriers.reserve(c) {
			return c.s, nil
		}
		m.carriers.forget(c)
		if c.err != nil && !errors.Is(c.err, context.Canceled) {
			return nil, c.err
		}
	}
}

// reserve keeps a carrier open for a request, unless the carrier has ended.
func (all *carriers) reserve(c *carrier) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open[c.key] != c || c.s.isClosed() || c.s.use.isLeft() {
		return false
	}
	c.s.use.touch()
	c.s.use.reserved.Add(1)
	return true
}

// Release lets the session end that [Manager.Carrier] has kept open.
func (s *Session) Release() { s.use.reserved.Add(-1) }

// retire forgets a carrier that will end because it is idle, so that no more requests get it. It returns false if a request has the carrier.
func (m *Manager) retire(s *Session) bool {
	if s.modern == "" {
		return true
	}
	m.carriers.mu.Lock()
	defer m.carriers.mu.Unlock()
	if s.use.reserved.Load() > 0 {
		return false
	}
	m.carriers.drop(s.carrier)
	return true
}

// serverFor asks the backend for the server of a request, if the server depends on the request; else it is nil.
func (m *Manager) serverFor(r *http.Request) (server any, err error) {
	b, ok := m.backend.(perRequest)
	if !ok {
		return nil, nil
	}
	defer panics.Catch(&err, m.logger, "getServer", "")
	return b.ServerFor(r), nil
}

// beginCarrier begins the session of a carrier. says is as in [Manager.Carrier].
func (m *Manager) beginCarrier(c *carrier, r *http.Request, says string) {
	defer close(c.ready)
	m.endIdleCarriers(c.key.tenant)
	// Other requests wait for the carrier, too, even if its first client leaves.
	ctx, stop := context.WithTimeout(context.WithoutCancel(r.Context()), openTimeout)
	defer stop()
	r = r.WithContext(ctx)
	if b, ok := m.backend.(perRequest); ok {
		r = b.WithServer(r, c.key.server)
	}
	c.s, c.err = m.begin(r, c.key.principal, kind{modern: c.key.revision, carrier: c}, nil, func(s *Session) error {
		return s.open(ctx, r)
	})
	if c.err != nil {
		m.carriers.forget(c)
		return
	}
	c.s.use.reserved.Add(1)
	info, _ := parseClient(says)
	m.Kinds.Spoke(m.logger, time.Now(), info, c.key.revision)
	m.carriers.mu.Lock()
	defer m.carriers.mu.Unlock()
	if m.carriers.open[c.key] == c { // else the carrier has ended
		if c.tenant = c.s.tenant; c.tenant.carriers == nil {
			c.tenant.carriers = make(map[*carrier]struct{})
		}
		c.tenant.carriers[c] = struct{}{}
	}
}

// forget forgets a carrier that has ended.
func (all *carriers) forget(c *carrier) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.drop(c)
}

// drop forgets a carrier, which may be nil: no more requests get it. all.mu is held.
func (all *carriers) drop(c *carrier) {
	if c == nil {
		return
	}
	if all.open[c.key] == c {
		delete(all.open, c.key)
	}
	if c.tenant != nil {
		delete(c.tenant.carriers, c)
	}
}

// endIdleCarriers ends the idle carrier of a tenant that was used longest ago, if many are idle.
func (m *Manager) endIdleCarriers(tenant string) {
	t := m.tenant(tenant)
	if t == nil {
		return
	}
	m.carriers.mu.Lock()
	var oldest *carrier
	idle, looked, now := 0, 0, m.clock()
	for c := range t.carriers {
		if looked++; looked > mostLooked {
			break
		}
		if c.s.use.isIdle() && !c.s.use.isHeld(now) {
			if idle++; oldest == nil || byLastSeen(c.s, oldest.s) < 0 {
				oldest = c
			}
		}
	}
	ends := idle >= min(mostCarriers, max(1, m.opts.shareOf(m.opts.MaxSessions)/2))
	if ends {
		m.carriers.drop(oldest)
	}
	m.carriers.mu.Unlock()
	if ends {
		m.end(oldest.s, errors.New("its client has many like it"))
	}
}

// NextID returns an id, as raw JSON, that no other request of the carrier has or had: its clients may use the same ids.
func (s *Session) NextID() []byte {
	return strconv.AppendUint(nil, (s.lease.Epoch-1)<<32+s.ids.Add(1), 10)
}

// modernParams adds the _meta of a modern request to the params of a request of our own. It describes the
// client, if client, the params of a request of the client, do that, and else Holdfast: our request may be
// the first from which a backend learns of its client.
func modernParams(params, client []byte, revision string) []byte {
	info, capabilities := jsonrpc.Field(client, "_meta", protocol.MetaClientInfo), jsonrpc.Field(client, "_meta", protocol.MetaClientCapabilities)
	if capabilities == nil {
		info, capabilities = []byte(protocol.OwnClientInfo), []byte(`{}`)
	}
	params, _ = jsonrpc.Set(params, jsonrpc.Quote(revision), "_meta", protocol.MetaProtocolVersion)
	if info != nil {
		params, _ = jsonrpc.Set(params, info, "_meta", protocol.MetaClientInfo)
	}
	params, _ = jsonrpc.Set(params, capabilities, "_meta", protocol.MetaClientCapabilities)
	return params
}

// Withdraw ends the unanswered requests of the call, because its client no longer wants responses, and tells
// the backend. It reports whether it has ended any.
func (c *Call) Withdraw(reason string) (done bool) {
	c.mu.Lock()
	ids := c.pending.ids()
	c.mu.Unlock()
	for _, id := range ids {
		done = c.s.withdraw(c, []byte(id), nil, reason, (*inflight).cancel) || done
	}
	return done
}

// Keyed reports whether the call was begun under a client's idempotency key, by which the client can find it again.
func (c *Call) Keyed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record != nil && c.record.key.IsClients()
}

// Asks reports whether a request of the backend, with the id under which clients know it, waits for its response.
func (s *Session) Asks(id []byte) bool {
	number, ok := s.parseAskedID(id)
	return ok && s.asked.has(number)
}

// OpenRequests returns the backend's requests in a stream, up to the entry seq, that wait for
// a response. The error is that of the store.
func (s *Session) OpenRequests(ctx context.Context, number, seq uint64) ([]jsonrpc.Message, error) {
	var open []jsonrpc.Message
	err := s.streams.Each(ctx, number, seq, func(e *stream.Entry) {
		if jsonrpc.Field(e.Data, "method") == nil || jsonrpc.Field(e.Data, "id") == nil {
			return
		}
		if m, err := jsonrpc.Parse(bytes.Clone(e.Data)); err == nil && s.Asks(m.ID) {
			open = append(open, m)
		}
	})
	if err != nil {
		return nil, err
	}
	return open, nil
}
