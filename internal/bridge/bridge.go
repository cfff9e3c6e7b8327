// Package bridge is holdfast connect: it carries messages between a host, which speaks
// stdio, and a server.
//
// A host that kills the bridge and starts another loses nothing. The next bridge resumes
// the session. If the host repeats a call that was in flight, the call does not run twice:
// the host gets the response of the first. What that takes is kept in files (store.go,
// record.go). The life of a request is in request.go, that of a bridge in phase.go.
package bridge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Options say how a bridge reaches its server, and what it keeps.
type Options struct {
	// Client are the options of the connection to the server.
	Client client.Options
	// Transport is the user's word for Client.Transport: "auto", "http", "sse" or "ws". The
	// names of the state files depend on it.
	Transport string
	// State is the directory for state files; "": nothing is kept.
	State string
}

// Run carries messages between a host and the server at a URL until the host closes in, does
// not take what is written to out, or ctx ends. If sessions are kept, the session stays open
// at the server for the next bridge. If not, the requests of a host that closes in are
// answered first, and the session is ended.
//
// An in that does not end is still read when Run returns.
func Run(ctx context.Context, url string, in io.Reader, out io.Writer, opts *Options) error {
	b := newBridge(url, out, opts)
	read := make(chan error, 1)
	go func() { read <- b.read(ctx, in) }()
	var err error
	finish := false
	select {
	case err = <-read:
		finish = true
	case <-b.host.gone:
	case <-ctx.Done():
	}
	b.leave(ctx, finish)
	return err
}

// A bridge carries messages between a host and a server. One goroutine calls fromHost, one
// fromServer. No method of store, host or client is called with mu held.
type bridge struct {
	url      string
	opts     client.Options
	host     *host
	requests *requests
	store    *store // nil: nothing is kept
	began    time.Time
	dirty    chan struct{} // holds one token when there is something new to keep
	sending  atomic.Bool   // a request that must not run twice is being sent
	answered chan struct{} // closed when the host has the response to its initialize request
	stop     chan struct{} // closed when the bridge ends
	work     sync.WaitGroup

	mu     sync.Mutex
	phase  phase
	conn   *client.Conn
	opener fingerprint       // of the host's initialize request
	held   []jsonrpc.Message // for a host that is not ready
}

func newBridge(url string, out io.Writer, opts *Options) *bridge {
	b := &bridge{
		url: url, opts: opts.Client, host: &host{w: out, gone: make(chan struct{})}, requests: newRequests(),
		began: time.Now(), dirty: make(chan struct{}, 1), answered: make(chan struct{}), stop: make(chan struct{}),
	}
	if opts.State != "" {
		b.store = newStore(opts.State, url, opts.Transport, opts.Client.Header)
	}
	b.opts.Changed = b.changed
	b.work.Go(b.saveChanges)
	return b
}

// start runs a function in a goroutine, for which the end of the bridge waits.
func (b *bridge) start(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != leaving {
		b.work.Go(f)
	}
}

var errLeaving = errors.New("holdfast connect is ending")

// connect returns the connection to the server, which is made if there is none. If state is
// not nil, a new connection continues from there. The goroutine that calls fromHost calls it.
func (b *bridge) connect(state *client.State) (*client.Conn, error) {
	b.mu.Lock()
	old := b.conn
	b.mu.Unlock()
	if old != nil && state == nil {
		return old, nil
	}
	opts := b.opts
	opts.State = state
	conn, err := client.New(b.url, &opts)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	ending := b.phase == leaving
	if !ending {
		b.conn = conn
		b.work.Go(func() { b.receive(conn) })
	}
	b.mu.Unlock()
	if ending {
		conn.Detach()
		return nil, errLeaving
	}
	if old != nil {
		old.Detach() // the host has used it only to ask which revisions there are
	}
	return conn, nil
}

// receive handles what the server sends until the connection ends.
func (b *bridge) receive(conn *client.Conn) {
	for {
		m, err := conn.Receive(context.Background())
		if err != nil {
			return
		}
		b.fromServer(m)
	}
}

