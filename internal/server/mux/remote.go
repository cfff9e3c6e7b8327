package mux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file is for a [mux] with its session on another node: each of its calls is forwarded by itself, and its standalone stream is
// a forwarded GET. If the session comes here, later messages are served here.

// A remoteSession is a mux's session on another node.
type remoteSession struct {
	reports  atomic.Bool   // the owner reports that a request was delivered
	resumes  bool          // the client can resume requests
	eventIDs bool          // the client wants event ids
	ended    atomic.Bool   // the session has ended
	serving  chan struct{} // closed when the client can be written to
	last     *delivery     // of the request forwarded last; used by the goroutine that takes messages in
}

// learn sets resumes, eventIDs and reports from the header of the owner's response. An owner
// of an earlier build does not send it: then the client gets event ids, which do no harm.
func (rh *remoteSession) learn(head http.Header) {
	client := head.Get(streaming.HeaderClient)
	rh.reports.Store(client != "")
	rh.resumes = strings.Contains(client, streaming.ClientResumes)
	rh.eventIDs = client == "" || strings.Contains(client, streaming.ClientEventIDs)
}

// forwardCall forwards requests to the connection's own session. before is their earlier
// exchange, if the session came here while they were forwarded and has left again; else nil.
func (m *mux) forwardCall(msgs []jsonrpc.Message, batch bool, key string, before *forwarded) {
	s := &forwarded{x: m.newExchange(nil, m.key, msgs), requests: requests{msgs: msgs, batch: batch, unsafe: key == ""}}
	for _, id := range s.x.ids {
		if key == "" && m.foreignWith(id) != nil {
			m.fail(msgs, session.ErrDuplicate)
			return
		}
	}
	if before == nil {
		s.delivery = newDelivery()
		m.remote.last = s.delivery
	} else {
		s.delivery, before.delivery = before.delivery, nil
	}
	m.forward(s)
}

// A delivery says when forwarded requests have reached the backend, on whichever node their session is by then.
type delivery struct {
	done chan struct{} // closed when they have reached it, or are given up
	once sync.Once     // closes it
}

// end notes that the requests have reached the backend, or are given up. d may be nil.
func (d *delivery) end() {
	if d != nil {
		d.once.Do(func() { close(d.done) })
	}
}

// wait waits until the requests have reached the backend or are given up, ctx ends, or patience is over. d may be nil.
func (d *delivery) wait(ctx context.Context, patience time.Duration) {
	if d == nil {
		return
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-d.done:
	case <-ctx.Done():
	case <-t.C:
	}
}

func newDelivery() *delivery { return &delivery{done: make(chan struct{})} }

// orderPatience bounds how long a message waits until the request before it was delivered, for which the backend may have to be
// opened. For owners of earlier builds, which do not report a delivery, the bound is earlierPatience.
const (
	orderPatience   = 35 * time.Second
	earlierPatience = time.Second
)

// awaitOrder waits until the request forwarded last was delivered, so that no message of the client overtakes another, such as
// a cancellation its request. If the session has come here, that request is delivered here.
func (rh *remoteSession) awaitOrder(ctx context.Context) {
	if rh == nil || rh.last == nil {
		return
	}
	patience := orderPatience
	if !rh.reports.Load() {
		patience = earlierPatience
	}
	rh.last.wait(ctx, patience)
	rh.last = nil
}

// ordered returns a context that ends s.delivery when the session's owner reports the
// delivery of the request, with status 102.
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

// forwardHome forwards an exchange to the connection's own session, and returns the answer's
// body, or nil. The error is placement.ErrHere if the session is here, or has come here. A session that has left is elsewhere, if the
// connection continues its calls.
func (m *mux) forwardHome(x *exchange.Exchange) ([]byte, error) {
	if s := m.session(); s != nil && (!s.Moved() || !m.follows()) {
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
	if err != nil && (got.Status() >= http.StatusInternalServerError || got.Status() == http.StatusTooManyRequests) {
		err = fmt.Errorf("%w: %w", errOfOwner, err)
	}
	return bytes.Clone(text), err
}

// errOfOwner wraps an error of the node that has the session: that node may serve the same later.
var errOfOwner = errors.New("not served by the session's node")
