package merge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A linkState says how far the conversation with a server is.
//
//	from      to        when
//	closed    opening   a message is for the server
//	opening   open      the server has answered initialize
//	opening   closed    it could not be opened
//	open      closed    it has ended
type linkState int

const (
	linkClosed linkState = iota
	linkOpening
	linkOpen
)

// A link is the conversation with one server.
type link struct {
	c       *conn
	name    string // of the server
	backend backend.Backend
	// takesToken and ownCredentials are those of the member.
	takesToken, ownCredentials bool

	mu       sync.Mutex
	state    linkState
	opening  int               // the number of the opening: messages of an older one are not heard
	began    time.Time         // when it began
	conn     backend.Conn      // of this opening, or nil
	waiting  []waiting         // messages, until it is open
	replies  []backend.Inbound // to requests of the server before there is a conn
	pending  map[string]*pending
	result   []byte    // of initialize
	failed   time.Time // when opening it last failed
	why      error     // and why, until it is opened; or why it ended
	subs     map[string][]byte
	told     map[string]bool // the subscriptions of which the server was told in this opening
	finished bool
	ready    chan struct{} // closed when the opening has ended

	// For a client that does not know the server's lists. See retry.go.
	unknown bool              // it could not be opened, or not in time
	missed  map[string][]byte // pages of lists that came without its part: their params, by the method
	header  http.Header       // with which it is opened again
	queued  bool              // the link is in a [retry]; guarded by the mutex of the Backend
}

// pending is a request that the server has not answered.
type pending struct {
	call   backend.Call
	id     []byte
	method string
	token  string               // the key of the client's progress token, or ""
	answer chan jsonrpc.Message // of our own request; nil: the client's
	why    error                // why our own request has no answer, if that is known when answer is closed
	timer  *time.Timer          // while it waits for the server to open; or nil. Guarded by mu
	sent   bool                 // the server has it; guarded by mu
	lost   error                // why the server has ended, if it ended before that was known; guarded by mu
}

// isOpen reports whether the server is open or about to be.
func (l *link) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state != linkClosed
}

// has reports whether a request of the client is in flight at the server.
func (l *link) has(id []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[string(jsonrpc.Key(id))] != nil
}

// onlyCall returns the call of the client's only request in flight at the server: messages of the server that name no
// call belong to it, whatever requests other servers have. It returns nil if there are several such requests, or none.
func (l *link) onlyCall() (only backend.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		switch {
		case p.answer != nil || p.call == only:
		case only != nil:
			return nil
		default:
			only = p.call
		}
	}
	return only
}

// send sends a message to the server, and opens the server if necessary. own is the record of
// our own request, else nil.
func (l *link) send(in backend.Inbound, own *pending) {
	l.mu.Lock()
	p := own
	if p == nil && in.Kind == jsonrpc.Request {
		p = &pending{call: in.Call, id: in.ID, method: in.Method, token: tokenOf(in.Params)}
	}
	if l.finished {
		l.mu.Unlock()
		l.fail(p, errClosed, false)
		return
	}
	if p != nil {
		l.pending[string(jsonrpc.Key(in.ID))] = p
	}
	if l.state != linkOpen {
		l.waiting = append(l.waiting, waiting{in, p})
		l.open(in)
		began := l.began
		l.mu.Unlock()
		l.limit(p, began)
		return
	}
	conn := l.conn
	l.mu.Unlock()
	l.deliver(conn, in, p)
}

// reply hands a response to the server, which may wait for it before it answers initialize. ended reports whether that conversation with the
// server has ended since.
func (l *link) reply(in backend.Inbound) (ended func() bool, err error) {
	l.mu.Lock()
	conn, n := l.conn, l.opening
	if conn == nil && l.state == linkOpening {
		l.replies = append(l.replies, in)
	}
	l.mu.Unlock()
	if conn != nil {
		err = conn.Deliver(in)
	}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.opening != n
	}, err
}

