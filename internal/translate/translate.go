// Package translate is a backend over a backend: it gives both eras of the protocol to one that speaks only
// legacy revisions, or only modern ones (docs/decisions/0024-two-eras.md). docs/eras.md has the translations.
//
// A conversation between two eras is translated by a legacyServer (a modern conversation
// with a legacy server) or a modernServer (the other way round). If the server's era is not
// known, a probe finds out in the first conversation. A modern conversation with a modern
// server that is a process is a relay: it translates nothing, but finds the requests that
// messages belong to. All other conversations are those of the wrapped backend itself.
//
// No lock is held while the server or Holdfast is called.
package translate

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// New returns a backend that speaks both eras through b. It returns b itself if b speaks
// them ([backend.EraSpeaker]). The logger may be nil.
func New(b backend.Backend, logger *slog.Logger) backend.Backend {
	if logger == nil {
		logger = slog.Default()
	}
	t := &translator{inner: b, log: logger, eras: backend.Legacy, patience: probeTimeout}
	if speaker, ok := b.(backend.EraSpeaker); ok {
		t.eras = speaker.Eras()
	}
	switch t.eras {
	case backend.Both:
		return b
	case backend.Legacy:
		t.speaks.legacy, t.speaks.modern = yes, no
	}
	return t
}

type translator struct {
	inner    backend.Backend
	log      *slog.Logger
	eras     backend.Eras  // of inner
	patience time.Duration // probeTimeout
	speaks   speech
	refusals refusals
	habits   habits
}

// An answer says whether a server speaks an era, as far as that is known.
type answer uint8

const (
	unsure answer = iota
	yes
	no
)

// speech says which eras the servers of a backend speak, as far as that is known.
type speech struct {
	mu             sync.Mutex
	legacy, modern answer
}

func (s *speech) get() (legacy, modern answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.legacy, s.modern
}

// learn notes the eras that a conversation has found out; unsure changes nothing.
func (s *speech) learn(legacy, modern answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if legacy != unsure {
		s.legacy = legacy
	}
	if modern != unsure {
		s.modern = modern
	}
}

// doubt takes back that the servers do not speak an era, because they do not seem to speak the
// other one either.
func (s *speech) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.modern == no {
		s.modern = unsure
	}
	if s.legacy == no {
		s.legacy = unsure
	}
}

// Eras implements [backend.EraSpeaker].
func (t *translator) Eras() backend.Eras { return backend.Both }

// Processes implements [backend.ProcessStarter].
func (t *translator) Processes() bool {
	p, ok := t.inner.(backend.ProcessStarter)
	return ok && p.Processes()
}

// TakesAuthorization reports whether servers get the Authorization header of a request, and
// whether a conversation keeps the rights that it began with (package session).
func (t *translator) TakesAuthorization(r *http.Request) (takes, keeps bool) {
	b, ok := t.inner.(interface {
		TakesAuthorization(r *http.Request) (takes, keeps bool)
	})
	if !ok {
		return false, false
	}
	return b.TakesAuthorization(r)
}

// Open implements [backend.Backend].
func (t *translator) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	legacy, modern := t.speaks.get()
	log := t.log.With("session", start.Session)
	isModern := protocol.Modern(start.Revision)
	switch {
	case isModern && modern == yes && t.Processes():
		r := newRelay(sink)
		conn, err := t.inner.Open(ctx, start, r)
		if err != nil {
			return nil, err
		}
		r.conn = conn
		return r, nil
	case isModern && modern == yes, !isModern && legacy == yes:
		return t.openServer(ctx, start, sink)
	case isModern && modern == no:
		start.Revision = ""
		c := newLegacyServer(sink, start.Server, log)
		c.refusals = &t.refusals
		c.apart = !t.Processes()
		if t.eras == backend.Unknown {
			c.instead = func(jsonrpc.Message, []backend.Inbound) bool { t.speaks.doubt(); return false }
		}
		return t.open(ctx, start, c, &c.out)
	case isModern:
		start.Revision = "" // the server may get initialize yet
		p := newModernProbe(t, start, sink)
		return t.open(ctx, start, p, &p.out)
	case legacy == no:
		start.Revision = protocol.V20260728
		c := newModernServer(sink, log)
		c.doubt = t.speaks.doubt
		return t.open(ctx, start, c, &c.out)
	}
	p := newLegacyProbe(t, start, sink)
	return t.open(ctx, start, p, &p.out)
}

// openServer opens the wrapped backend.
func (t *translator) openServer(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	switch {
	case start.Revision != "" || t.passes(sink):
		return t.inner.Open(ctx, start, sink)
	case rpc.IsShared(sink) && !separates(t.inner):
		return t.openLanes(ctx, start, sink)
	}
	return openTasks(ctx, t.inner, start, sink)
}

// separates reports whether a backend itself finds the caller of each question of its servers, if several callers
// share a conversation.
func separates(b backend.Backend) bool {
	s, ok := b.(interface{ SeparatesCallers() bool })
	return ok && s.SeparatesCallers()
}

// A passer is a backend with legacy clients that meet the needs of its legacy servers
// themselves: their messages go through untouched, also calls of tools that need a task.
type passer interface {
	PassesLegacy() bool
}

// passes reports whether the conversation of a sink is one of a passer with a legacy client.
func (t *translator) passes(sink backend.Sink) bool {
	p, ok := t.inner.(passer)
	if !ok || !p.PassesLegacy() {
		return false
	}
	switch sink.(type) {
	case *legacyServer, *modernProbe: // the client is a modern one
		return false
	}
	return true
}

// A conversation is the server's sink and Holdfast's conn.
type conversation interface {
	backend.Sink
	backend.Conn
}

// open opens the wrapped backend for a conversation with this outbox.
func (t *translator) open(ctx context.Context, start backend.Start, c conversation, out *outbox) (backend.Conn, error) {
	conn, err := t.openServer(ctx, start, c)
	if err != nil {
		return nil, err
	}
	out.open(conn)
	return c, nil
}
