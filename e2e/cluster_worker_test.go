package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
	_ "holdfast/engine/file"
	_ "holdfast/engine/nats"
	_ "holdfast/engine/redis"
)

// The backend of a cluster's nodes is an MCP server with tools that leave a trace of each run,
// in files that all processes share.

type workArgs struct {
	ID    string `json:"id"`
	Steps int    `json:"steps"`
	MS    int    `json:"ms"`
}

// workServer returns a server with the tools
//
//	work  reports progress in steps steps within ms milliseconds
//	look  is work, annotated as retry-safe
//	ask      asks the user after that, and returns the answer
//	inquire  is ask, annotated as retry-safe
//	process  returns the id of its process
func workServer(traces string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "worker", Version: "1"}, nil)
	work := func(ctx context.Context, req *mcp.CallToolRequest, a workArgs) (*mcp.CallToolResult, any, error) {
		if err := trace(traces, a.ID); err != nil {
			return nil, nil, err
		}
		err := pace(ctx, req, a.Steps, time.Duration(a.MS)*time.Millisecond)
		return said("did " + a.ID), nil, err
	}
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, work)
	mcp.AddTool(server, &mcp.Tool{Name: "look", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, work)
	ask := func(ctx context.Context, req *mcp.CallToolRequest, a workArgs) (*mcp.CallToolResult, any, error) {
		if err := trace(traces, a.ID); err != nil {
			return nil, nil, err
		}
		if err := pace(ctx, req, a.Steps, time.Duration(a.MS)*time.Millisecond); err != nil {
			return nil, nil, err
		}
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Who is " + a.ID + "?", RequestedSchema: eraQuestion.RequestedSchema})
		if err != nil {
			return nil, nil, err
		}
		return said(fmt.Sprint(res.Content["name"])), nil, nil
	}
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, ask)
	mcp.AddTool(server, &mcp.Tool{Name: "inquire", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, ask)
	mcp.AddTool(server, &mcp.Tool{Name: "process"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return said(fmt.Sprint("process ", os.Getpid())), nil, nil
	})
	return server
}

// trace writes that a call has begun to run.
func trace(dir, id string) error {
	f, err := os.OpenFile(filepath.Join(dir, id), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(".")
	return errors.Join(err, f.Close())
}

// pace reports progress from 1 to steps, spread over the time over.
func pace(ctx context.Context, req *mcp.CallToolRequest, steps int, over time.Duration) error {
	for i := range steps {
		select {
		case <-time.After(over / time.Duration(steps)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := progress(ctx, req, float64(i+1)); err != nil {
			return err
		}
	}
	if steps > 0 {
		return nil
	}
	select {
	case <-time.After(over):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// libraryNode makes the test binary a node that is not holdfast serve but a program that uses
// the library: its sessions need no processes, and the header User names the principal of a
// request. It has the flags of holdfast serve that the tests use.
func libraryNode(args []string) {
	fs := flag.NewFlagSet("node", flag.ExitOnError)
	listen := fs.String("listen", "", "")
	admin := fs.String("admin", "", "")
	store := fs.String("store", "", "")
	drain := fs.Duration("drain", 30*time.Second, "")
	role := fs.String("role", string(holdfast.RoleBoth), "")
	o := &holdfast.Options{Eras: holdfast.ErasBoth, Principal: func(r *http.Request) string { return r.Header.Get("User") }}
	fs.DurationVar(&o.Retry, "retry", time.Second, "")
	fs.DurationVar(&o.SessionTTL, "session-ttl", 30*time.Minute, "")
	fs.DurationVar(&o.Keep, "keep", 10*time.Minute, "")
	fs.DurationVar(&o.TaskAfter, "task-after", 0, "")
	fs.DurationVar(&o.MaxWait, "max-wait", 0, "")
	_ = fs.Parse(args) // exits
	o.Role = holdfast.Role(*role)
	err := serveLibrary(*listen, *admin, *store, *drain, fs.Arg(0), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveLibrary(listen, admin, storeURL string, drain time.Duration, traces string, o *holdfast.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := engine.Open(ctx, storeURL, engine.Options{Keep: o.Keep, SessionTTL: o.SessionTTL})
	for ; err != nil; store, err = engine.Open(ctx, storeURL, engine.Options{Keep: o.Keep, SessionTTL: o.SessionTTL}) {
		fmt.Fprintln(os.Stderr, "the store can't be reached, trying again:", err) // as holdfast serve does
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	o.Store = store
	work := workServer(traces)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server {
		if _, err := os.Stat(filepath.Join(traces, panicFile)); err == nil {
			panic("hunter2")
		}
		return work
	}, o)
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(handler.Listener(l)) }()
	if admin != "" {
		side, err := net.Listen("tcp", admin)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "readyz=http://%s/readyz\n", side.Addr())
		probes := http.NewServeMux()
		probes.HandleFunc("/", stats)
		probes.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			if ctx.Err() != nil || handler.Ready() != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		other := &http.Server{Handler: probes, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = other.Serve(side) }()
	}
	fmt.Fprintf(os.Stderr, "Serving MCP at http://%s/mcp\nTry it: it is a test\n", l.Addr())
	<-ctx.Done()
	bounded, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	time.Sleep(min(drain/6, time.Second)) // until the load balancer has noticed
	go func() {
		<-handler.Leaving()
		_ = l.Close()
	}()
	if err := handler.Shutdown(bounded); err != nil {
		fmt.Fprintln(os.Stderr, "calls were cut short:", err)
	}
	last, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	return store.Close()
}

// stats answers with the goroutines and heap bytes of this process, after a garbage collection.
func stats(w http.ResponseWriter, _ *http.Request) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(w, "%d %d", runtime.NumGoroutine(), m.HeapAlloc)
}