// deliverReply hands the server of an opening a response for which there was no conn as it came: the client, which was told that it is taken, does
// not send it again. A server that does not take it just then, as its stdin is full for example, gets it later.
func (l *link) deliverReply(ctx context.Context, n int, in backend.Inbound) error {
	for wait := replyAgain; ; wait = min(2*wait, time.Second) {
		l.mu.Lock()
		conn, over := l.conn, l.opening != n
		l.mu.Unlock()
		if over || conn == nil {
			return errClosed
		}
		err := conn.Deliver(in)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// replyAgain is how long after an error a response is first delivered again.
const replyAgain = 10 * time.Millisecond

func (l *link) deliver(conn backend.Conn, in backend.Inbound, p *pending) {
	err := conn.Deliver(in)
	if p == nil {
		return
	}
	l.mu.Lock()
	p.sent = err == nil
	key, lost := string(jsonrpc.Key(p.id)), p.lost
	fails := lost != nil || err != nil && l.pending[key] == p
	if err != nil && l.pending[key] == p {
		delete(l.pending, key)
	}
	l.mu.Unlock()
	if fails {
		l.fail(p, cmp.Or(err, lost), err == nil)
	}
}

// dropUnsent takes those that are being sent from requests that the server will not answer: [link.deliver] finds out whether the server has
// them. l.mu is held.
func dropUnsent(lost map[string]*pending, why error) {
	for key, p := range lost {
		if !p.sent {
			p.lost = cmp.Or(why, errNoAnswer)
			delete(lost, key)
		}
	}
}

// tokenOf returns the key of the progress token that the params of a request have, or "".
func tokenOf(params []byte) string {
	return string(jsonrpc.Key(jsonrpc.Field(params, "_meta", "progressToken")))
}

// take returns a request in flight, and forgets it.
func (l *link) take(id []byte) *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(jsonrpc.Key(id))
	p := l.pending[key]
	delete(l.pending, key)
	return p
}

// fail answers a request that the server will not answer. ran says that it may have run.
func (l *link) fail(p *pending, why error, ran bool) {
	switch {
	case p == nil:
		return
	case p.answer != nil:
		p.why = why
		if !ran {
			p.why = &notRun{why}
		}
		close(p.answer)
		return
	}
	failure := jsonrpc.Errorf(jsonrpc.CodeServer, "the server %q did not take the request: %v", l.name, why)
	if of, ok := p.call.(notTaken); ok && !ran {
		of.NotTaken()
	}
	if of, ok := p.call.(refusable); ok && !ran {
		of.Refused(why)
	}
	if ran {
		failure = jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: the server %q: %v", protocol.TextOutcomeUnknown, l.name, why)
	}
	l.c.sink.Emit(p.call, response(p.id, nil, failure))
}

// A notRun is the error of a request of our own that no server has begun.
type notRun struct{ error }

func (n *notRun) Unwrap() error { return n.error }

// A notTaken is a [backend.Call] that can be told that no server has its request.
type notTaken interface{ NotTaken() }

// A refusable is a [backend.Call] that can tell its client how a server has refused the client's token.
type refusable interface{ Refused(err error) }

// open begins to open the server, unless it is open or being opened. l.mu is held.
func (l *link) open(in backend.Inbound) {
	if l.state != linkClosed || l.finished {
		return
	}
	l.state, l.began, l.replies, l.header = linkOpening, time.Now(), nil, in.Header
	l.told = make(map[string]bool)
	l.opening++
	l.ready = make(chan struct{})
	n := l.opening
	l.c.work.Go(func() { l.connect(n, in) })
}

// connect opens the server, and brings it into the state that the client believes it to be in.
func (l *link) connect(n int, in backend.Inbound) {
	ctx, cancel := context.WithTimeout(l.c.ctx, openFor)
	defer cancel()
	start := l.c.start
	start.Server, start.HTTP = l.name, requestOf(ctx, in).WithContext(ctx)
	s := &linkSink{l: l, n: n}
	conn, err := l.backend.Open(ctx, start, s)
	if err != nil {
		l.opened(n, nil, err)
		return
	}
	l.mu.Lock()
	if l.opening != n || l.finished { // it ended at once
		l.mu.Unlock()
		_ = conn.Close()
		l.opened(n, nil, errClosed)
		return
	}
	l.conn = conn
	replies := l.replies
	l.replies = nil
	l.mu.Unlock()
	for _, in := range replies {
		if err := l.deliverReply(ctx, n, in); err != nil {
			l.opened(n, nil, err)
			return
		}
	}
	l.c.mu.Lock()
	params, initialized, level := l.c.initialize, l.c.initialized, l.c.level
	l.c.mu.Unlock()
	about := backend.Inbound{Context: in.Context, Header: in.Header}
	m, err := l.askOn(ctx, conn, protocol.MethodInitialize, params, about)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errSilent
	}
	if err == nil && m.Error != nil {
		err = fmt.Errorf("initialize failed: %s", m.Error)
	}
	if err == nil {
		err = checkRevision(m.Result)
	}
	if err != nil {
		l.opened(n, nil, err)
		return
	}
	if initialized || in.Method != protocol.MethodInitialize {
		about.Message = notification(protocol.MethodInitialized, nil)
		_ = conn.Deliver(about) // an error does not end the opening: some servers refuse the notification
	}
	ctx, stop := context.WithTimeout(ctx, min(restateFor, l.c.b.waitFor(matter{l.name, protocol.MethodSetLevel})))
	defer stop()
	if level != nil && jsonrpc.Field(m.Result, "capabilities", "logging") != nil {
		_, _ = l.askOn(ctx, conn, protocol.MethodSetLevel, level, about)
	}
	l.tellSubscriptions(ctx, n, about)
	l.opened(n, m.Result, nil)
	l.retellSubscriptions(about) // those since then
}

