package holdfast_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/cluster"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
	"holdfast/stream"
)

// TestNodes has two handlers that share a store. A tool gets its caller's
// identity also when it is called through the handler without the session.
func TestNodes(t *testing.T) {
	t.Parallel()
	engine := logtest.New(logtest.Options{})
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token, Scopes: []string{"tools"}, Expiration: time.Now().Add(time.Hour)}, nil
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "who", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "who"}, func(_ context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
		info := req.Extra.TokenInfo
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: info.UserID + " " + info.Scopes[0]}}}, nil, nil
	})
	var urls []string
	var handlers []*holdfast.Handler
	for range 2 {
		store := durable.New(engine.Open(), durable.Options{Logger: slog.New(slog.DiscardHandler)})
		defer store.Close()
		h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
			Store: store, Logger: slog.New(slog.DiscardHandler),
		})
		web := httptest.NewServer(auth.RequireBearerToken(verify, nil)(h))
		defer web.Close()
		urls, handlers = append(urls, web.URL), append(handlers, h)
	}
	post := func(url, id, body string) mcptest.Reply {
		t.Helper()
		return mcptest.Post(t, url, body, "Authorization", "Bearer alice", "Mcp-Session-Id", id)
	}
	id := post(urls[0], "", mcptest.Initialize("2025-11-25", "{}")).Session()
	post(urls[1], id, mcptest.Initialized)
	call := func(url string) {
		t.Helper()
		if r := post(url, id, mcptest.Call(1, "who", "{}")); r.Status != http.StatusOK || !strings.Contains(r.Body, "alice tools") {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	call(urls[0])
	call(urls[1])
	for i, h := range handlers {
		if err := h.Ready(); err != nil {
			t.Errorf("handler %d: %v", i, err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.Shutdown(ctx); err != nil {
			t.Errorf("handler %d: %v", i, err)
		}
		if h.Ready() == nil {
			t.Errorf("handler %d is ready after its end", i)
		}
		if i == 0 {
			call(urls[1]) // the session was taken over
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestStoreAway has the store of a handler away, full, and silent between nodes, for half an hour each. The log has a line when each state begins,
// less and less often while it lasts, and when it is over.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(f *faulty, on bool)
		want [3]string
	}{
		"away":   {func(f *faulty, on bool) { f.Cut(on) }, [3]string{"the store is away: ", "the store is still away: ", "the store is back"}},
		"full":   {func(f *faulty, on bool) { f.full.Store(on) }, [3]string{"the store is full: ", "the store is still full: ", "the store has room again"}},
		"silent": {func(f *faulty, on bool) { f.mute.Store(on) }, [3]string{"the store carries no messages between nodes: ", "the store still carries no messages", "the store carries messages between nodes again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				engine := &faulty{Handle: logtest.New(logtest.Options{}).Open()}
				store := durable.New(engine, durable.Options{Address: "redis://store:6379/0", Logger: slog.New(slog.DiscardHandler)})
				defer store.Close()
				h := holdfast.NewBackendHandler(message.New(nil), &holdfast.Options{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				time.Sleep(time.Minute)
				synctest.Wait()
				log.Reset()
				c.set(engine, true)
				time.Sleep(30 * time.Minute)
				c.set(engine, false)
				time.Sleep(time.Minute)
				synctest.Wait()
				all := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(all) != 4 || !strings.Contains(all[0], "level=WARN msg=\""+c.want[0]) || !strings.Contains(all[1], "level=WARN msg=\""+c.want[1]) ||
					!strings.Contains(all[2], "level=WARN msg=\""+c.want[1]) || !strings.Contains(all[3], "level=INFO msg=\""+c.want[2]) {
					t.Errorf("the log is\n%s", strings.Join(all, "\n"))
				}
				for _, line := range all {
					if !strings.Contains(line, "store=redis://store:6379/0") {
						t.Errorf("where is it? %s", line)
					}
				}
				if err := h.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A faulty is an engine that answers, but is full, or does not carry messages between nodes.
type faulty struct {
	*logtest.Handle
	full, mute atomic.Bool
}

func (f *faulty) Ping(ctx context.Context) error {
	if f.full.Load() {
		return fmt.Errorf("ping: %w", stream.ErrFull)
	}
	return f.Handle.Ping(ctx)
}

func (f *faulty) Receive(r cluster.Receiver) (stop func(), err error) {
	return f.Handle.Receive(muted{r, f})
}

// A muted gets no messages while its engine is mute.
type muted struct {
	cluster.Receiver
	f *faulty
}

func (m muted) Message(message []byte) {
	if !m.f.mute.Load() {
		m.Receiver.Message(message)
	}
}
