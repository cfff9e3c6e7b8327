package merge

import (
	"encoding/json"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// linkSink takes the messages of one opening of a server.
type linkSink struct {
	l *link
	n int
}

// Account implements [budget.Accounted].
func (s *linkSink) Account() budget.Account { return budget.Of(s.l.c.sink) }

// Shared reports whether several callers share the conversation; see [rpc.IsShared].
func (s *linkSink) Shared() bool { return rpc.IsShared(s.l.c.sink) }

// TakePlace asks the next sink; see [rpc.TakePlace].
func (s *linkSink) TakePlace() (free func(), ok bool) { return rpc.TakePlace(s.l.c.sink) }

// Emit implements [backend.Sink].
func (s *linkSink) Emit(call backend.Call, m jsonrpc.Message) { s.l.receive(s.n, call, m, false) }

// EmitUnrelated implements [backend.Sink].
func (s *linkSink) EmitUnrelated(m jsonrpc.Message) { s.l.receive(s.n, nil, m, true) }

// Closed implements [backend.Sink].
func (s *linkSink) Closed(why error, _ bool) { s.l.ended(s.n, why) }

// receive takes one message of the server.
func (l *link) receive(n int, call backend.Call, m jsonrpc.Message, unrelated bool) {
	l.mu.Lock()
	current := l.opening == n
	l.mu.Unlock()
	if !current {
		return
	}
	if _, ours := call.(*tokenCall); ours {
		call = nil
	}
	switch m.Kind {
	case jsonrpc.Response:
		l.c.noteVisits(l, m.Error)
		p := l.take(m.ID)
		switch {
		case p == nil: // it was cancelled
		case p.answer != nil:
			p.answer <- m
		default:
			l.c.sink.Emit(p.call, m)
		}
		return
	case jsonrpc.Request:
		if call == nil {
			call = l.onlyCall()
		}
		m = l.c.ask(l, m)
	case jsonrpc.Notification:
		var ok bool
		if m, ok = l.about(m); !ok {
			l.c.log.Debug("notification of a merged server dropped: it is about nothing of its own", "server", l.name, "method", m.Method)
			return
		}
		if call == nil && m.Method == protocol.MethodLog {
			call = l.onlyCall()
		}
	}
	if unrelated {
		l.c.sink.EmitUnrelated(m)
	} else {
		l.c.sink.Emit(call, m)
	}
}

// about returns a notification of the server as the client gets it, and false if it is about something of another
// server: a progress token, a request to the client, a resource or a visit of a URL. Merged servers have no tasks.
func (l *link) about(m jsonrpc.Message) (jsonrpc.Message, bool) {
	if protocol.CheckClear(&m) != nil { // the client could read another id or token in it
		return m, false
	}
	switch m.Method {
	case protocol.MethodCancelled:
		return l.c.cancelAsked(l, m)
	case protocol.MethodProgress:
		return m, l.hasToken(jsonrpc.Field(m.Params, "progressToken"))
	case protocol.MethodTaskStatus, protocol.MethodLegacyTaskStatus:
		return m, false
	case protocol.MethodResourceUpdated:
		l.c.mu.Lock()
		owner := l.c.ownerOf(jsonrpc.String(jsonrpc.Field(m.Params, "uri")))
		l.c.mu.Unlock()
		return m, owner == nil || owner == l
	case "notifications/elicitation/complete":
		l.c.mu.Lock()
		defer l.c.mu.Unlock()
		return m, l.c.visitOf(jsonrpc.String(jsonrpc.Field(m.Params, "elicitationId"))) == l
	}
	return m, true
}

// codeURLRequired is the error code of a server that wants its client to visit URLs (2025-11-25, Elicitation).
const codeURLRequired = "-32042"

// noteVisits notes the URLs that an error of a server, which may be nil, wants visited.
func (c *conn) noteVisits(l *link, failure []byte) {
	if failure == nil || string(jsonrpc.Field(failure, "code")) != codeURLRequired {
		return
	}
	var all []json.RawMessage
	_ = json.Unmarshal(jsonrpc.Field(failure, "data", "elicitations"), &all) // else there are none
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		c.noteVisit(l, one)
	}
}

// mostVisits bounds how many URLs are remembered with their servers, in each of two generations: when the younger one is full, the older
// one is forgotten. A client may visit a URL long after it was asked to.
const mostVisits = 1000

// visitOf returns the link of the server that wants a URL visited, by the elicitation's id, or nil. c.mu is held.
func (c *conn) visitOf(id string) *link {
	if l := c.visits[id]; l != nil {
		return l
	}
	return c.oldVisits[id]
}

// noteVisit notes an elicitation that may have an id. c.mu is held.
func (c *conn) noteVisit(l *link, params []byte) {
	id := jsonrpc.String(jsonrpc.Field(params, "elicitationId"))
	if id == "" || len(id) > jsonrpc.MaxName || c.visitOf(id) != nil { // the first server that names it has it
		return
	}
	if c.visits == nil || len(c.visits) >= mostVisits {
		c.visits, c.oldVisits = make(map[string]*link), c.visits
	}
	c.visits[id] = l
}

// hasToken reports whether a request in flight at the server has a progress token.
func (l *link) hasToken(token []byte) bool {
	key := string(jsonrpc.Key(token))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		if p.token != "" && p.token == key {
			return true
		}
	}
	return false
}

// ask notes a request of a server to the client, which gets it under an id of ours: servers
// may use the same ones.
func (c *conn) ask(l *link, m jsonrpc.Message) jsonrpc.Message {
	id := c.nextID()
	c.mu.Lock()
	if c.asked == nil {
		c.asked = make(map[string]asked)
	}
	c.asked[string(jsonrpc.Key(id))] = asked{l, m.ID}
	if m.Method == protocol.MethodElicit {
		c.noteVisit(l, m.Params)
	}
	c.mu.Unlock()
	m.Raw = m.WithID(id)
	m.ID = id
	return m
}

// cancelAsked returns the cancellation of a server's request with the id that the client knows, and false if
// the client knows no such request.
func (c *conn) cancelAsked(l *link, m jsonrpc.Message) (jsonrpc.Message, bool) {
	id := string(jsonrpc.Key(jsonrpc.Field(m.Params, "requestId")))
	c.mu.Lock()
	defer c.mu.Unlock()
	for known, a := range c.asked {
		if a.l == l && string(jsonrpc.Key(a.id)) == id {
			delete(c.asked, known)
			m.Params, _ = jsonrpc.Set(m.Params, []byte(known), "requestId")
			m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
			return m, true
		}
	}
	return m, false
}

// dropAsked forgets the requests of a server that has ended.
func (c *conn) dropAsked(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.asked {
		if a.l == l {
			delete(c.asked, id)
		}
	}
}

// A tokenCall is the call of a request of our own to a server that gets the client's token. It notes that the server
// refuses the token.
type tokenCall struct {
	mu      sync.Mutex
	refused error
}

// Disconnect implements [backend.Call]: no client reads it.
func (*tokenCall) Disconnect(time.Duration) {}

// Refused notes the refusal. It is called before the response.
func (t *tokenCall) Refused(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = err
}

// refusal returns how the server has refused the request, or nil.
func (t *tokenCall) refusal() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused
}
