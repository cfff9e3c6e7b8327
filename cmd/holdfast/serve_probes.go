package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast/internal/server/guard"
)

// admin answers probes: whether the process is alive (/healthz), and whether it is ready for
// clients (/readyz). Figures are beside them (serve_metrics.go).
type admin struct {
	server *http.Server // nil: there are no probes
	mux    *http.ServeMux
	guards *guard.Guard
	audit  *auditLog     // or nil
	traces *tracing      // or nil
	addr   string        // that it listens on
	drain  chan struct{} // closed when an operator wants the node to drain
	failed chan error
	ready  atomic.Pointer[func() error]
	probed atomic.Pointer[time.Time] // when /readyz was last requested; nil: never
	ending atomic.Bool
	visit  atomic.Pointer[func()] // called when a browser opens the page; nil: no function is
}

// A load balancer that probes needs time to notice that the process is not ready: at most
// maxNotice. If nothing has probed for probedWithin, there is no load balancer.
const (
	maxNotice    = 5 * time.Second
	probedWithin = 30 * time.Second
)

var errDraining = errors.New("draining")

// retire makes the process not ready. If there are probes, it waits for a part of the drain
// time, so that a load balancer notices.
func (a *admin) retire(ctx context.Context, drain time.Duration) {
	a.ending.Store(true)
	if probed := a.probed.Load(); probed == nil || time.Since(*probed) > probedWithin {
		return
	}
	t := time.NewTimer(min(drain/6, maxNotice))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// errStarting says that the process is not ready yet.
var errStarting = errors.New("starting")

// listenAdmin starts to answer probes at an address; "": there are none. If elsewhere is set and the
// address is taken, it takes a free port. hosts are allowed in the Host of requests to a loopback address.
func listenAdmin(addr string, elsewhere bool, hosts []string) (*admin, error) {
	a := &admin{failed: make(chan error, 1), drain: make(chan struct{})}
	if addr == "" {
		return a, nil
	}
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && elsewhere {
		host, _, _ := net.SplitHostPort(addr)
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, notListening("--admin", addr, err)
	}
	mux := http.NewServeMux()
	a.mux, a.addr, a.guards = mux, l.Addr().String(), guard.New(nil, hosts, nil)
	mux.Handle("GET /healthz", a.guard(func(w http.ResponseWriter, _ *http.Request) { answerProbe(w, nil) }))
	mux.Handle("GET /readyz", a.guard(func(w http.ResponseWriter, _ *http.Request) { answerProbe(w, a.isReady()) }))
	a.server = &http.Server{
		Handler:           http.HandlerFunc(a.serve),
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          newHTTPLog(),
	}
	go func() { a.failed <- a.server.Serve(l) }()
	return a, nil
}

// place is the address for a browser on this machine: a browser cannot open the address of all interfaces.
func (a *admin) place() string {
	at, err := netip.ParseAddrPort(a.addr)
	if err != nil || !at.Addr().IsUnspecified() {
		return a.addr
	}
	return net.JoinHostPort("localhost", strconv.Itoa(int(at.Port())))
}

// guard refuses requests of a web page with a name that leads to a loopback address of this machine (DNS rebinding).
func (a *admin) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := a.guards.CheckProbe(r); refusal != nil {
			http.Error(w, refusal.Message, http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

// serve answers a request.
func (a *admin) serve(w http.ResponseWriter, r *http.Request) {
	a.mux.ServeHTTP(w, r)
	if visit := a.visit.Load(); visit != nil && r.URL.Path == "/" && r.Method == http.MethodGet {
		(*visit)()
	}
}

// watch sets the function that knows whether the process is ready.
func (a *admin) watch(ready func() error) { a.ready.Store(&ready) }

func (a *admin) isReady() error {
	now := time.Now()
	a.probed.Store(&now)
	if a.ending.Load() {
		return errDraining
	}
	if ready := a.ready.Load(); ready != nil {
		return (*ready)()
	}
	return errStarting
}

func answerProbe(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error()
	}
	_, _ = io.WriteString(w, text+"\n")
}

// close ends the probes, the audit and the traces.
func (a *admin) close() error {
	observed := errors.Join(a.audit.close(), a.traces.close())
	if a.server == nil {
		return observed
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close()
	}
	if err := <-a.failed; !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(fmt.Errorf("--admin: %w", err), observed)
	}
	return observed
}
