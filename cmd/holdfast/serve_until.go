package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"holdfast"
	"holdfast/internal/server/watch"
)

// serveUntil serves until ctx ends. Then it drains: clients that only listen are told to
// reconnect later, and calls in flight have a time to finish.
func serveUntil(ctx context.Context, l net.Listener, mux http.Handler, handler *holdfast.Handler, admin *admin, drain time.Duration) error {
	var leaving atomic.Bool
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if leaving.Load() {
				// The next requests are for another node. Idle connections stay open: a request may
				// be on its way.
				w.Header().Set("Connection", "close")
			}
			mux.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          newHTTPLog(),
		Protocols:         protocols(),
		ConnState:         watch.State,
		// Bounds of the bytes of an HTTP/2 connection that no request has read yet; the defaults are 1 MiB each.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
		},
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	notify(daemon.SdNotifyReady)
	var cause error
	select {
	case cause = <-failed:
	case <-ctx.Done():
	case <-admin.drain:
	}
	if cause == nil {
		slog.Info("draining", "for", drain)
	}
	notify(daemon.SdNotifyStopping)
	impatient, stop := untilNextSignal(ctx, sameSignal)
	defer stop()
	bounded, cancel := context.WithTimeout(impatient, drain)
	defer cancel()
	if cause == nil {
		admin.retire(bounded, drain)
	}
	leaving.Store(true)
	drained := make(chan struct{})
	go func() {
		select {
		case <-handler.Leaving(): // a load balancer without probes notices this
			_ = l.Close()
		case <-drained:
		}
	}()
	switch err := handler.Shutdown(bounded); {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // calls that are cut short are logged by their names
		slog.Info("the time to drain is over: clients are disconnected", "drain", drain)
	case err != nil:
		slog.Warn("shutting down", "error", err)
	}
	close(drained)
	last, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		_ = server.Close()
	}
	slog.Info("stopped")
	return cause
}

// sameSignal is how long after a signal the same one does not count as a second: npm passes on a signal that the terminal has
// already sent to the whole group of processes.
const sameSignal = 300 * time.Millisecond

// untilNextSignal returns a context that the next signal ends, and with it draining. The first signal has ended before; the same signal
// does not count again within same.
func untilNextSignal(before context.Context, same time.Duration) (ctx context.Context, stop func()) {
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for {
			select {
			case s := <-signals:
				// The cause that signal.NotifyContext gives has the name of the signal, and nothing else has it.
				first := context.Cause(before)
				if first == nil || !strings.HasPrefix(first.Error(), s.String()+" ") || time.Since(began) >= same {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}

// protocols returns the protocols that are served: HTTP/1.1, and HTTP/2, which some proxies and meshes speak to their
// servers without TLS and without asking before.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}
