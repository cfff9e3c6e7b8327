// Package bridge is holdfast connect: it carries messages between a host, which speaks
// stdio, and a server.
package bridge

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Options say how a bridge reaches its server, and what it keeps.
type Options struct {
	// Client are the options of the connection to the server.
	Client client.Options
	// Transport is the word that the user has for Client.Transport: "auto", "http", "sse" or
	// "ws". The names of the state files depend on it.
	Transport string
	// State is the directory for state files; "": nothing is kept.
	State string
}

// Run carries messages between a host and the server at a URL until the host leaves, or ctx
// ends.
func Run(ctx context.Context, to string, in io.Reader, out io.Writer, opts *Options) error {
	// A host that does not listen any more must not end this before it has saved.
	signal.Ignore(syscall.SIGPIPE)
	h := &host{w: out, gone: make(chan struct{})}
	b := newBridge(to, opts.Client, h)
	if opts.State != "" {
		b.slots = newSlots(opts.State, to, opts.Transport, opts.Client.Header)
		b.claims = b.slots.claims()
		defer b.claims.leave()
	}
	ended := make(chan error, 1)
	go func() { ended <- b.read(ctx, in) }()
	var err error
	select {
	case err = <-ended:
		b.leave(ctx, true)
	case <-h.gone:
		b.leave(ctx, false)
	case <-ctx.Done():
		b.leave(ctx, false)
	}
	return err
}

// A bridge carries messages between a host and a server. To the server the host's
// requests have ids of the bridge's own, so that a host which was restarted, and
// counts from 1 again, does not use an id that is in flight.
//
// One goroutine calls fromHost, one fromServer.
type bridge struct {
	url    string
	opts   client.Options
	host   *host
	slots  *slots  // nil: nothing is kept
	claims *claims // nil too then

	began  time.Time
	prefix string // of the ids
	dirty  chan struct{}
	hurry  atomic.Bool   // what changes is to be written down there and then
	opened chan struct{} // closed when the host's first initialize has its answer
	open   sync.Once
	stop   chan struct{} // closed when the bridge ends
	work   sync.WaitGroup

	mu       sync.Mutex
	n        int // ids used
	conn     *client.Conn
	slot     *slot              // nil: nothing is kept
	print    fingerprint        // of the host's initialize request
	restored bool               // the session is one that was there
	ready    bool               // the host has sent notifications/initialized
	held     []jsonrpc.Message  // for a host that has not
	flights  map[string]*flight // by their ids at the server
	asked    map[string]*flight // those that the host waits for, by its ids
	idle     chan struct{}      // closed when there are none; nil: nobody waits
	giving   int                // answers that are being written to the host
}

// A flight is a request in flight.
type flight struct {
	id     []byte // at the server
	host   []byte // the host's; nil: an orphan, whose host was another process
	token  []byte // the host's progress token, or nil
	method string
	inner  chan jsonrpc.Message // takes the answer to a request of our own

	// Of what must outlive this process.
	print  fingerprint       // what the request asks for; none: it need not
	place  *client.CallState // where it is to be found
	left   time.Time         // since when it is an orphan
	answer []byte            // that an orphan was given
}

func newBridge(url string, opts client.Options, h *host) *bridge {
	b := &bridge{
		url: url, opts: opts, host: h, began: time.Now(),
		prefix: strings.ToLower(rand.Text()[:8]), dirty: make(chan struct{}, 1),
		opened: make(chan struct{}), stop: make(chan struct{}),
		flights: make(map[string]*flight), asked: make(map[string]*flight),
	}
	b.opts.Changed = b.changed
	b.work.Go(b.saving)
	return b
}

// connect makes the connection, if there is none: it goes on from a state, if that
// is not nil. It is called by the one goroutine that calls fromHost.
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
	b.conn = conn
	b.mu.Unlock()
	if old != nil {
		old.Detach() // it was not spoken over yet, but to find out what to speak
	}
	b.work.Go(func() {
		for {
			m, err := conn.Receive(context.Background())
			if err != nil {
				return
			}
			b.fromServer(m)
		}
	})
	return conn, nil
}

// fromHost takes a message of the host.
func (b *bridge) fromHost(ctx context.Context, m jsonrpc.Message) {
	b.mu.Lock()
	conn, opened := b.conn, !b.print.none()
	b.mu.Unlock()
	switch {
	case m.Method == "initialize" && m.Kind == jsonrpc.Request && !opened:
		b.initialize(ctx, m)
		return
	case conn == nil && m.Method == "ping" && m.Kind == jsonrpc.Request:
		b.host.write(jsonrpc.AppendResult(nil, m.ID, []byte("{}")))
		return
	case conn == nil && m.Kind != jsonrpc.Request:
		return // it means nothing yet
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
		b.cancelled(ctx, conn, m)
	default:
		b.send(ctx, conn, m)
	}
}