// opened ends an opening: the messages that wait are sent, or fail.
func (l *link) opened(n int, result []byte, err error) {
	l.mu.Lock()
	if l.opening != n || l.state != linkOpening {
		l.mu.Unlock()
		return
	}
	var conn backend.Conn
	if err != nil {
		conn, l.conn = l.conn, nil
		l.state, l.failed, l.why, l.unknown = linkClosed, time.Now(), err, true
		l.opening++
		waits := l.unqueueAll()
		for _, w := range waits {
			if w.p != nil {
				delete(l.pending, string(jsonrpc.Key(w.p.id)))
			}
		}
		close(l.ready)
		l.mu.Unlock()
		l.c.dropAsked(l)
		if conn != nil {
			l.c.work.Go(func() { _ = conn.Close() }) // not here: it may wait for us
		}
		if l.c.ctx.Err() == nil {
			level := l.c.b.fails(matter{member: l.name}, err)
			if protocol.Logged(err) {
				level = slog.LevelDebug
			}
			l.c.log.Log(context.Background(), level, "server of the merged ones not opened", "server", l.name, "error", err)
			l.outcome(matter{member: l.name}, err)
			l.c.b.tryLater(l)
		}
		for _, w := range waits {
			l.fail(w.p, err, false)
		}
		return
	}
	changed := l.unknown || l.result != nil && !bytes.Equal(l.result, result)
	l.result = result
	for len(l.waiting) > 0 { // in order; later ones wait behind
		waits := l.unqueueAll()
		conn := l.conn
		l.mu.Unlock()
		for _, w := range waits {
			l.deliver(conn, w.in, w.p)
		}
		l.mu.Lock()
		if l.opening != n {
			l.mu.Unlock()
			return
		}
	}
	l.state, l.why, l.header = linkOpen, nil, nil
	if changed {
		l.unknown, l.missed = false, nil
	}
	close(l.ready)
	l.mu.Unlock()
	l.c.b.works(matter{member: l.name})
	l.c.b.setWorked(l.name, true)
	if changed {
		l.c.tellChanged()
	}
}

// checkRevision returns an error if a server has answered initialize with a revision that is not known here.
// It may be another than the server was asked for.
func checkRevision(result []byte) error {
	if v := jsonrpc.String(jsonrpc.Field(result, "protocolVersion")); !protocol.Known(v) {
		return fmt.Errorf("it answers initialize with the protocol revision %q, which is none of %s", v, strings.Join(protocol.Supported(), ", "))
	}
	return nil
}

// askOn makes a request of our own on a conversation.
func (l *link) askOn(ctx context.Context, conn backend.Conn, method string, params []byte, about backend.Inbound) (jsonrpc.Message, error) {
	p := &pending{id: l.c.nextID(), method: method, answer: make(chan jsonrpc.Message, 1)}
	about.Message = jsonrpc.Message{Kind: jsonrpc.Request, ID: p.id, Method: method, Params: params, Raw: jsonrpc.AppendRequest(nil, p.id, method, params)}
	l.mu.Lock()
	l.pending[string(jsonrpc.Key(p.id))] = p
	l.mu.Unlock()
	l.deliver(conn, about, p)
	return l.await(ctx, p)
}

// ask makes a request of our own to the server, and opens the server if necessary.
func (l *link) ask(ctx context.Context, in backend.Inbound, params []byte) (jsonrpc.Message, error) {
	p := &pending{id: l.c.nextID(), method: in.Method, token: tokenOf(params), answer: make(chan jsonrpc.Message, 1)}
	in.Message = jsonrpc.Message{Kind: jsonrpc.Request, ID: p.id, Method: in.Method, Params: params, Raw: jsonrpc.AppendRequest(nil, p.id, in.Method, params)}
	mine := new(tokenCall)
	in.Call = nil
	if l.takesToken || l.ownCredentials {
		in.Call = mine
	}
	l.send(in, p)
	m, err := l.await(ctx, p)
	if refused := mine.refusal(); refused != nil {
		err = refused
	}
	if ctx.Err() != nil {
		l.cancelOwn(p)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errLate
	}
	return m, err
}

