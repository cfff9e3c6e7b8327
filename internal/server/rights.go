package server

import (
	"context"
	"net/http"

	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
)

// Rights are those of the client of a connection that stays open, which may change meanwhile. Its methods may be called
// concurrently.
type Rights interface {
	// Check returns why the client may not go on, as a new request would be refused: with status 401 nothing proves any more
	// who it is, and with 403 it lacks a scope. With status 0 it may go on. Check does not wait.
	Check() (status int, challenge, text string)
	// Watch calls changed whenever Check may return something else, until stop is called, and once before it returns.
	// changed must not call stop.
	Watch(changed func()) (stop func())
}

type rightsKey struct{}

// WithRights returns a context for a request whose client has rights that may change while its connection is open. Only
// Options.Authenticate may put it before the handler.
func WithRights(ctx context.Context, rights Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, rights)
}

// rights returns the rights of a request's client; nil: they do not change. The node that a client is connected to watches
// them, and not those that it forwards requests to.
func rightsOf(ctx context.Context) Rights {
	rights, _ := ctx.Value(rightsKey{}).(Rights)
	return rights
}

// denial returns why the client of a connection may not go on, or nil. rights may be nil.
func denial(rights Rights) *protocol.Unauthorized {
	if rights == nil {
		return nil
	}
	status, challenge, text := rights.Check()
	if status == 0 {
		return nil
	}
	return &protocol.Unauthorized{Status: status, Challenge: []string{challenge}, Text: text}
}

// watchRights has the connection look at the rights of its client when they may have changed. The function that it returns ends
// that.
func (c *events) watchRights(ctx context.Context) (stop func()) {
	if c.via != direct {
		return func() {}
	}
	if c.rights = rightsOf(ctx); c.rights == nil {
		return func() {}
	}
	ready := c.ready
	return c.rights.Watch(func() { reading.Wake(ready) })
}

// isDenied reports whether the client may not go on reading. What it has asked for by a POST goes on to its end, because that was
// allowed when it asked, unless it can come back for the rest.
func (c *events) isDenied() bool {
	return c.rights != nil && denial(c.rights) != nil && (c.mayLeave() || goesWithRights(c.door))
}

// goesWithRights reports whether what a client reads through a door is not the answer to a request that it was allowed to make.
func goesWithRights(door observe.Door) bool {
	switch door {
	case observe.DoorListen, observe.DoorReplay, observe.DoorURL, observe.DoorPair:
		return true
	}
	return false
}

// deny ends the connection of a client that may not go on.
func (c *events) deny() error {
	if err := c.leave(c.h.opts.Retry); err != nil {
		return err
	}
	return errComeBack
}

// watchRights is that of an exchange that another node serves, which has begun a stream with a header: the request ends, and
// with it what that node says.
func (p *placed) watchRights(head http.Header) {
	x := p.x
	if p.deny == nil || p.unwatch != nil {
		return
	}
	rights, returns := rightsOf(x.r.Context()), head[placement.HeaderReturns] != nil || goesWithRights(p.door)
	if rights == nil || !returns && x.purpose != forSocket && (x.purpose != forModern || !x.isListen()) {
		return
	}
	p.unwatch = rights.Watch(func() {
		why := denial(rights)
		if why == nil && x.purpose == forSocket && p.h.callers.bySingleTools(x.r.Context()) {
			why = errNoSocket // what comes on it is not looked at here
		}
		if why != nil {
			p.deny(&placement.NotAllowed{Why: why.Text})
		}
	})
}

// watchRights is that of a connection that carries many exchanges.
func (m *mux) watchRights() (stop func()) {
	if m.client.rights == nil {
		return func() {}
	}
	return m.client.rights.Watch(func() { reading.Wake(m.ready) })
}

// isGone returns why a connection is closed whose client has no proof any more of who it is, or nil.
func (m *mux) isGone() error {
	if why := denial(m.client.rights); why != nil && why.Status == http.StatusUnauthorized {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}

// mayHear returns why nothing of a stream is written to the client any more, or nil.
func (m *mux) mayHear() error {
	if why := denial(m.client.rights); why != nil {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}

// hears is mayHear for an exchange with a context, which ends with the connection.
func (m *mux) hears(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := m.mayHear()
	if err != nil {
		m.stop(err)
	}
	return err
}

// refuses reports whether the client must not send messages. If so, those that are requests were answered, as a POST
// of them is.
func (m *mux) refuses(msgs []jsonrpc.Message) bool {
	var why error
	var not *jsonrpc.Message
	if denied := denial(m.client.rights); denied != nil {
		why, not = denied, &msgs[0]
	} else if not, why = m.h.callers.permitted(m.client.values, msgs); why == nil {
		return false
	}
	status, e := m.h.answers.Explain(why)
	m.h.answers.TellDenied(nil, status, why, m.h.answers.Denied(m.request(), not, m.h.callers.asker(m.request())))
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			m.queue.text(jsonrpc.AppendError(nil, msgs[i].ID, e))
		}
	}
	return true
}
