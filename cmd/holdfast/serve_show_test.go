package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// The demo makes one call when a user opens its live page. The call's connection is cut twice, and the call still ends.
func TestShow(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 100) // receives for each connection of the client that has ended
	cutBy := func(ctx context.Context) error {
		select {
		case <-closed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var began, ended atomic.Int32
	done := make(chan struct{})
	server := mcp.NewServer(&mcp.Implementation{Name: "demo"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, args countArgs) (*mcp.CallToolResult, any, error) {
		began.Add(1)
		for i := 1; i <= args.To; i++ {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i)})
			if err == nil && (i == 5 || i == 13) {
				err = cutBy(ctx) // the server sends no more messages before the cut
			}
			if err != nil {
				return nil, nil, err
			}
		}
		ended.Add(1)
		close(done)
		return text("done"), nil, nil
	})
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}}
	go func() { _ = served.Serve(handler.Listener(l)) }()
	t.Cleanup(func() {
		_ = served.Close()
		_ = handler.Shutdown(context.Background())
	})
	page := mcptest.Must(listenAdmin("127.0.0.1:0", false, nil))(t)
	t.Cleanup(func() { _ = page.close() })

	var out bytes.Buffer
	f := &serveFlags{greeting: &out, demo: true, path: "/", role: roleFlags{choice{value: "both"}}}
	stop := f.show(t.Context(), page, l.Addr())
	defer stop()
	if !strings.Contains(out.String(), "Open http://"+page.addr+"/ in a browser") {
		t.Errorf("it says %q", out.String())
	}
	for range 3 { // one call at a time
		res, err := http.Get("http://" + page.addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	select {
	case <-done:
	case <-time.After(50 * time.Second):
		t.Fatalf("the call has not ended: %d began", began.Load())
	}
	stop()
	if began.Load() != 1 || ended.Load() != 1 {
		t.Errorf("%d calls began, %d ended, want one", began.Load(), ended.Load())
	}
}

// The page of the demo is served without a flag, also where its port is taken, but not if a flag refuses it.
func TestDemoPage(t *testing.T) {
	t.Parallel()
	first := mcptest.Must((&serveFlags{ownPage: true}).listenAdmin())(t)
	t.Cleanup(func() { _ = first.close() })
	second := mcptest.Must((&serveFlags{ownPage: true}).listenAdmin())(t)
	t.Cleanup(func() { _ = second.close() })
	if first.addr == "" || second.addr == "" || first.addr == second.addr {
		t.Errorf("pages at %q and %q, want one each", first.addr, second.addr)
	}
	if first.place() != first.addr {
		t.Errorf("the page at %s is told of as %s", first.addr, first.place())
	}
	all := mcptest.Must((&serveFlags{admin: ":0"}).listenAdmin())(t)
	t.Cleanup(func() { _ = all.close() })
	if !strings.HasPrefix(all.place(), "localhost:") { // a browser cannot open [::]
		t.Errorf("the page at %s is told of as %s", all.addr, all.place())
	}
	none, err := (&serveFlags{demo: true}).listenAdmin()
	if err != nil || none.server != nil {
		t.Errorf("a page at %q, %v, want none", none.addr, err)
	}
}