// cancelOwn cancels a request of our own at the server or, if the request still waits, does not make it.
func (l *link) cancelOwn(p *pending) {
	l.mu.Lock()
	if p.method != protocol.MethodSetLevel && l.unqueue(p) {
		l.mu.Unlock()
		return
	}
	conn, open := l.conn, l.state == linkOpen
	l.mu.Unlock()
	if !open || conn == nil {
		return
	}
	_ = conn.Deliver(backend.Inbound{Message: notification(protocol.MethodCancelled, fmt.Appendf(nil, `{"requestId":%s}`, p.id))}) // a server that does not take it answers in vain
}

func notification(method string, params []byte) jsonrpc.Message {
	return jsonrpc.Message{Kind: jsonrpc.Notification, Method: method, Params: params, Raw: jsonrpc.AppendRequest(nil, nil, method, params)}
}

var errSilent = fmt.Errorf("it did not answer initialize in %v", openFor)

var errLate = errors.New("it did not answer in time")

var errNoAnswer = errors.New("the server has ended, or could not be opened")

func (l *link) await(ctx context.Context, p *pending) (jsonrpc.Message, error) {
	select {
	case m, ok := <-p.answer:
		if !ok {
			return m, cmp.Or(p.why, errNoAnswer)
		}
		return m, nil
	case <-ctx.Done():
		l.take(p.id)
		return jsonrpc.Message{}, ctx.Err()
	}
}

// ended ends an opening that the server has ended.
func (l *link) ended(n int, why error) {
	l.mu.Lock()
	if l.opening != n {
		l.mu.Unlock()
		return
	}
	if l.state == linkOpening {
		lost := l.pending
		l.pending = make(map[string]*pending)
		for _, w := range l.waiting { // they are answered by opened
			if w.p != nil {
				l.pending[string(jsonrpc.Key(w.p.id))] = w.p
				delete(lost, string(jsonrpc.Key(w.p.id)))
			}
		}
		dropUnsent(lost, why)
		l.opening++ // connect must not take the link for open meanwhile
		n = l.opening
		l.mu.Unlock()
		for _, p := range lost {
			l.fail(p, why, true)
		}
		l.opened(n, nil, why)
		return
	}
	l.opening++
	l.state, l.why = linkClosed, why
	conn, lost := l.conn, l.pending
	l.conn, l.pending = nil, make(map[string]*pending)
	dropUnsent(lost, why)
	l.mu.Unlock()
	l.c.log.Warn("server of the merged ones ended", "server", l.name, "error", why, "calls", len(lost))
	l.c.dropAsked(l)
	for _, p := range lost {
		l.fail(p, why, true)
	}
	if conn != nil {
		l.c.work.Go(func() { _ = conn.Close() }) // not here: it may wait for us
	}
}

// leave closes the link of a server that is no longer a member, or runs differently, once nothing is
// in flight. A request that was just routed to it may still be on its way: leave looks a while later.
func (l *link) leave() {
	t := time.NewTicker(leaveEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.c.ctx.Done():
			return // conn.Close closes this link
		}
		if l.isQuiet() {
			l.close()
			return
		}
	}
}

// leaveEvery is how often leave looks whether a link is quiet.
const leaveEvery = 500 * time.Millisecond

// isQuiet reports whether no request is in flight at the server, and it is not being opened. A question of the server
// that belongs to no such request keeps no client waiting.
func (l *link) isQuiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) == 0 && len(l.waiting) == 0 && l.state != linkOpening
}

// close ends the conversation with the server.
func (l *link) close() {
	l.mu.Lock()
	l.finished = true
	l.opening++
	conn := l.conn
	l.conn = nil
	lost := l.pending
	l.pending = make(map[string]*pending)
	unsent := l.unqueueAll()
	if l.state == linkOpening {
		close(l.ready)
	}
	l.state = linkClosed
	for _, w := range unsent {
		if w.p != nil {
			delete(lost, string(jsonrpc.Key(w.p.id)))
		}
	}
	dropUnsent(lost, errClosed)
	l.mu.Unlock()
	l.c.dropAsked(l)
	for _, w := range unsent {
		l.fail(w.p, errClosed, false)
	}
	for _, p := range lost { // they were routed to the server at the last moment, or the conversation ends
		l.fail(p, errClosed, true)
	}
	if conn != nil {
		_ = conn.Close()
	}
}
