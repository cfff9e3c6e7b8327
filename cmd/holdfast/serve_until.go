package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

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
		// What a connection of HTTP/2 may keep that no request has read yet; the defaults are 1 MiB each.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
		},
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	var cause error
	select {
	case cause = <-failed:
	case <-ctx.Done():
	case <-admin.drain:
	}
	if cause == nil {
		slog.Info("draining", "for", drain)
	}
	// A second signal ends draining.
	impatient, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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

// protocols are those that are served: HTTP/1.1, and HTTP/2, which some proxies and meshes speak to their servers without
// TLS and without asking before.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}