// fromHost handles a message of the host.
func (b *bridge) fromHost(ctx context.Context, m jsonrpc.Message) {
	b.mu.Lock()
	conn, now := b.conn, b.phase
	b.mu.Unlock()
	switch {
	case m.Method == "initialize" && m.Kind == jsonrpc.Request && now == starting:
		b.initialize(ctx, m)
		return
	case conn == nil && m.Method == "ping" && m.Kind == jsonrpc.Request:
		b.host.write(jsonrpc.AppendResult(nil, m.ID, []byte("{}")))
		return
	case conn == nil && m.Kind != jsonrpc.Request:
		return // there is no session that it could belong to
	}
	conn, err := b.connect(nil)
	switch {
	case err != nil && m.Kind == jsonrpc.Request:
		b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))
	case err != nil:
	case m.Kind == jsonrpc.Request:
		b.request(ctx, conn, m)
	case m.Method == "notifications/initialized":
		b.initialized(ctx, conn, m)
	case m.Method == "notifications/cancelled":
		b.cancel(ctx, conn, m)
	default:
		b.send(ctx, conn, m)
	}
}

func (b *bridge) send(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	if err := conn.Send(ctx, m); err != nil && ctx.Err() == nil {
		slog.Warn("message not sent", "method", m.Method, "error", err)
	}
}

// initialize begins a session, or resumes the one that the same host had.
func (b *bridge) initialize(ctx context.Context, m jsonrpc.Message) {
	// The bridge resumes requests: the host must not do so too.
	params := withoutIn(m.Params, "capabilities", "resumableRequests")
	opener := fingerprintOf(m.Method, params)
	b.mu.Lock()
	b.opener = opener
	b.mu.Unlock()
	var old *sessionRecord
	if b.store != nil {
		var err error
		if old, err = b.store.open(opener); err != nil {
			slog.Warn("cannot keep the session: a restart will begin a new one", "error", err)
		}
	}
	if old == nil || !b.resume(ctx, m, old) {
		b.move(eventOpened) // unless resuming has failed
		conn, err := b.connect(nil)
		if err != nil {
			b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))
			return
		}
		b.request(ctx, conn, mustParse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params)))
	}
	// Not every host waits for the response before it sends more.
	select {
	case <-b.answered:
	case <-ctx.Done():
	case <-b.host.gone:
	}
}

// initialized handles the host's notifications/initialized: messages that were held for the
// host are written. The server of a resumed session may have the notification already.
func (b *bridge) initialized(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	b.mu.Lock()
	resumed := b.phase == holding
	b.mu.Unlock()
	if !resumed || !conn.State().Ready {
		b.send(ctx, conn, m)
	}
	for {
		b.mu.Lock()
		held := b.held
		b.held = nil
		b.mu.Unlock()
		if len(held) == 0 && b.ready() {
			return
		}
		for _, m := range held {
			b.host.write(m.Raw)
		}
	}
}

// ready ends holding, unless a message was held meanwhile: nothing may overtake it.
func (b *bridge) ready() bool {
	b.mu.Lock()
	empty := len(b.held) == 0
	if empty {
		b.moveLocked(eventReady)
	}
	b.mu.Unlock()
	return empty
}

// request handles a request of the host. One that a process before this one had in flight
// continues; any other is sent.
func (b *bridge) request(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	var print fingerprint
	if mustRunOnce(m.Method) && b.store.isOpen() {
		print = fingerprintOf(m.Method, m.Params)
		if !b.requests.waitsFor(m.ID) && (b.repeat(m, print) || b.repeatForeign(ctx, conn, m, print)) {
			return
		}
	}
	r, raw, err := b.requests.begin(m, print)
	if err != nil {
		b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err))
		return
	}
	// From when it is sent it may run: Options.Changed, which is called before that, saves.
	b.sending.Store(!print.isZero())
	err = conn.Send(ctx, mustParse(raw))
	b.sending.Store(false)
	if err != nil {
		b.respond(mustParse(jsonrpc.AppendError(nil, r.id, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))))
	}
}