func (b *bridge) send(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	if err := conn.Send(ctx, m); err != nil && ctx.Err() == nil {
		slog.Warn("message not sent", "method", m.Method, "error", err)
	}
}

// initialize begins a session, or goes on with the one that the same host had.
func (b *bridge) initialize(ctx context.Context, m jsonrpc.Message) {
	// To resume requests is what this is there for: the host is not to do it too.
	params := withoutIn(m.Params, "capabilities", "resumableRequests")
	print := fingerprintOf(m.Method, params)
	var slot *slot
	var old *saved
	if b.slots != nil {
		var err error
		if slot, old, err = b.slots.take(print); err != nil {
			slog.Warn("nothing is kept: a restart begins a new session", "error", err)
		}
		b.claims.sweep()
	}
	b.mu.Lock()
	b.print, b.slot = print, slot
	b.mu.Unlock()
	if old == nil || !b.goOn(ctx, m, old) {
		conn, err := b.connect(nil)
		if err != nil {
			b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))
			return
		}
		b.request(ctx, conn, mustParse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params)))
	}
	// Not every host waits for the answer before it says more.
	select {
	case <-b.opened:
	case <-ctx.Done():
	case <-b.host.gone:
	}
}

// newID returns an id for a request. b.mu is held.
func (b *bridge) newID() []byte {
	b.n++
	return fmt.Appendf(nil, `"%s-%d"`, b.prefix, b.n)
}

// request takes a request of the host.
func (b *bridge) request(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	f := &flight{host: m.ID, method: m.Method, token: jsonrpc.Field(m.Params, "_meta", "progressToken")}
	if b.fromAnother(conn, f, m) {
		return
	}
	raw, again := b.enter(f, m)
	switch {
	case again != nil:
		b.give(again, again.answer) // it ran for a process before this one
		return
	case raw == nil && f.id == nil:
		b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "a request with this id is in flight"))
		return
	case raw == nil:
		return // it is in flight since before this process began
	}
	b.hurry.Store(!f.print.none()) // as soon as it is sent it may run
	err := conn.Send(ctx, mustParse(raw))
	b.hurry.Store(false)
	if err != nil {
		b.give(f, jsonrpc.AppendError(nil, f.id, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err)))
	}
}

