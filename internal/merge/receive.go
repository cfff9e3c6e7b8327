package merge

import (
	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// linkSink takes what an opening of a server says.
type linkSink struct {
	l *link
	n int
}

// Account implements [budget.Accounted].
func (s *linkSink) Account() budget.Account { return budget.Of(s.l.c.sink) }

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
	switch m.Kind {
	case jsonrpc.Response:
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
		if m.Method == protocol.MethodCancelled {
			m = l.c.cancelAsked(l, m)
		} else if call == nil && m.Method == protocol.MethodLog {
			call = l.onlyCall()
		}
	}
	if unrelated {
		l.c.sink.EmitUnrelated(m)
	} else {
		l.c.sink.Emit(call, m)
	}
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
	c.mu.Unlock()
	m.Raw = m.WithID(id)
	m.ID = id
	return m
}

// cancelAsked returns the cancellation of a server's request with the id that the client knows.
func (c *conn) cancelAsked(l *link, m jsonrpc.Message) jsonrpc.Message {
	id := string(jsonrpc.Key(jsonrpc.Field(m.Params, "requestId")))
	c.mu.Lock()
	defer c.mu.Unlock()
	for known, a := range c.asked {
		if a.l == l && string(jsonrpc.Key(a.id)) == id {
			delete(c.asked, known)
			m.Params, _ = jsonrpc.Set(m.Params, []byte(known), "requestId")
			m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
			break
		}
	}
	return m
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