// cancel handles the host's notifications/cancelled.
func (b *bridge) cancel(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	id := b.requests.cancel(jsonrpc.Field(m.Params, "requestId"))
	if id == nil {
		return // the host has the response
	}
	b.store.end(id)
	if raw, ok := jsonrpc.Set(m.Raw, id, "params", "requestId"); ok {
		b.send(ctx, conn, mustParse(raw))
	}
	b.changed()
}

// fromServer handles a message of the server.
func (b *bridge) fromServer(m jsonrpc.Message) {
	switch {
	case m.Kind == jsonrpc.Response:
		b.respond(m)
		return
	case m.Method == "notifications/progress":
		if m.Raw = b.requests.progress(m); m.Raw == nil {
			return // of a request that no host waits for
		}
	case m.Kind == jsonrpc.Notification:
		m.Raw = b.requests.subscribed(m)
	}
	if !b.hold(m) {
		b.host.write(m.Raw)
	}
}

// What is held for a host that is not ready is bounded.
const (
	maxHeld      = 1000     // messages
	maxHeldBytes = 32 << 20 // bytes
)

// hold reports whether a message must not be written yet. It is held, or dropped if too much
// is held.
func (b *bridge) hold(m jsonrpc.Message) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != resuming && b.phase != holding {
		return false
	}
	size := len(m.Raw)
	for _, one := range b.held {
		size += len(one.Raw)
	}
	if len(b.held) < maxHeld && size <= maxHeldBytes {
		b.held = append(b.held, m)
	}
	return true
}

// respond handles the response to a request, with the id that the server has.
func (b *bridge) respond(m jsonrpc.Message) {
	if r := b.requests.respond(m); r != nil {
		b.deliver(r)
		return
	}
	b.changed() // it may be of a request that no host waits for
}

// deliver writes the response to a request to the host.
func (b *bridge) deliver(r *request) {
	m := mustParse(r.answer)
	taken := b.host.write(m.WithID(r.hostID))
	if r.method == "initialize" {
		b.move(eventAnswered)
	}
	b.requests.deliver(r, taken)
	if r.print.isZero() {
		return
	}
	if taken {
		b.store.end(r.id)
	}
	b.save() // before the host could repeat it
}

// leave ends the bridge. What is kept waits for the next process. If nothing is kept, and
// finish is set, the host's requests are answered first; then the session is ended.
func (b *bridge) leave(ctx context.Context, finish bool) {
	b.move(eventLeft)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	switch {
	case conn == nil:
	case b.store.isOpen():
		// The host may be back already, with another bridge, which takes its calls over.
		b.requests.leave()
		b.save()
		b.settle(conn)
		b.save()
		conn.Detach()
	default:
		if finish {
			select {
			case <-b.requests.allAnswered():
			case <-b.host.gone:
			case <-ctx.Done():
			}
		}
		_ = conn.Close()
	}
	close(b.stop)
	b.store.close()
	done := make(chan struct{})
	go func() {
		b.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(settleWithin): // a host that reads nothing may block a write for ever
	}
}

// settleWithin bounds how long a bridge that ends waits for responses that are being written,
// and for cancellations that are being sent.
const settleWithin = time.Second

// settle waits until responses that are being written are written, and the server knows what
// the host has cancelled.
func (b *bridge) settle(conn *client.Conn) {
	late := time.After(settleWithin)
	for !b.requests.settled(conn.State().Calls) {
		select {
		case <-late:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mustParse parses a message that was made here.
func mustParse(raw []byte) jsonrpc.Message {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		panic(err) // a mistake in this program
	}
	return m
}

// outcomeUnknown returns the error response to a request that may have run.
func outcomeUnknown(id []byte, err error) jsonrpc.Message {
	return mustParse(jsonrpc.AppendError(nil, id, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", err)))
}
