package servers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A shared server has one session for all clients. Equal ids and progress tokens of different clients are kept apart.
func TestShare(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"share": true, "maxProcesses": 1}}}, "holdfast": {"merge": true}}`, "a")
	const clients = 20
	var work sync.WaitGroup
	for i := range clients {
		work.Go(func() {
			path, tool := "/a/mcp", "slow"
			if i%4 == 0 {
				path, tool = "/mcp", "a_slow"
			}
			status, text, h := f.post(path, "", hello)
			if status != http.StatusOK || !strings.Contains(text, `"result"`) {
				t.Errorf("initialize: %d %s", status, text)
				return
			}
			id := h.Get("Mcp-Session-Id")
			f.post(path, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			_, text, _ = f.post(path, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":"same","method":"tools/call","params":{"name":%q,"arguments":{"Message":"m%d."},"_meta":{"progressToken":"tok"}}}`, tool, i))
			for _, want := range []string{fmt.Sprintf(`"message":"m%d."`, i), `"progressToken":"tok"`, fmt.Sprintf("a:slow:m%d.", i), `"id":"same"`} {
				if !strings.Contains(text, want) {
					t.Errorf("client %d: no %s in %s", i, want, text)
				}
			}
			if n := strings.Count(text, "data: {"); n != 2 {
				t.Errorf("client %d got %d messages: %s", i, n, text)
			}
		})
	}
	for range clients {
		select {
		case <-f.began:
		case <-time.After(patience):
			t.Fatal("not all calls have begun")
		}
	}
	f.release()
	work.Wait()
	if n := f.inits["a"].Load(); n != 1 {
		t.Errorf("the server was begun %d times", n)
	}
}

// A client of a shared server can cancel its own call. The call of another client goes on, also when a client ends its session.
func TestShareCancel(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"share": true}}}}`, "a")
	one, two := f.connect("/a/mcp"), f.connect("/a/mcp")
	got := make(chan string, 1)
	go func() { got <- call(t, two, "slow") }()
	<-f.began
	ctx, cancel := context.WithCancel(t.Context())
	own := make(chan error, 1)
	go func() {
		_, err := one.CallTool(ctx, &mcp.CallToolParams{Name: "slow", Arguments: message{"own"}})
		own <- err
	}()
	<-f.began
	cancel()
	if err := <-own; !errors.Is(err, context.Canceled) {
		t.Errorf("its own call: %v", err)
	}
	select {
	case <-f.ended:
	case <-time.After(patience):
		t.Fatal("the call is not cancelled at the server")
	}
	if r := call(t, one, "echo"); r != "a:echo:hi" {
		t.Error(r)
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	f.release()
	if r := <-got; r != "a:slow:hi" {
		t.Error(r)
	}
}

// A shared server does not offer features for which it would keep a state for all sessions in common.
func TestShareApart(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"share": true}}}}`, "a")
	one := f.connect("/a/mcp")
	if c := one.InitializeResult().Capabilities; c.Logging != nil || c.Resources != nil && c.Resources.Subscribe || c.Tools == nil { //nolint:staticcheck // logging is deprecated in later revisions
		t.Errorf("offers %+v", c)
	}
	if err := one.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "file:///x"}); err == nil || !strings.Contains(err.Error(), "shared by many clients") {
		t.Errorf("subscribing: %v", err)
	}
	if r := call(t, one, "echo"); r != "a:echo:hi" {
		t.Error(r)
	}
}
