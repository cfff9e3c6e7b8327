package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A bridged is a process that a host starts and speaks with over stdio: a client of holdfast.
type bridged struct {
	*mcptest.Process
	t *testing.T
}

// startBridged starts a bridged, and begins a session of a revision.
func startBridged(t *testing.T, cmd *exec.Cmd, revision string) *bridged {
	t.Helper()
	b := &bridged{mcptest.Piped(t, cmd), t}
	b.Say("%s", mcptest.Initialize(revision, "{}"))
	if got := b.response("0"); !strings.Contains(got, `"protocolVersion":"`+revision) {
		t.Fatalf("initialize: %s", got)
	}
	b.Say(mcptest.Initialized)
	return b
}

// remote starts mcp-remote and initializes a session through it.
func remote(t *testing.T, url, revision string) *bridged {
	t.Helper()
	dir := npm(t, mcpRemote)
	cmd := exec.Command("node", filepath.Join(dir, mcpRemote), url, "--transport", "http-only", "--allow-http")
	cmd.Env = append(os.Environ(), "MCP_REMOTE_CONFIG_DIR="+t.TempDir())
	return startBridged(t, cmd, revision)
}

// until reads messages until one is as wanted.
func (b *bridged) until(what string, is func(m jsonrpc.Message) bool) jsonrpc.Message {
	b.t.Helper()
	for line, ok := b.Line(); ok; line, ok = b.Line() {
		if m := mcptest.Must(jsonrpc.Parse([]byte(line)))(b.t); is(m) {
			return m
		}
	}
	b.t.Fatalf("no %s", what)
	return jsonrpc.Message{}
}

// response reads the response to a request, and passes over all messages before it.
func (b *bridged) response(id string) string {
	b.t.Helper()
	return string(b.until("response to "+id, func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response && string(m.ID) == id }).Raw)
}

// TestRemote cuts a silent call of mcp-remote before any event has arrived. Its only other
// connection is its GET stream, which it opened before. (Failure 16)
func TestRemote(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2025-06-18", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			p := serve(t, "--demo", "--retry", "100ms")
			sessionID := regexp.MustCompile(`(?i)\r\nmcp-session-id: (\S+)`)
			var first string // mcp-remote begins two sessions, and uses the second
			listens := make(chan struct{})
			listening := sync.OnceFunc(func() { close(listens) })
			url := behind(t, p.URL, 1, func(request string) Cut {
				id := ""
				if m := sessionID.FindStringSubmatch(request); m != nil {
					id = m[1]
					first = cmp.Or(first, id)
				}
				switch {
				case id == "" || id == first:
				case strings.HasPrefix(request, "GET "):
					time.AfterFunc(500*time.Millisecond, listening) // by then the GET has arrived
				case strings.Contains(request, "tools/call"): // it may be in a header
					return Cut{Bytes: 1, Body: true}
				}
				return Cut{}
			})
			b := remote(t, url, revision)
			<-listens
			if testlong.Wanted() {
				time.Sleep(11 * time.Second) // longer than the server doubts the order of two requests
			}
			b.Say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":1,"delay_ms":1000}}}`)
			if got := b.response("1"); !strings.Contains(got, `"text":"1"`) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// TestPinged has each client make a silent call in a revision without empty events. A ping
// gives the call's stream an event id, and then the stream is cut. Each client resumes the call
// by the id. (Failure 16)
func TestPinged(t *testing.T) {
	t.Parallel()
	const revision = "2025-06-18"
	silent := toolCall{"count", map[string]any{"to": 1, "delay_ms": 2500}}
	sdk := func(sdk int) func(*testing.T, string) string {
		return func(t *testing.T, url string) string {
			r := client(t, script{SDK: sdk, URL: url, Revision: revision, Calls: []toolCall{silent}})
			r.wantRevision(t, revision)
			if r.Calls[0].Result == nil {
				return r.Calls[0].Error
			}
			return r.Calls[0].Result.Content[0].Text
		}
	}
	for name, use := range map[string]func(t *testing.T, url string) string{
		"sdk 1": sdk(1),
		"sdk 2": sdk(2),
		"mcp-remote": func(t *testing.T, url string) string {
			b := remote(t, url, revision)
			b.Say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":1,"delay_ms":2500}}}`)
			b.Say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, b.request("ping"))
			var m struct{ Result toolResult }
			unmarshal(t, []byte(b.response("1")), &m)
			return m.Result.Content[0].Text
		},
		"go-sdk": func(t *testing.T, url string) string {
			c := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil)
			s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: url, HTTPClient: &http.Client{Transport: lowered(revision)},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if got := s.InitializeResult().ProtocolVersion; got != revision {
				t.Errorf("the revision is %q", got)
			}
			result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: silent.Name, Arguments: silent.Arguments})
			if err != nil {
				return err.Error()
			}
			return result.Content[0].(*mcp.TextContent).Text
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, "--demo", "--retry", "100ms")
			url := behind(t, p.URL, 1, func(request string) Cut {
				if strings.HasPrefix(request, "POST ") && has(request, "mcp-session-id") {
					return Cut{After: 300 * time.Millisecond, Since: `"ping"`, Reset: true}
				}
				return Cut{}
			})
			if got := use(t, url); got != "1" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// lowered has a client begin with an older revision than it would: it answers server/discover
// as an old server does, and changes the revision in initialize.
type lowered string

func (revision lowered) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if bytes.Contains(body, []byte(`"server/discover"`)) {
			return &http.Response{
				StatusCode: http.StatusBadRequest, Header: http.Header{"Content-Type": {"text/plain"}},
				Body: io.NopCloser(strings.NewReader("no session")), Request: r,
			}, nil
		}
		if bytes.Contains(body, []byte(`"initialize"`)) {
			body = regexp.MustCompile(`"protocolVersion":"[^"]*"`).ReplaceAll(body, fmt.Appendf(nil, `"protocolVersion":%q`, string(revision)))
		}
		r = r.Clone(r.Context())
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// request reads the next request of the server, checks its method, and returns its id.
func (b *bridged) request(method string) string {
	b.t.Helper()
	m := b.until(method, func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	if m.Method != method {
		b.t.Fatalf("want a %s, got %s", method, m.Raw)
	}
	return string(m.ID)
}
