package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// admin answers those who watch over the process: whether it lives (/healthz), and
// whether clients should be sent to it (/readyz).
type admin struct {
	server *http.Server // nil if nobody watches
	failed chan error
	ready  atomic.Pointer[func() error]
	asked  atomic.Pointer[time.Time] // when somebody last asked whether clients should be sent here; nil: nobody has
	ending atomic.Bool
}

// How long clients are still sent to a process that says that it is not ready, at the
// most, and how long ago somebody must have asked for that to matter.
const (
	mostNotice = 5 * time.Second
	lastAsked  = 30 * time.Second
)

var errDraining = errors.New("draining")

// retire says from now on that the process is not ready, and waits for a part of the
// time that there is, if somebody asks, for them to notice.
func (a *admin) retire(ctx context.Context, drain time.Duration) {
	a.ending.Store(true)
	if asked := a.asked.Load(); asked == nil || time.Since(*asked) > lastAsked {
		return
	}
	t := time.NewTimer(min(drain/6, mostNotice))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// errStarting says that the process is not there yet.
var errStarting = errors.New("starting")

// listenAdmin begins to answer at an address; "": nowhere.
func listenAdmin(addr string) (*admin, error) {
	a := &admin{failed: make(chan error, 1)}
	if addr == "" {
		return a, nil
	}
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--admin %s is in use by another program: choose another address (port 0: any free one)", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("--admin %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answerProbe(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answerProbe(w, a.isReady()) })
	a.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	slog.Info("probes are answered", "healthz", "http://"+l.Addr().String()+"/healthz", "readyz", "http://"+l.Addr().String()+"/readyz")
	go func() { a.failed <- a.server.Serve(l) }()
	return a, nil
}

// watch says from where it is known, from now on, whether the process is ready.
func (a *admin) watch(ready func() error) { a.ready.Store(&ready) }

func (a *admin) isReady() error {
	now := time.Now()
	a.asked.Store(&now)
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

// close ends the answering.
func (a *admin) close() error {
	if a.server == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close()
	}
	if err := <-a.failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("--admin: %w", err)
	}
	return nil
}
