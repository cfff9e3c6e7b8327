// Command server is the server that the benchmarks measure: three tools behind Holdfast.
//
//	/mcp        answers as Holdfast does by default
//	/mcp-json   JSON wherever the protocol allows it
//	/mcp-sse    always an event stream that can be resumed
//	GET /bench/stats[?gc=1]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/tools"
)

// drainTime bounds the wait for running calls after SIGTERM.
const drainTime = 5 * time.Second

// taskAfter is how old a call is when it becomes a task, if its client knows tasks.
const taskAfter = 20 * time.Millisecond

func main() {
	listen := flag.String("listen", "127.0.0.1:8081", "address to listen on")
	backend := flag.String("backend", "sdk", "what answers: sdk (an official mcp.Server) or message (raw JSON-RPC)")
	retry := flag.Duration("retry", 0, "how long clients are told to wait before they come back; 0: Holdfast's default")
	observed := flag.Bool("metrics", false, "count for Prometheus, and write an audit to a file that is removed at once")
	sampled := flag.Float64("traces", 0, "the part of calls whose spans are sent, by OTLP, to a receiver in this process; 0: there are none")
	flag.Parse()
	if err := serve(*listen, *backend, *retry, *observed, *sampled); err != nil {
		slog.Error("bench server failed", "error", err)
		os.Exit(1)
	}
}

func serve(addr, backend string, retry time.Duration, observed bool, sampled float64) error {
	newHandler, err := handlers(backend)
	if err != nil {
		return err
	}
	observe := func(*holdfast.Options, string) {}
	if observed {
		var end func()
		if observe, end, err = tools.Observe(); err != nil {
			return err
		}
		defer end()
	}
	traced := func(*holdfast.Options) {}
	if sampled > 0 {
		var end func()
		if traced, end, err = tools.Trace(sampled); err != nil {
			return err
		}
		defer end()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	mux := http.NewServeMux()
	mux.HandleFunc("GET /bench/stats", tools.ServeStats)
	var all []*holdfast.Handler
	for path, response := range map[string]holdfast.Response{
		"/mcp":      holdfast.ResponseAuto,
		"/mcp-json": holdfast.ResponseJSON,
		"/mcp-sse":  holdfast.ResponseSSE,
	} {
		o := &holdfast.Options{Response: response, Retry: retry, TaskAfter: taskAfter, Eras: holdfast.ErasBoth}
		observe(o, path)
		traced(o)
		h := newHandler(o)
		mux.Handle(path, h)
		all = append(all, h)
	}

	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	slog.Info("bench server is listening", "url", fmt.Sprintf("http://%s/mcp", ln.Addr()), "backend", backend)

	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var errs []error
	for _, h := range all {
		errs = append(errs, h.Shutdown(drain))
	}
	return errors.Join(append(errs, server.Shutdown(drain))...)
}

// handlers returns a function that makes a handler over the backend.
func handlers(backend string) (func(*holdfast.Options) *holdfast.Handler, error) {
	switch backend {
	case "sdk":
		s := tools.NewServer()
		return func(o *holdfast.Options) *holdfast.Handler {
			return holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, o)
		}, nil
	case "message":
		b := message.New(message.HandlerFunc(tools.Answer))
		return func(o *holdfast.Options) *holdfast.Handler {
			return holdfast.NewBackendHandler(b, o)
		}, nil
	}
	return nil, fmt.Errorf("no backend is called %q", backend)
}
