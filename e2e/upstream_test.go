package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// upstream serves an official server over HTTP, and returns its URL.
func upstream(t *testing.T, server *mcp.Server, o *mcp.StreamableHTTPOptions) string {
	t.Helper()
	url := mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, o))
	t.Cleanup(func() {
		for session := range server.Sessions() {
			go session.Close() // Close waits for the session's tools
		}
	})
	return url
}

// bodyOf returns a request that calls a tool.
func bodyOf(t *testing.T, p mcp.CallToolParams) string {
	t.Helper()
	arguments := mcptest.Must(json.Marshal(p.Arguments))(t)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":1}}}`,
		p.Name, bytes.Replace(arguments, []byte("null"), []byte("{}"), 1))
}

// A client that loses its connection gets the rest of its call, although the upstream server keeps no streams.
func TestUpstreamCut(t *testing.T) {
	testlong.Only(t, "its calls take two seconds")
	t.Parallel()
	for name, begin := range map[string]func(*testing.T) *foreign{
		"go-sdk": func(t *testing.T) *foreign { return official(t, nil) },
		"server-everything": func(t *testing.T) *foreign {
			return everythingOver(t, "streamableHttp", "/mcp")
		},
		"server-everything, HTTP+SSE": func(t *testing.T) *foreign { return everythingOver(t, "sse", "/sse") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := begin(t)
			c := connect(t, serve(t, "--upstream", f.url, "--retry", "20ms"))
			l := c.listen("POST", "", bodyOf(t, f.long))
			var received []string
			for range 2 {
				l.until(1)
				l.Close()
				received = append(received, l.received...)
				l = c.listen("GET", l.LastID, "")
			}
			received = append(received, l.rest().received...)
			last := received[len(received)-1]
			if !strings.HasPrefix(last, "result "+f.said) {
				t.Errorf("received %q", received)
			}
			if n := len(slices.Compact(slices.Clone(received))); n != f.steps+1 || n != len(received) {
				t.Errorf("received %d messages, want %d: %q", n, f.steps+1, received)
			}
			if f.work != nil {
				f.work.wantRuns("long", 1, 1)
			}
		})
	}
}

// Holdfast is killed in mid-call, and started again over the same files: the outcome of the
// call is unknown, and it does not run again. A retry-safe call runs again.
func TestUpstreamRestart(t *testing.T) {
	testlong.Only(t, "it writes to the disk and waits for it")
	t.Parallel()
	traces := t.TempDir()
	url := upstream(t, workServer(traces), nil)
	f := &fleet{t: t, traces: traces}
	for _, test := range []struct {
		tool, want string
		runs       int
	}{{"work", "error outcome unknown", 1}, {"look", "result did", 2}} {
		flags := []string{"--upstream", url, "--store", "file:" + t.TempDir(), "--retry", "20ms"}
		p := serve(t, flags...)
		c := connect(t, p)
		if test.tool == "look" { // Holdfast knows only from the list of tools that the call is retry-safe
			c.ask(mcptest.Request(7, "tools/list", ""))
		}
		id := "restart-" + test.tool
		l := c.listen("POST", "", bodyOf(t, call(test.tool, map[string]any{"id": id, "steps": 30, "ms": 3000})))
		l.until(2)
		p.signal(t, os.Kill)
		_ = p.wait(t, time.Minute)
		c.URL = serve(t, flags...).URL
		l = c.listen("GET", l.LastID, "").rest()
		if last := l.received[len(l.received)-1]; !strings.HasPrefix(last, test.want) {
			t.Errorf("%s: received %q, want %q", test.tool, last, test.want)
		}
		f.wantRuns(id, test.runs, test.runs)
	}
}

// A node in front of a server over HTTP is killed: calls end as with any other backend.
func TestClusterUpstream(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{remote: true})
		took := f.killInCalls(f.nodes[0], f.nodes[1:], 8)
		wantSoon(t, "from SIGKILL to a call's end", took)
	})
}
