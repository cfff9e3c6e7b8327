package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for modern requests, of revision 2026-07-28 and later, which have no
// sessions: each is a call of a session that Holdfast begins itself, a carrier. See
// docs/decisions/0024-two-eras.md.

// A carrierKey says which requests share a carrier: those of one principal and tenant and
// of one kind of client, for one server.
type carrierKey struct {
	principal        caller.Principal
	tenant, revision string
	client           string            // see carriers.kindOf
	server           any               // see [perRequest]
	credential       caller.Credential // see Client.apart
}

// An authorizationTaker is a backend whose servers may get the Authorization header of clients.
type authorizationTaker interface {
	// TakesAuthorization reports whether that of a request gets it, and may refuse any request for
	// it; and whether the conversation keeps the rights of the one that it began with, whoever
	// sends a message.
	TakesAuthorization(r *http.Request) (takes, keeps bool)
}

// A refuser is an authorizationTaker that knows more of single messages.
type refuser interface {
	// MayRefuse reports whether a message of a request may be refused for its Authorization.
	MayRefuse(r *http.Request, m *jsonrpc.Message) bool
}

// A perRequest is a backend whose server depends on the request. The values are compared.
type perRequest interface {
	// ServerFor returns which server a request is for.
	ServerFor(r *http.Request) any
	// WithServer returns the request to open that server with.
	WithServer(r *http.Request, server any) *http.Request
}

// shortClient is how long, in bytes, what a client says of itself may be to be kept as it is.
const shortClient = 256

// mostSpellings bounds how many ways in which clients spell what they say of themselves are kept, and
// longSpelling how long, in bytes, one of them is.
const (
	mostSpellings = 1000
	longSpelling  = 2048
)

// kindOf returns what tells kinds of clients apart, of what a request says of its client. If that is not
// longer than longSpelling, it is the same for all spellings of equal values, and whatever extensions of Holdfast are declared:
// our client declares them for calls alone.
func (all *carriers) kindOf(client string) string {
	all.mu.Lock()
	kind, known := all.spellings[client]
	all.mu.Unlock()
	if known {
		return kind
	}
	if len(client) > longSpelling { // to decode it takes many times its memory
		return keyOfClient(client)
	}
	kind = keyOfClient(canonicalClient(client))
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.spellings == nil || len(all.spellings) >= mostSpellings {
		all.spellings = make(map[string]string)
	}
	all.spellings[client] = kind
	return kind
}

// canonicalClient returns one spelling of clientInfo and clientCapabilities, which are JSON with a
// comma in between; the first may be absent.
func canonicalClient(client string) string {
	if strings.HasPrefix(client, ",") {
		client = "null" + client
	}
	var both []any
	d := json.NewDecoder(strings.NewReader("[" + client + "]"))
	d.UseNumber()
	if d.Decode(&both) != nil || len(both) != 2 {
		return client
	}
	if capabilities, ok := both[1].(map[string]any); ok {
		if extensions, ok := capabilities["extensions"].(map[string]any); ok {
			maps.DeleteFunc(extensions, func(name string, _ any) bool { return strings.HasPrefix(name, protocol.OwnExtensions) })
			if len(extensions) == 0 {
				delete(capabilities, "extensions")
			}
		}
	}
	text, err := json.Marshal(both)
	if err != nil {
		return client
	}
	return string(text)
}

// keyOfClient returns what tells kinds of clients apart: what they say of themselves, or its
// digest, if that is long. That is JSON, and no digest is.
func keyOfClient(client string) string {
	if len(client) <= shortClient {
		return client
	}
	sum := sha256.Sum256([]byte(client))
	return "\x00" + string(sum[:])
}

// mostCarriers bounds how many carriers of one tenant have nothing to do: when there is
// another, the one that was used longest ago ends. mostLooked bounds how many are looked at for
// that.
const (
	mostCarriers = 16
	mostLooked   = 1000
)

// carriers are those of a manager.
type carriers struct {
	mu        sync.Mutex
	open      map[carrierKey]*carrier
	spellings map[string]string // see kindOf
}

// A carrier is a session for modern requests, or is becoming one.
type carrier struct {
	key   carrierKey
	ready chan struct{} // closed when it is one, or could not be
	s     *Session
	err   error
	// capabilities are those of its clients, as JSON; nil: they are not known.
	capabilities []byte
	kind         clientkind.Kind
	tenant       *tenant // among whose carriers it is; nil: among none; guarded by carriers.mu
}

// Carrier returns the session that a modern request is a call of: one that is there for
// requests like it, or a new one. says is what the request's _meta says of its client.
// It does not end before the caller has called [Session.Release]. Before a new one is opened, admit is asked, unless it is nil. The
// errors are its own and those of [Manager.New].
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
		case <-c.ready: // as a rule
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

// reserve has a carrier stay for a request, if it has not ended.
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

// Release ends what [Manager.Carrier] has begun.
func (s *Session) Release() { s.use.reserved.Add(-1) }

// retire forgets a carrier that is to end because it is idle, so that no request gets it any
// more. It reports false if a request has it.
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

// serverFor asks the backend which server a request is for, if that depends on the request.
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
	// Others wait for it too, if its first client leaves.
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
	if m.carriers.open[c.key] == c { // else it has ended
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

// drop forgets a carrier, which may be nil: no request gets it any more. all.mu is held.
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

// endIdleCarriers ends the carrier of a tenant that was used longest ago, where many have nothing
// to do.
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

// NextID returns an id, as raw JSON, that no other request of the carrier has or had: its
// clients may use the same ones.
func (s *Session) NextID() []byte {
	return strconv.AppendUint(nil, (s.lease.Epoch-1)<<32+s.ids.Add(1), 10)
}

// modernParams returns the params of a request of our own to a backend that expects a
// modern one. client are those of the request that it is for, or nil: it is the first that some
// backends hear of their client.
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

// Withdraw ends the requests of the call that are unanswered, because its client wants no
// response any more. The backend is told. It reports whether there was one.
func (c *Call) Withdraw(reason string) (done bool) {
	c.mu.Lock()
	ids := c.pending.ids()
	c.mu.Unlock()
	for _, id := range ids {
		done = c.s.withdraw(c, []byte(id), nil, reason, (*inflight).cancel) || done
	}
	return done
}

// Keyed reports whether the call was begun under a client's idempotency key, by which that can
// find it again.
func (c *Call) Keyed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record != nil && c.record.key.IsClients()
}

// Asks reports whether a request of the backend, by the id that clients know it by, waits
// for its response.
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
