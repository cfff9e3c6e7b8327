// Command server serves the tools of the benchmarks through Holdfast's peers. Its paths depend on
// the kind:
//
//	floor    see package floor
//	light    see floor.NewLight
//	go-sdk   /mcp-json, /mcp-stateless, /mcp-sse, and /mcp-store with an event store
//	mcp-go   /mcp, and /mcp-store with an event store
//	legacy   /mcp, for clients up to 2025-11-25 only; with -stdio on stdin and stdout
//	modern   the same for clients of 2026-07-28 only
//
// and GET /bench/stats[?gc=1] with each.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/bench/floor"
	"holdfast/bench/tools"
)

// storeBytes bounds the go-sdk's event store: it is enough for a whole comparison, so that no
// stream is replayed in part.
const storeBytes = 1 << 30

func main() {
	listen := flag.String("listen", "127.0.0.1:8082", "address to listen on")
	kind := flag.String("kind", "floor", "floor, light, go-sdk, mcp-go, legacy or modern")
	stdio := flag.Bool("stdio", false, "serve stdin and stdout: legacy and modern")
	flag.Parse()
	if *stdio {
		if err := era(*kind).serveStdio(); err != nil {
			slog.Error("peer failed", "error", err)
			os.Exit(1)
		}
		return
	}
	if err := serve(*listen, *kind); err != nil {
		slog.Error("peer failed", "error", err)
		os.Exit(1)
	}
}

func serve(addr, kind string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bench/stats", tools.ServeStats)
	switch kind {
	case "floor":
		mux.Handle("/", floor.New())
	case "light":
		mux.Handle("/", floor.NewLight())
	case "go-sdk":
		s := tools.NewServer()
		get := func(*http.Request) *mcp.Server { return s }
		store := mcp.NewMemoryEventStore(nil)
		store.SetMaxBytes(storeBytes)
		mux.Handle("/mcp-json", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true}))
		mux.Handle("/mcp-stateless", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
		mux.Handle("/mcp-sse", mcp.NewStreamableHTTPHandler(get, nil))
		mux.Handle("/mcp-store", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{EventStore: store}))
	case "mcp-go":
		addMCPGo(mux)
	case string(legacy), string(modern):
		mux.Handle("/mcp", era(kind))
	default:
		return fmt.Errorf("no kind is called %q", kind)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	slog.Info("peer is listening", "url", fmt.Sprintf("http://%s/", ln.Addr()), "kind", kind)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(ln)
}
