// Command server is the server that the official MCP conformance suite tests: its whole fixture for
// revisions 2025-06-18, 2025-11-25 and 2026-07-28, over an official mcp.Server behind Holdfast's
// handler.
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
)

// drainTime bounds the wait for running calls after SIGTERM.
const drainTime = 5 * time.Second

func main() {
	listen := flag.String("listen", "127.0.0.1:3000", "address to listen on")
	streams := flag.Bool("streams", false, "answer every request with a stream, as holdfast serve --response sse does")
	flag.Parse()
	o := options()
	if *streams {
		o.Response = holdfast.ResponseSSE
	}
	if err := serve(*listen, o); err != nil {
		slog.Error("conformance server failed", "error", err)
		os.Exit(1)
	}
}

func serve(addr string, o *holdfast.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	fixture := newServer()
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return fixture }, o)
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)

	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	slog.Info("conformance server is listening", "url", fmt.Sprintf("http://%s/mcp", ln.Addr()))

	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(handler.Listener(ln)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	return errors.Join(handler.Shutdown(drain), server.Shutdown(drain))
}
