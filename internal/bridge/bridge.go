// Package bridge is holdfast connect: it carries messages between a host, which speaks
// stdio, and a server.
//
// A host that kills the bridge and starts another loses nothing. The next bridge resumes
// the session. If the host repeats a call that was in flight, the call does not run twice:
// the host gets the response of the first. The state for that is kept in files (sessionstore.go,
// sessionrecord.go). The life of a request is in request.go, that of a bridge in phase.go, begin.go
// and leave.go.
//
// Host and server may be of different eras. A message of the host goes through a conversation
// of package translate (eras.go), for which the bridge's own half towards the server is
// the backend. On its other side are the parts that only a modern host knows: requests that end
// before their calls, with a question (exchange.go, input.go) or with a task (task.go,
// tasklisten.go).
package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/client"
	"holdfast/internal/login"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Options say how a bridge reaches its server, and which state it keeps.
type Options struct {
	// Client are the options of the connection to the server.
	Client client.Options
	// Transport is the user's word for Client.Transport: "auto", "http", "sse" or "ws". The
	// names of the state files depend on it.
	Transport string
	// State is the directory for state files; "": nothing is kept.
	State string
	// TaskAfter is how long a call may take before it becomes a task, for a modern host that
	// knows tasks and a server that has none; 0: never.
	TaskAfter time.Duration
	// Explain returns the text of an error of the host's first request with advice for the user; nil: the text
	// stays as it is.
	Explain func(text string) string
}

// Run carries messages between a host and the server at a URL until the host closes in, a write
// to out fails, or ctx ends. The requests of a host that closes in are answered first. If
// sessions are kept, the session then stays open at the server for the next bridge. If not, it
// is ended.
//
// An in that does not end is still read when Run returns.
func Run(ctx context.Context, url string, in io.Reader, out io.Writer, opts *Options) error {
	b := newBridge(ctx, url, out, opts)
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
	explain  func(string) string // or nil
	host     *host
	eras     eras
	requests *requests
	store    *store // nil: nothing is kept
	began    time.Time
	dirty    chan struct{}          // holds one token when there is something new to keep
	sending  atomic.Int32           // requests being sent that must not run twice
	said     chan said              // the messages of the server
	greeting atomic.Pointer[[]byte] // the id of the host's last request that may be its first
	ending
	work sync.WaitGroup

	mu    sync.Mutex
	phase phase
	link
}

// ending has the events in the life of a bridge that happen once.
type ending struct {
	ctx      context.Context // of Run
	answered chan struct{}   // closed when initialize is answered
	gone     chan struct{}   // closed when no more messages of the server are taken
	stop     chan struct{}   // closed when the bridge ends
}

// A link is the state of a bridge towards its server. It is guarded by bridge.mu.
type link struct {
	conn   *client.Conn
	sink   backend.Sink // takes messages that belong to no request; nil: no conversation is open yet
	opener fingerprint  // of the first request, which is the host's or a translation's
	era    era          // of the server, as far as it is known
	held   []heldMessage
}

// A heldMessage waits for a host that is not ready.
type heldMessage struct {
	from origin
	m    jsonrpc.Message
}

// said is a message of the server. request is the id of the request on whose stream it came,
// or nil.
type said struct {
	request []byte
	m       jsonrpc.Message
}

func newBridge(ctx context.Context, url string, out io.Writer, opts *Options) *bridge {
	b := &bridge{
		url: url, opts: opts.Client, host: &host{w: out, out: out, gone: make(chan struct{})}, requests: newRequests(),
		began: time.Now(), dirty: make(chan struct{}, 1), said: make(chan said),
		ending: ending{ctx: ctx, answered: make(chan struct{}), gone: make(chan struct{}), stop: make(chan struct{})},
	}
	if opts.State != "" {
		b.store = newStore(opts.State, url, opts.Transport, opts.Client.Header)
		b.eras.legacy.known = &known{name: filepath.Join(b.store.dir, b.store.prefix+knownSuffix)}
	}
	b.explain = opts.Explain
	b.eras.begin(b, opts.TaskAfter)
	b.opts.Changed, b.opts.Receive = b.changed, b.received
	b.work.Go(b.saveChanges)
	b.work.Go(b.takeSaid)
	return b
}

// start runs f in a goroutine that the bridge waits for at its end. A bridge that is leaving does not run f.
func (b *bridge) start(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != leaving {
		b.work.Go(f)
	}
}

var errLeaving = errors.New("holdfast connect is ending")

// connect returns the connection to the server, and makes it if there is none. If state is not nil,
// a new connection continues from there. Only the goroutine that calls fromHost calls connect.
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
		b.work.Go(func() { _, _ = conn.Receive(context.Background()) }) // continues the calls in the state
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

// received takes a message of the server from a connection, in the order of its stream.
func (b *bridge) received(request []byte, m jsonrpc.Message) {
	select {
	case b.said <- said{request, m}:
	case <-b.gone: // the record has the place of its call, for the next process
	}
}

// takeSaid handles the messages of the server until the bridge ends.
func (b *bridge) takeSaid() {
	for {
		select {
		case s := <-b.said:
			b.fromServer(s.request, s.m)
		case <-b.stop:
			return
		}
	}
}

