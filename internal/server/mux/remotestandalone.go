package mux

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// A remoteStandalone reads the standalone stream of a session on another node.
type remoteStandalone struct {
	m      *mux
	s      *forwarded
	last   string // the id of the last event received
	opened chan struct{}
	open   sync.Once

	// Why the reading has ended.
	refusal *placement.Answer
	err     error
}

// listenRemote starts to read the standalone stream on another node, after the event with the id last, or, if that is "", after
// the last message that was delivered. It returns when the stream is open. refusal is the node's answer if that is not a stream.
// The error is placement.ErrHere if the session has come here.
func (m *mux) listenRemote(last string) (refusal *placement.Answer, err error) {
	a := &remoteStandalone{m: m, last: last, opened: make(chan struct{})}
	over := make(chan struct{})
	ok := m.front.Nodes.Go(func() {
		defer close(over)
		func() {
			defer panics.Catch(&a.err, m.front.Logger, "a connection's stream of another node", "")
			a.refusal, a.err = a.run()
		}()
		if a.err != nil && a.isOpen() && m.ctx.Err() == nil {
			m.comeBack() // for the rest of the stream
		}
	})
	if !ok {
		return nil, session.ErrClosing
	}
	select {
	case <-a.opened:
		return nil, nil
	case <-over:
		return a.refusal, a.err
	}
}

// run reads the stream to its end, from one node after the other. refusal is set only if the stream was never open.
func (a *remoteStandalone) run() (refusal *placement.Answer, err error) {
	m := a.m
	for {
		a.s = &forwarded{x: m.newExchange(nil, m.key, nil), ctx: m.ctx, stop: func() {}, standalone: a}
		a.s.got.Events = a.s
		x := exchange.Exchange{Purpose: exchange.ForRead, HTTP: a.request(), Principal: m.client.principal, Secret: a.secret(), Last: a.last}
		p := m.placeHome(&x, &a.s.got)
		err := p.Run(placement.ErrNotHere)
		if last := p.Last(); last != "" {
			a.last = last
		}
		if errors.Is(err, placement.ErrHere) {
			m.settle(m.key)
			if x.Session = m.session(); x.Session == nil || !a.isOpen() {
				return nil, err
			}
			x.Last = a.last
			err = m.front.Serve(&a.s.got, &x)
		}
		switch {
		case m.ctx.Err() != nil:
			return nil, m.ctx.Err()
		case errors.Is(err, session.ErrMoved):
		case errors.Is(err, session.ErrNotFound) && a.isOpen():
			m.endRemote()
			return nil, nil
		case err != nil:
			return nil, err
		case a.s.got.Ending == placement.EndsTaken, p.Taken(): // the client reads the stream on another connection
			return nil, a.watch()
		case !placement.IsEvents(a.s.got.Header()):
			return &a.s.got, a.refused()
		}
		select { // the node has ended the stream, maybe as the session has left it
		case <-time.After(100 * time.Millisecond):
		case <-m.ctx.Done():
		}
	}
}

// secret returns the session's id from the handshake.
func (a *remoteStandalone) secret() string {
	return a.m.client.header.Get(protocol.HeaderSession)
}

// watch keeps the session in use without reading its stream, until the session comes here or ends, or the connection ends.
func (a *remoteStandalone) watch() error {
	m := a.m
	every := m.front.KeepAlive
	if every <= 0 {
		every = 15 * time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
		// The cheapest request that Holdfast answers itself.
		raw := jsonrpc.AppendRequest(nil, []byte("0"), protocol.MethodStatusAll, nil)
		x := m.exchangeFor(exchange.ForRequest, &jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("0"), Method: protocol.MethodStatusAll, Raw: raw})
		p := m.placeHome(&x, &placement.Answer{})
		p.AskLocally(&session.Range{After: m.key, Until: m.key})
		switch err := p.Run(placement.ErrNotHere); {
		case errors.Is(err, placement.ErrHere):
			m.settle(m.key)
			return nil
		case errors.Is(err, session.ErrNotFound):
			m.endRemote()
			return nil
		}
		t.Reset(every)
	}
}

// endRemote notes that the session has ended.
func (m *mux) endRemote() {
	m.remote.ended.Store(true)
	reading.Wake(m.ready)
}

// request returns the GET to forward.
func (a *remoteStandalone) request() *http.Request {
	r := exchange.OwnPost(a.m.client.request()).WithContext(a.m.ctx)
	r.Method = http.MethodGet
	r.Header.Del("Content-Type")
	r.Header["Accept"] = []string{sse.ContentType}
	if a.last != "" {
		r.Header[protocol.HeaderLastEventID] = []string{a.last}
	}
	return r
}

func (a *remoteStandalone) isOpen() bool {
	select {
	case <-a.opened:
		return true
	default:
		return false
	}
}

// begin notes that the stream is open. head is the header of the owner's response.
func (a *remoteStandalone) begin(head http.Header) {
	a.open.Do(func() {
		a.m.remote.learn(head)
		close(a.opened)
	})
}

// refused handles a refusal of the stream. If the stream was open before, the
// session has ended (nil), or the rest of the stream is no longer stored.
func (a *remoteStandalone) refused() error {
	m := a.m
	switch {
	case !a.isOpen():
		return nil
	case a.s.got.Status() == http.StatusNotFound || a.s.got.Status() == http.StatusNoContent:
		m.endRemote()
		return nil
	}
	return placement.ErrUnreached
}
