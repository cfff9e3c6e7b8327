package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
)

// demoPage is the address of the demo's live page, unless --admin gives another. If it is taken,
// the page is at a free port.
const demoPage = "127.0.0.1:9090"

// listenAdmin listens at the address of --admin, or at that of the demo's page.
func (f *serveFlags) listenAdmin() (*admin, error) {
	if f.ownPage {
		return listenAdmin(demoPage, true, f.opts.AllowedHosts)
	}
	return listenAdmin(f.admin, false, f.opts.AllowedHosts)
}

// show makes the demo call a tool when a browser opens the page, and says so. The function that it
// returns ends that. There is no such call with authentication, TLS, --stateless or a --role.
func (f *serveFlags) show(ctx context.Context, admin *admin, at net.Addr) func() {
	tcp, ok := at.(*net.TCPAddr)
	if !f.demo || admin.server == nil || !ok || f.opts.Stateless || f.auth.policy != nil || f.tls.files != nil || f.role.value != "both" {
		return func() {}
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "localhost"
	}
	s := newShow(ctx, "http://"+net.JoinHostPort(host, strconv.Itoa(tcp.Port))+f.path)
	visit := s.visit
	admin.visit.Store(&visit)
	fmt.Fprintf(f.greeting, "Open http://%s/ in a browser: it shows a call whose connection is cut, and that survives\n", admin.place())
	return s.close
}

// A show makes a call when a browser opens the live page, unless its last call is in flight. The
// connection of the call is cut, and the call survives.
type show struct {
	url  string
	to   int           // the call counts so far
	step time.Duration // in steps of this
	cuts []cut

	ctx  context.Context
	end  context.CancelFunc
	busy atomic.Bool
	work sync.WaitGroup
}

// A cut says when the client loses its connection, and for how long the network is away then.
type cut struct {
	at   float64 // progress
	away time.Duration
}

// newShow returns a show at the endpoint of the demo. It ends with ctx, or with close.
func newShow(ctx context.Context, url string) *show {
	s := &show{url: url, to: 20, step: 600 * time.Millisecond, cuts: []cut{{5, 2 * time.Second}, {13, 2 * time.Second}}}
	s.ctx, s.end = context.WithCancel(ctx)
	return s
}

// visit begins a call, unless one is in flight. It does not wait.
func (s *show) visit() {
	if s.ctx.Err() != nil || !s.busy.CompareAndSwap(false, true) {
		return
	}
	s.work.Go(func() {
		defer s.busy.Store(false)
		if err := s.run(); err != nil && s.ctx.Err() == nil {
			slog.Warn("the call of the demo failed", "error", err)
		}
	})
}

// close ends the call, if there is one.
func (s *show) close() {
	s.end()
	s.work.Wait()
}

// run makes the call, as a client over connections that are cut.
func (s *show) run() error {
	ctx, stop := context.WithTimeout(s.ctx, time.Minute)
	defer stop()
	network := &wires{cuts: s.cuts, open: make(map[net.Conn]struct{})}
	hc := &http.Client{Transport: &http.Transport{DialContext: network.dial}}
	defer hc.CloseIdleConnections()
	transport := holdfast.NewClientTransport(s.url, &holdfast.ClientOptions{Options: client.Options{
		HTTPClient: hc, Transport: client.HTTP, Era: client.Legacy, NoListen: true, Logger: slog.New(slog.DiscardHandler),
	}})
	session, err := mcp.NewClient(&mcp.Implementation{Name: "holdfast-demo", Version: versionText()}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) {
			network.progress(p.Params.Progress)
		},
	}).Connect(ctx, transport, nil)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	params := &mcp.CallToolParams{Name: "count", Arguments: countArgs{To: s.to, DelayMS: int(s.step.Milliseconds())}}
	params.SetProgressToken("demo")
	_, err = session.CallTool(ctx, params)
	return err
}

// wires are the connections of a client, which can be cut.
type wires struct {
	mu   sync.Mutex
	cuts []cut     // to come
	away time.Time // until then nothing is reached
	open map[net.Conn]struct{}
}

var errAway = errors.New("the network is away")

// dial opens a connection, unless the network is away.
func (w *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.away) {
		_ = conn.Close()
		return nil, errAway
	}
	w.open[conn] = struct{}{}
	return conn, nil
}

// progress cuts all connections if the call has reached the next cut. The network is away for some
// time then.
func (w *wires) progress(at float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.cuts) == 0 || at < w.cuts[0].at {
		return
	}
	w.away = time.Now().Add(w.cuts[0].away)
	w.cuts = w.cuts[1:]
	for conn := range w.open {
		_ = conn.Close()
		delete(w.open, conn)
	}
}
