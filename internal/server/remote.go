package server

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

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for a [mux] whose session is on another node: each of its calls is
// forwarded by itself, and its standalone stream is a GET that is. If the session comes
// here, what follows is served here.

// headerClient is what the owner of a session tells the node that the client is
// connected to, with the header of a stream: the words clientResumes and clientEventIDs.
const (
	headerClient   = "Holdfast-Client"
	clientResumes  = "resumes"
	clientEventIDs = "event-ids"
)

// clientOf returns what another node needs to know of the client of a session.
func clientOf(s *session.Session) string {
	switch {
	case s.EventIDs():
		return clientResumes + " " + clientEventIDs
	case s.Resumable():
		return clientResumes
	}
	return "-"
}

// A remoteSession is what is known of a session on another node.
type remoteSession struct {
	reports  atomic.Bool   // its owner reports that a request was delivered
	resumes  bool          // its client can resume requests
	eventIDs bool          // and wants event ids
	ended    bool          // the session has ended; guarded by mux.mu
	serving  chan struct{} // closed when the client can be written to
	last     *delivery     // of the request that was forwarded last; used by the goroutine that takes messages in
}

// learn reads what the owner reports about the client. An owner of an earlier build
// reports nothing: then the client gets event ids, which do no harm.
func (rh *remoteSession) learn(head http.Header) {
	client := head.Get(headerClient)
	rh.reports.Store(client != "")
	rh.resumes = strings.Contains(client, clientResumes)
	rh.eventIDs = client == "" || strings.Contains(client, clientEventIDs)
}

// session returns the connection's own session, or nil if that is on another node.
func (m *mux) session() *session.Session { return m.local.Load() }

// settle has what follows be served here, if the connection's session, or another, has
// come to this node.
func (m *mux) settle(key stream.SessionKey) {
	if key != m.key || m.session() != nil {
		return
	}
	if s, err := m.h.sessions.FindName(string(key), m.client.principal); err == nil {
		m.local.CompareAndSwap(nil, s)
	}
}

// A remoteStandalone reads the standalone stream of a session on another node.
type remoteStandalone struct {
	m      *mux
	s      *forwardedExchange
	last   string // the id of the event that was received last
	opened chan struct{}
	open   sync.Once

	// Why it is over.
	refusal *kept
	err     error
}

// listenRemote has the standalone stream be read on another node, after the event with
// an id, or after the last message that was delivered. The error is errHere if the session has come here.
// A refusal is what that node answers instead.
func (m *mux) listenRemote(last string) (refusal *kept, err error) {
	if !m.h.peers.begin() {
		return nil, session.ErrClosing
	}
	a := &remoteStandalone{m: m, last: last, opened: make(chan struct{})}
	over := make(chan struct{})
	go func() {
		defer m.h.peers.work.Done()
		defer close(over)
		func() {
			defer panics.Catch(&a.err, m.h.logger, "a connection's stream of another node", "")
			a.refusal, a.err = a.run()
		}()
		if a.err != nil && a.isOpen() && m.ctx.Err() == nil {
			m.comeBack() // for the rest of the stream
		}
	}()
	select {
	case <-a.opened:
		return nil, nil
	case <-over:
		return a.refusal, a.err
	}
}

// run reads the stream until it is over, from one node after the other. What it returns
// is of use before the stream was open.
func (a *remoteStandalone) run() (refusal *kept, err error) {
	m := a.m
	for {
		a.s = &forwardedExchange{x: m.newExchange(nil, m.key, nil), ctx: m.ctx, stop: func() {}, standalone: a}
		x := exchange{purpose: forRead, r: a.request(), principal: m.client.principal, secret: a.secret(), last: a.last}
		p := m.home(&x, a.s)
		err := p.run(errNotHere)
		if p.out != nil && p.out.last != "" {
			a.last = p.out.last
		}
		if errors.Is(err, errHere) {
			m.settle(m.key)
			if x.session = m.session(); x.session == nil || !a.isOpen() {
				return nil, err
			}
			x.last = a.last
			err = m.h.serveIn(a.s, &x)
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
		case a.s.taken, p.out != nil && p.out.taken: // its client reads it on another connection
			return nil, a.watch()
		case !isEvents(a.s.head):
			return &a.s.kept, a.refused()
		}
		select { // the node has let go of it, with the session maybe
		case <-time.After(100 * time.Millisecond):
		case <-m.ctx.Done():
		}
	}
}

// secret is the id of the session, as the handshake named it.
func (a *remoteStandalone) secret() string {
	if id := a.m.client.header[protocol.HeaderSession]; len(id) > 0 {
		return id[0]
	}
	return ""
}

// watch keeps the session in use without reading its stream, until it has ended, or the
// connection has.
func (a *remoteStandalone) watch() error {
	m := a.m
	every := m.h.opts.KeepAlive
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
		// Of all that Holdfast answers itself, this costs the least.
		raw := jsonrpc.AppendRequest(nil, []byte("0"), protocol.MethodStatusAll, nil)
		x := m.exchangeFor(forRequest, &jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("0"), Method: protocol.MethodStatusAll, Raw: raw})
		p := m.home(&x, &kept{})
		p.visit.Local = &session.Range{After: m.key, Until: m.key}
		switch err := p.run(errNotHere); {
		case errors.Is(err, errHere):
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
	m.mu.Lock()
	m.remote.ended = true
	m.mu.Unlock()
	session.Wake(m.ready)
}

