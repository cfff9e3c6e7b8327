package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/process"
	remotebackend "holdfast/backend/remote"
	"holdfast/internal/testlong"
)

// TestErasMatrix has clients of both eras, the official ones, call tools of servers of both
// eras through each kind of backend: a plain one, and one that asks the client.
func TestErasMatrix(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "many node processes")
	dir := npm(t, sdk2, everything)
	ask := asked{"ask", `{}`, "Ada"}
	servers := map[string]struct {
		open  func(t *testing.T) backend.Backend // nil: of the go-sdk, without a backend of its own
		calls []asked
	}{
		"go-sdk": {nil, []asked{{"echo", `{"message":"hi"}`, "hi"}, ask}},
		"process, legacy": {
			func(t *testing.T) backend.Backend {
				b, err := process.New([]string{"node", filepath.Join(dir, everything)}, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = b.Close() })
				return b
			},
			[]asked{{"echo", `{"message":"hi"}`, "Echo: hi"}, {"trigger-elicitation-request", `{}`, "Name: Ada"}},
		},
		"remote, legacy": {
			func(t *testing.T) backend.Backend { return eraUpstream(t, nil) },
			[]asked{{"echo", `{"message":"hi"}`, "hi"}, ask},
		},
		"remote, modern": {
			func(t *testing.T) backend.Backend {
				return eraUpstream(t, &mcp.StreamableHTTPOptions{Stateless: true})
			},
			[]asked{{"echo", `{"message":"hi"}`, "hi"}, {"rounds", `{}`, "Ada"}},
		},
	}
	clients := map[string]func(*testing.T, string, asked) (revision, text string){
		"go-sdk":             officialCall(""),
		"go-sdk, 2025-11-25": officialCall("2025-11-25"),
		"TypeScript, auto":   typeScriptCall("auto"),
		"TypeScript, pinned": typeScriptCall("2026-07-28"),
		"TypeScript, legacy": typeScriptCall("legacy"),
	}
	for at, server := range servers {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return eraServer() }, nil)
			if server.open != nil {
				h = holdfast.NewBackendHandler(server.open(t), nil)
			}
			web := httptest.NewServer(h)
			t.Cleanup(func() {
				_ = h.Shutdown(context.Background())
				web.Close()
			})
			for who, call := range clients {
				for _, c := range server.calls {
					if c.tool == "rounds" && isLegacy(who) {
						continue // that server takes their sessions, keeps none, and so cannot ask
					}
					revision, text := call(t, web.URL, c)
					if !strings.Contains(text, c.want) {
						t.Errorf("%s: %s says %q, want %q", who, c.tool, text, c.want)
					}
					if isLegacy(who) == (revision == "2026-07-28") {
						t.Errorf("%s: %s was called by %s", who, c.tool, revision)
					}
				}
			}
		})
	}
}

// isLegacy reports whether a client of the matrix speaks older revisions only.
func isLegacy(who string) bool {
	return strings.Contains(who, "2025") || strings.Contains(who, "legacy")
}

// An asked is a call with what its result has to say.
type asked struct{ tool, arguments, want string }

// eraServer has a tool that answers, one that asks as handlers always could, and one that
// asks as revision 2026-07-28 has it.
func eraServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "eras", Version: "1"}, nil)
	text := func(text string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	name := func(r *mcp.ElicitResult) string { return fmt.Sprint(r.Content["name"]) }
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, args struct {
		Message string `json:"message"`
	}) (*mcp.CallToolResult, any, error) {
		return text(args.Message), nil, nil
	})
	question := &mcp.ElicitParams{Message: "Who are you?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		answer, err := r.Session.Elicit(ctx, question)
		if err != nil {
			return nil, nil, err
		}
		return text(name(answer)), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "rounds"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		if answer, ok := r.Params.InputResponses["who"].(*mcp.ElicitResult); ok {
			return text(name(answer)), nil, nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": question}}, nil, nil
	})
	return s
}

// eraUpstream returns the backend for a go-sdk server over HTTP.
func eraUpstream(t *testing.T, o *mcp.StreamableHTTPOptions) backend.Backend {
	t.Helper()
	s := eraServer()
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return remotebackend.New(web.URL, nil)
}

// officialCall calls a tool through the go-sdk's client, which prefers the newest revision if
// it is given none.
func officialCall(revision string) func(*testing.T, string, asked) (string, string) {
	return func(t *testing.T, url string, c asked) (string, string) {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "eras", Version: "1"}, &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
			},
		})
		s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
		if err != nil {
			t.Errorf("connect: %v", err)
			return "", ""
		}
		defer s.Close()
		if list, err := s.ListTools(t.Context(), nil); err != nil || len(list.Tools) == 0 {
			t.Errorf("tools: %v, %v", list, err)
		}
		result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(c.arguments)})
		if err != nil {
			return s.InitializeResult().ProtocolVersion, err.Error()
		}
		all := ""
		for _, part := range result.Content {
			if text, ok := part.(*mcp.TextContent); ok {
				all += text.Text
			}
		}
		return s.InitializeResult().ProtocolVersion, all
	}
}

// typeScriptCall calls a tool through the TypeScript client 2.x in a mode.
func typeScriptCall(mode string) func(*testing.T, string, asked) (string, string) {
	return func(t *testing.T, url string, c asked) (string, string) {
		t.Helper()
		config, _ := json.Marshal(map[string]any{"url": url, "mode": mode, "tool": c.tool, "arguments": json.RawMessage(c.arguments)})
		var r struct {
			Revision, Text string
			Tools          int
		}
		unmarshal(t, run(t, "node", "clients/eras.mjs", string(config)), &r)
		if r.Tools == 0 {
			t.Errorf("%s: no tools", mode)
		}
		return r.Revision, r.Text
	}
}
