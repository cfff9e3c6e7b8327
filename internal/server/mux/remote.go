package mux

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows is for a [mux] whose session is on another node: each of its calls is forwarded by itself, and its standalone stream
// is a GET that is. If the session comes here, what follows is served here.

// A remoteSession is what is known of a session on another node.
type remoteSession struct {
	reports  atomic.Bool   // its owner reports that a request was delivered
	resumes  bool          // its client can resume requests
	eventIDs bool          // and wants event ids
	ended    atomic.Bool   // the session has ended
	serving  chan struct{} // closed when the client can be written to
	last     *delivery     // of the request that was forwarded last; used by the goroutine that takes messages in
}

// learn reads what the owner reports about the client. An owner of an earlier build
// reports nothing: then the client gets event ids, which do no harm.
func (rh *remoteSession) learn(head http.Header) {
	client := head.Get(copying.HeaderClient)
	rh.reports.Store(client != "")
	rh.resumes = strings.Contains(client, copying.ClientResumes)
	rh.eventIDs = client == "" || strings.Contains(client, copying.ClientEventIDs)
}

// forwardCall forwards requests to the connection's own session. before is the exchange that
// had them, if they were forwarded already, for a session that came here and has left again.
func (m *mux) forwardCall(msgs []jsonrpc.Message, batch bool, key string, before *forwarded) {
	s := &forwarded{x: m.newExchange(nil, m.key, msgs), requests: requests{msgs: msgs, batch: batch, unsafe: key == ""}}
	for _, id := range s.x.ids {
		if key == "" && m.foreignWith(id) != nil {
			m.fail(msgs, session.ErrDuplicate)
			return
		}
	}
	if before == nil {
		s.delivery = &delivery{done: make(chan struct{})}
		m.remote.last = s.delivery
	} else {
		s.delivery, before.delivery = before.delivery, nil
	}
	m.forward(s)
}

// A delivery is whether requests that were forwarded have reached the backend, wherever their session is by then.
type delivery struct {
	done chan struct{} // closed when they have, or are given up
	once sync.Once     // closes it
}

// end notes that the requests have reached the backend, or are given up. d is nil where nobody wants to know.
func (d *delivery) end() {
	if d != nil {
		d.once.Do(func() { close(d.done) })
	}
}

// orderPatience bounds how long a message waits for the one before it to be delivered, which may have to wait for the backend to be
// opened. An owner of an earlier build does not report that a request was delivered: earlierPatience.
const (
	orderPatience   = 35 * time.Second
	earlierPatience = time.Second
)

// awaitOrder waits until the request that was forwarded last was delivered, so that no message of the client overtakes another,
// such as a cancellation its request. That request may be delivered here by now, if the session has come.
func (rh *remoteSession) awaitOrder(ctx context.Context) {
	if rh == nil || rh.last == nil {
		return
	}
	patience := orderPatience
	if !rh.reports.Load() {
		patience = earlierPatience
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-rh.last.done:
	case <-ctx.Done():
	case <-t.C:
	}
	rh.last = nil
}

// ordered has the exchange learn when its request was delivered: with the status 102, which
// the owner of the session sends for that.
func (s *forwarded) ordered(ctx context.Context) context.Context {
	d := s.delivery
	if d == nil {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			d.end()
			return nil
		},
	})
}

// placeHome prepares the placement of an exchange with the connection's own session.
func (m *mux) placeHome(x *exchange.Exchange, to *placement.Answer) *placement.Placement {
	x.Muxed, x.MuxDoor = true, m.client.door
	p := m.front.Place(to, x)
	p.InSession(m.key, nil)
	return p
}

// forwardHome forwards an exchange to the connection's own session, and returns its answer, nil
// if it has none. The error is placement.ErrHere if the session is, or has come, here.
func (m *mux) forwardHome(x *exchange.Exchange) ([]byte, error) {
	if m.session() != nil {
		return nil, placement.ErrHere
	}
	got := &placement.Answer{}
	if err := m.placeHome(x, got).Run(placement.ErrNotHere); err != nil {
		m.settle(m.key)
		if errors.Is(err, placement.ErrHere) && m.session() == nil {
			err = placement.ErrUnreached
		}
		x.Muxed = false
		return nil, err
	}
	text, err := got.Body()
	return bytes.Clone(text), err
}