// request is the GET that is forwarded.
func (a *remoteStandalone) request() *http.Request {
	r := askFor(a.m.request()).WithContext(a.m.ctx)
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

// refused takes in that the stream is refused. If it was open, then its session has
// ended, or the messages that the client has missed are no longer stored.
func (a *remoteStandalone) refused() error {
	m := a.m
	switch {
	case !a.isOpen():
		return nil
	case a.s.status == http.StatusNotFound || a.s.status == http.StatusNoContent:
		m.endRemote()
		return nil
	}
	return errUnreached
}

// forwardCall forwards requests to the connection's own session. before is the exchange that
// had them, if they were forwarded already, for a session that came here and has left again.
func (m *mux) forwardCall(msgs []jsonrpc.Message, batch bool, key string, before *forwardedExchange) {
	s := &forwardedExchange{x: m.newExchange(nil, m.key, msgs), msgs: msgs, batch: batch, unsafe: key == ""}
	for _, id := range s.x.ids {
		m.mu.Lock()
		other := m.foreign[string(jsonrpc.Key(id))]
		m.mu.Unlock()
		if other != nil && key == "" {
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

// A delivery is whether requests that were forwarded have reached the backend, wherever
// their session is by then.
type delivery struct {
	done chan struct{} // closed when they have, or are given up
	once sync.Once     // closes it
}

// end notes that the requests have reached the backend, or are given up. d is nil where nobody
// wants to know.
func (d *delivery) end() {
	if d != nil {
		d.once.Do(func() { close(d.done) })
	}
}

// orderPatience bounds how long a message waits for the one before it to be delivered, which
// may have to wait for the backend to be opened. An owner of an earlier build does not report
// that a request was delivered: earlierPatience.
const (
	orderPatience   = 35 * time.Second
	earlierPatience = time.Second
)

// awaitOrder waits until the request that was forwarded last was delivered, so that
// no message of the client overtakes another, such as a cancellation its request. That
// request may be delivered here by now, if the session has come.
func (m *mux) awaitOrder() {
	if m.remote == nil || m.remote.last == nil {
		return
	}
	patience := orderPatience
	if !m.remote.reports.Load() {
		patience = earlierPatience
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-m.remote.last.done:
	case <-m.ctx.Done():
	case <-t.C:
	}
	m.remote.last = nil
}

// ordered has the exchange learn when its request was delivered: with the status 102, which
// the owner of the session sends for that.
func (s *forwardedExchange) ordered(ctx context.Context) context.Context {
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

// confirmDelivery sends that status to a node whose client has more exchanges on its
// connection.
//
//go:noinline
func (x *exchange) confirmDelivery(w http.ResponseWriter) {
	if x.from != nil && x.from.Stays {
		w.WriteHeader(http.StatusProcessing)
	}
}

// home prepares the placement of an exchange with the connection's own session.
func (m *mux) home(x *exchange, w http.ResponseWriter) *placement {
	x.muxed = true
	p := m.h.newPlacement(w, x)
	p.home = target{key: m.key, redirected: true}
	return p
}

// forwardHome forwards an exchange to the connection's own session, and returns its answer, nil
// if it has none. The error is errHere if the session is, or has come, here.
func (m *mux) forwardHome(x *exchange) ([]byte, error) {
	if m.session() != nil {
		return nil, errHere
	}
	got := &kept{}
	if err := m.home(x, got).run(errNotHere); err != nil {
		m.settle(m.key)
		if errors.Is(err, errHere) && m.session() == nil {
			err = errUnreached
		}
		x.muxed = false
		return nil, err
	}
	text, err := got.answer()
	return bytes.Clone(text), err
}

// cancels notes that a client cancels a request that was forwarded: its stream may end
// without a response, and its id is free, as it is at the owner.
func (m *mux) cancels(msg *jsonrpc.Message) {
	if msg.Method != "notifications/cancelled" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := string(jsonrpc.Key(jsonrpc.Field(msg.Params, "requestId")))
	if x := m.foreign[key]; x != nil && x.forward != nil {
		x.forward.cancelled = true
		delete(m.foreign, key)
	}
}

// socketElsewhere serves a WebSocket whose session is on another node. An error says that
// the handshake was not answered.
func (h *Handler) socketElsewhere(w http.ResponseWriter, x *exchange) error {
	if x.last != "" && !session.IsStandaloneName(nameOf(x.last)) {
		return errOfCall
	}
	for range mostMoves {
		m := h.newMux(x.r, nil, x.name(), true)
		refusal, err := m.listenRemote(x.last)
		if refusal == nil && err == nil {
			h.accept(w, x.r, m, x.secret, h.tenant(x.r))
			return nil
		}
		m.close(err)
		if refusal != nil {
			refusal.writeTo(w)
			return nil
		}
		if errors.Is(err, errHere) {
			if err = h.find(x); err == nil {
				err = h.socketHere(w, x)
			}
		}
		if !errors.Is(err, errNotHere) && !errors.Is(err, session.ErrMoved) {
			return err
		}
	}
	return errUnreached
}

// writeTo gives an answer that was kept to a client.
func (k *kept) writeTo(w http.ResponseWriter) {
	head := w.Header()
	for name, values := range k.head {
		if !strings.HasPrefix(name, ownHeaders) {
			head[name] = values
		}
	}
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body.Bytes()) // who has gone does not hear it
}