// toServer handles a message for the server. It comes from the host, or from a translation.
// from gets the response.
func (b *bridge) toServer(m jsonrpc.Message, from origin) {
	b.mu.Lock()
	conn, now := b.conn, b.phase
	b.mu.Unlock()
	switch {
	case m.Method == protocol.MethodInitialize && m.Kind == jsonrpc.Request && now == starting:
		b.initialize(m, from)
		return
	case conn == nil && m.Method == protocol.MethodPing && m.Kind == jsonrpc.Request:
		from.emit(mustParse(jsonrpc.AppendResult(nil, m.ID, []byte("{}"))))
		return
	case conn == nil && m.Kind != jsonrpc.Request:
		return // there is no session that it could belong to
	}
	conn, err := b.connect(nil)
	switch {
	case err != nil && m.Kind == jsonrpc.Request:
		from.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))
	case err != nil:
	case m.Kind == jsonrpc.Request:
		b.request(conn, m, from)
	case m.Method == protocol.MethodInitialized:
		b.initialized(b.ctx, conn, m)
	case m.Method == protocol.MethodCancelled:
		b.cancel(conn, m)
	default:
		b.send(b.ctx, conn, m)
	}
}

func (b *bridge) send(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	if err := conn.Send(login.With(ctx, login.Waiter{Tell: b.teller(&request{})}), m); err != nil && ctx.Err() == nil {
		slog.Warn("message not sent", "method", m.Method, "error", err)
	}
}

// request handles a request of the host. A request that an earlier process had in flight
// continues; any other is sent.
func (b *bridge) request(conn *client.Conn, m jsonrpc.Message, from origin) {
	if task := taskOf(m); task != "" {
		b.continueTask(conn, m, from, task)
		return
	}
	var print fingerprint
	if mustRunOnce(m.Method) && b.store.isOpen() {
		print = fingerprintOf(m.Method, m.Params)
		if !b.requests.waitsFor(m.ID) && (b.repeat(m, from, print) || b.repeatForeign(conn, m, from, print)) {
			return
		}
	}
	if m.Method == protocol.MethodDiscover {
		b.discovers(m)
	}
	r, raw, err := b.requests.begin(m, print, from)
	if err != nil {
		from.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err))
		return
	}
	// The request may run as soon as it is sent. Send calls Options.Changed before that, which saves it.
	once := !print.isZero()
	if once {
		b.sending.Add(1)
	}
	err = conn.Send(b.waiting(r), mustParse(raw))
	if once {
		b.sending.Add(-1)
	}
	if err != nil {
		b.respond(mustParse(jsonrpc.AppendError(nil, r.id, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))))
	}
}

// cancel handles the host's notifications/cancelled.
func (b *bridge) cancel(conn *client.Conn, m jsonrpc.Message) {
	id := b.requests.cancel(jsonrpc.Field(m.Params, "requestId"))
	if id == nil {
		return // the host has the response
	}
	b.store.end(id)
	if raw, ok := jsonrpc.Set(m.Raw, id, "params", "requestId"); ok {
		b.send(b.ctx, conn, mustParse(raw))
	}
	b.changed()
}

// fromServer handles a message of the server. request is the id of the request on whose
// stream it came, or nil.
func (b *bridge) fromServer(request []byte, m jsonrpc.Message) {
	if m.Kind == jsonrpc.Response {
		b.respond(m)
		return
	}
	from, ok := b.requests.origin(request)
	switch {
	case ok:
	case m.Kind == jsonrpc.Request && b.eras.modern.isUsed() && b.park(request, m):
		return // a modern host is asked when it comes back to the call
	default:
		b.mu.Lock()
		from.sink = b.sink
		b.mu.Unlock()
	}
	switch {
	case m.Kind == jsonrpc.Notification && m.Method == protocol.MethodProgress:
		raw, of := b.requests.progress(m)
		if raw == nil {
			return // no host waits for the request
		}
		m, from = mustParse(raw), of
	case m.Kind == jsonrpc.Notification:
		if raw := b.requests.subscribed(m); raw != nil {
			m = mustParse(raw)
		}
	}
	if !b.hold(from, m) {
		from.emit(m)
	}
}

// park keeps a question of the server until a modern host comes back to the request, or answers it with an error if too many
// are kept. It reports whether there is such a request.
func (b *bridge) park(request []byte, m jsonrpc.Message) bool {
	found, kept := b.requests.park(request, m)
	if found && !kept {
		b.start(func() { b.eras.modern.refuse([]jsonrpc.Message{m}) })
	}
	return found
}

// Bounds of the messages that are held for a host that is not ready.
const (
	maxHeld      = 1000     // messages
	maxHeldBytes = 32 << 20 // bytes
)

// respond handles the response to a request, with the id that the server has.
func (b *bridge) respond(m jsonrpc.Message) {
	if m.Result != nil {
		b.eras.legacy.serverBack(nil)
	}
	if r := b.requests.respond(m); r != nil {
		b.deliver(r)
		return
	}
	b.changed() // the request may be one that no host waits for
}

// deliver gives the response to a request to the host.
func (b *bridge) deliver(r *request) {
	m := mustParse(r.answer)
	switch {
	case m.Error != nil:
		if protocol.Opens(r.method) {
			m = b.explained(m)
		}
	case r.method == protocol.MethodInitialize:
		b.mu.Lock()
		b.era = legacyEra
		b.mu.Unlock()
	case r.method == protocol.MethodDiscover:
		b.discovered()
	}
	taken := r.from.emit(mustParse(m.WithID(r.hostID)))
	if r.method == protocol.MethodInitialize {
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

// explained returns the error response to the host's first request with advice for the user.
func (b *bridge) explained(m jsonrpc.Message) jsonrpc.Message {
	text := jsonrpc.String(jsonrpc.Field(m.Error, "message"))
	if b.explain == nil || text == "" {
		return m
	}
	more, err := json.Marshal(b.explain(text))
	if err != nil {
		return m
	}
	raw, _ := jsonrpc.Set(m.Raw, more, "error", "message")
	return protocol.Parsed(raw, m)
}

// mustParse parses a message that this program has made.
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