// fromAnother goes on with a call that another window of the host made, before both
// were closed. It says whether there is one.
func (b *bridge) fromAnother(conn *client.Conn, f *flight, m jsonrpc.Message) bool {
	if b.slots == nil || !keeps(m.Method) || time.Since(b.began) > claimFor {
		return false
	}
	print, key := fingerprintOf(m.Method, m.Params), string(jsonrpc.Key(m.ID))
	b.mu.Lock()
	own := b.asked[key] != nil || b.slot == nil || b.orphan(print) != nil
	slot := b.slot
	b.mu.Unlock()
	if own {
		return false
	}
	old := b.slots.claim(slot, &wanted{print: b.print, request: print, take: b.claims.take, keep: func(old *savedFlight) {
		f.id, f.print, f.place, f.answer = old.ID, print, old.Place, old.Answer
		b.mu.Lock()
		b.flights[string(f.id)], b.asked[key] = f, f
		b.mu.Unlock()
		b.save() // before it is kept nowhere else
	}})
	if old == nil {
		return false
	}
	slog.Info("a call goes on that was made before, by another", "method", m.Method)
	if old.Answer != nil {
		b.give(f, old.Answer)
		return true
	}
	if err := conn.GoOn(*old.Place); err != nil {
		b.give(f, jsonrpc.AppendError(nil, f.id, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", err)))
	}
	return true
}

// enter puts a request on record. It returns the message for the server, if there
// is to be one, or an orphan of the same request that has its answer.
func (b *bridge) enter(f *flight, m jsonrpc.Message) (raw []byte, answered *flight) {
	key := string(jsonrpc.Key(m.ID))
	var print fingerprint
	if keeps(m.Method) {
		print = fingerprintOf(m.Method, m.Params)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked[key] != nil {
		return nil, nil
	}
	if b.slot != nil {
		f.print = print
	}
	if o := b.orphan(f.print); o != nil {
		slog.Info("a call goes on that was made before", "method", m.Method)
		o.host, o.token, o.left = f.host, f.token, time.Time{}
		b.asked[key] = o
		if f.id = o.id; o.answer != nil {
			return nil, o
		}
		return nil, nil
	}
	f.id = b.newID()
	raw = m.WithID(f.id)
	if f.token != nil {
		if mapped, ok := jsonrpc.Set(raw, f.id, "params", "_meta", "progressToken"); ok {
			raw = mapped
		}
	}
	b.flights[string(f.id)], b.asked[key] = f, f
	return raw, nil
}

// over notes that nobody is to go on with a call.
func (b *bridge) over(f *flight) {
	if b.claims != nil && !f.print.none() {
		b.claims.done(f.id)
	}
}

// give answers a request of the host.
func (b *bridge) give(f *flight, raw []byte) {
	m := mustParse(raw)
	b.mu.Lock()
	id := f.host
	// The host may use its id again as soon as it has the answer.
	delete(b.asked, string(jsonrpc.Key(id)))
	b.giving++
	b.mu.Unlock()
	taken := b.host.write(m.WithID(id))
	if f.method == "initialize" {
		b.open.Do(func() { close(b.opened) })
	}
	b.mu.Lock()
	if taken || f.print.none() {
		delete(b.flights, string(f.id))
		b.over(f)
	} else {
		f.host, f.left, f.answer = nil, time.Now(), raw
	}
	if len(b.asked) == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
	b.mu.Unlock()
	if !f.print.none() {
		b.save() // before anybody could be given this again
	}
	b.mu.Lock()
	b.giving--
	b.mu.Unlock()
}

// initialized takes the word that the host is ready. The server is told unless it
// was told before.
func (b *bridge) initialized(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	if !b.restored || !conn.State().Ready {
		b.send(ctx, conn, m)
	}
	for {
		b.mu.Lock()
		held := b.held
		b.held, b.ready = nil, len(held) == 0 // nothing may overtake these
		b.mu.Unlock()
		if len(held) == 0 {
			return
		}
		for _, m := range held {
			b.host.write(m.Raw)
		}
	}
}

// cancelled takes the word that the host wants a request's answer no more.
func (b *bridge) cancelled(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	key := string(jsonrpc.Key(cancelledRequest(m)))
	b.mu.Lock()
	f := b.asked[key]
	if f != nil {
		delete(b.asked, key)
		delete(b.flights, string(f.id))
	}
	b.mu.Unlock()
	if f == nil {
		return // it has its answer
	}
	b.over(f)
	if raw, ok := jsonrpc.Set(m.Raw, f.id, "params", "requestId"); ok {
		b.send(ctx, conn, mustParse(raw))
	}
	b.changed()
}

// fromServer takes a message of the server.
func (b *bridge) fromServer(m jsonrpc.Message) {
	if m.Kind == jsonrpc.Response {
		b.answered(m)
		return
	}
	if m.Method == "notifications/progress" {
		raw := b.progress(m)
		if raw == nil {
			return // of a call that nobody here has made
		}
		m.Raw = raw
	}
	if m.Kind == jsonrpc.Notification {
		m.Raw = b.subscribed(m)
	}
	b.mu.Lock()
	if b.restored && !b.ready {
		size := len(m.Raw)
		for _, one := range b.held {
			size += len(one.Raw)
		}
		if len(b.held) < mostHeld && size <= mostHeldBytes {
			b.held = append(b.held, m)
		}
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	b.host.write(m.Raw)
}

// What is kept for a host that is not ready: so many messages at the most, and so many
// bytes.
const (
	mostHeld      = 1000
	mostHeldBytes = 32 << 20
)

// answered gives a response to who waits for it.
func (b *bridge) answered(m jsonrpc.Message) {
	b.mu.Lock()
	f := b.flights[string(m.ID)]
	orphan := f != nil && f.host == nil && f.inner == nil
	if orphan {
		f.answer = m.Raw
	}
	b.mu.Unlock()
	switch {
	case f == nil: // it was cancelled
	case f.inner != nil:
		f.inner <- m // has place for it
	case orphan:
		b.changed()
	default:
		b.give(f, m.Raw)
	}
}

// progress is a progress notification as the host wants it, or nil.
func (b *bridge) progress(m jsonrpc.Message) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.flights[string(jsonrpc.Key(jsonrpc.Field(m.Params, "progressToken")))]
	if f == nil || f.host == nil || f.token == nil {
		return nil
	}
	raw, _ := jsonrpc.Set(m.Raw, f.token, "params", "progressToken")
	return raw
}

// subscription is where a notification says of which request it is a part
// (2026-07-28, subscriptions/listen).
const subscription = "io.modelcontextprotocol/subscriptionId"

// subscribed is a notification under the host's id of its subscription.
func (b *bridge) subscribed(m jsonrpc.Message) []byte {
	id := jsonrpc.Field(m.Params, "_meta", subscription)
	if id == nil {
		return m.Raw
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flights[string(jsonrpc.Key(id))]; f != nil && f.host != nil {
		if raw, ok := jsonrpc.Set(m.Raw, f.host, "params", "_meta", subscription); ok {
			return raw
		}
	}
	return m.Raw
}

// cancelledRequest returns the id of the request that a notifications/cancelled names.
func cancelledRequest(m jsonrpc.Message) []byte { return jsonrpc.Field(m.Params, "requestId") }

// mustParse parses a message that was made here.
func mustParse(raw []byte) jsonrpc.Message {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		panic(err) // a mistake in this program
	}
	return m
}
