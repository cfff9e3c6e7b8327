//nolint:staticcheck // what 2026-07-28 deprecates is still spoken, and checked here
package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// A moved is a program that was written for the go-sdk's handler.
type moved struct {
	// sdk and ours are the options of the handlers: each row of the table in docs/go-sdk.md.
	sdk  *mcp.StreamableHTTPOptions
	ours *holdfast.Options
	// wrap is middleware of the program around its handler; nil: none.
	wrap func(http.Handler) http.Handler
	// server returns getServer.
	server func() func(*http.Request) *mcp.Server
	// does makes the clients' requests one after the other, and records their answers. It must not depend on the handler.
	does func(*movedClients)
}

// movedClients are the clients of a program.
type movedClients struct {
	t    *testing.T
	url  string
	mu   sync.Mutex
	seen []string
}

// sees records a client's observation.
func (c *movedClients) sees(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, fmt.Sprintf(format, args...))
}

// connect connects a client of the go-sdk.
func (c *movedClients) connect(path string, o *mcp.ClientOptions, header ...string) *mcp.ClientSession {
	c.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "moved", Version: "1"}, o)
	client.AddRoots(&mcp.Root{URI: "file:///home"})
	network := &http.Client{Transport: withHeader{header}}
	s := mcptest.Must(client.Connect(c.t.Context(), &mcp.StreamableClientTransport{Endpoint: c.url + path, HTTPClient: network}, nil))(c.t)
	c.t.Cleanup(func() { _ = s.Close() })
	return s
}

// withHeader sends a header, a name and a value, with each request.
type withHeader struct{ header []string }

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	if len(h.header) > 0 {
		r = r.Clone(r.Context())
		r.Header.Set(h.header[0], h.header[1])
	}
	return http.DefaultTransport.RoundTrip(r)
}

// call calls a tool, and returns its text.
func (c *movedClients) call(s *mcp.ClientSession, tool string, args map[string]any) string {
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	defer stop()
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return "error " + err.Error()
	}
	return said(r)
}

func said(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, " ")
}

func movedText(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// alwaysFrom is a getServer for one server.
func alwaysFrom(s *mcp.Server) func(*http.Request) *mcp.Server {
	return func(*http.Request) *mcp.Server { return s }
}

func newMoved(o *mcp.ServerOptions) *mcp.Server {
	return mcp.NewServer(&mcp.Implementation{Name: "moved", Version: "1"}, o)
}

// carts is a server that keeps the cart of each of its clients, by the session's id.
func carts() func(*http.Request) *mcp.Server {
	var mu sync.Mutex
	carts := make(map[string][]string)
	s := newMoved(nil)
	mcp.AddTool(s, &mcp.Tool{Name: "put"}, func(_ context.Context, r *mcp.CallToolRequest, in struct {
		Item string `json:"item"`
	}) (*mcp.CallToolResult, any, error) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Session.ID()
		carts[id] = append(carts[id], in.Item)
		return movedText("%v", carts[id]), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "id"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return movedText("%s", r.Session.ID()), nil, nil
	})
	return alwaysFrom(s)
}

// fillCarts lets two equal clients fill their carts.
func fillCarts(c *movedClients) {
	ada, bob := c.connect("", nil), c.connect("", nil)
	c.sees("revision %s", ada.InitializeResult().ProtocolVersion)
	for i, s := range []*mcp.ClientSession{ada, bob, ada} {
		c.sees("%s", c.call(s, "put", map[string]any{"item": fmt.Sprint(i)}))
	}
	c.sees("ids %v %v, of the client %v", ada.ID() != "", ada.ID() != bob.ID(), c.call(ada, "id", nil) == ada.ID())
}

// movedPrograms are programs of the kinds that the go-sdk's examples and tests show.
func movedPrograms() map[string]moved {
	return map[string]moved{
		"state by session id": {server: carts, does: fillCarts},
		"state by session id, JSONResponse": {
			sdk: &mcp.StreamableHTTPOptions{JSONResponse: true}, ours: &holdfast.Options{Response: holdfast.ResponseJSON},
			server: carts, does: fillCarts,
		},
		"Stateless": {
			sdk: &mcp.StreamableHTTPOptions{Stateless: true}, ours: &holdfast.Options{Stateless: true},
			server: carts, does: func(c *movedClients) {
				s := c.connect("", nil)
				c.sees("revision %s", s.InitializeResult().ProtocolVersion)
				c.sees("id %q, of the server %q", s.ID(), c.call(s, "id", nil))
			},
		},
		"Stateless, a server for each request": {
			sdk: &mcp.StreamableHTTPOptions{Stateless: true}, ours: &holdfast.Options{Stateless: true},
			server: func() func(*http.Request) *mcp.Server {
				return func(r *http.Request) *mcp.Server {
					user := r.Header.Get("X-User")
					s := newMoved(nil)
					mcp.AddTool(s, &mcp.Tool{Name: "who"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
						return movedText("%s", user), nil, nil
					})
					return s
				}
			},
			does: func(c *movedClients) {
				ada, bob := c.connect("", nil, "X-User", "ada"), c.connect("", nil, "X-User", "bob")
				c.sees("%s %s %s", c.call(ada, "who", nil), c.call(bob, "who", nil), c.call(ada, "who", nil))
			},
		},
		"a server for each session": {
			server: func() func(*http.Request) *mcp.Server {
				return func(r *http.Request) *mcp.Server {
					n := 0
					user := r.Header.Get("X-User")
					s := newMoved(nil)
					mcp.AddTool(s, &mcp.Tool{Name: "count"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
						n++ // used by one session, one call after the other
						return movedText("%s %d", user, n), nil, nil
					})
					return s
				}
			},
			does: func(c *movedClients) {
				ada, bob := c.connect("", nil, "X-User", "ada"), c.connect("", nil, "X-User", "bob")
				for _, s := range []*mcp.ClientSession{ada, ada, bob, ada} {
					c.sees("%s", c.call(s, "count", nil))
				}
			},
		},
		"servers by path": {
			server: func() func(*http.Request) *mcp.Server {
				servers := make(map[string]*mcp.Server)
				for _, path := range []string{"/one", "/two"} {
					servers[path] = newMoved(nil)
					mcp.AddTool(servers[path], &mcp.Tool{Name: "where"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
						return movedText("%s", path), nil, nil
					})
				}
				return func(r *http.Request) *mcp.Server { return servers[r.URL.Path] }
			},
			does: func(c *movedClients) {
				c.sees("%s %s", c.call(c.connect("/one", nil), "where", nil), c.call(c.connect("/two", nil), "where", nil))
				client := mcp.NewClient(&mcp.Implementation{Name: "moved", Version: "1"}, nil)
				_, err := client.Connect(c.t.Context(), &mcp.StreamableClientTransport{Endpoint: c.url + "/none"}, nil)
				c.sees("a path without a server is refused: %v", err != nil && strings.Contains(err.Error(), "Bad Request"))
			},
		},
		"questions, progress, logs and lists": {server: askingServer, does: askedClient},
		"middleware": {
			server: func() func(*http.Request) *mcp.Server {
				s := newMoved(nil)
				mcp.AddTool(s, &mcp.Tool{Name: "seen"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					return movedText("%v %s", ctx.Value(movedKey{}), r.Extra.Header.Get("X-User")), nil, nil
				})
				s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
					return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
						if ctx.Value(movedKey{}) == nil {
							return nil, errors.New("the values of the HTTP middleware are lost")
						}
						if method == "prompts/list" {
							return nil, &jsonrpc.Error{Code: 4711, Message: "none here", Data: []byte(`{"a":1}`)}
						}
						return next(ctx, method, req)
					}
				})
				return alwaysFrom(s)
			},
			wrap: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), movedKey{}, "by HTTP")))
				})
			},
			does: func(c *movedClients) {
				s := c.connect("", nil, "X-User", "ada")
				c.sees("%s", c.call(s, "seen", nil))
				_, err := s.ListPrompts(c.t.Context(), nil)
				var coded *jsonrpc.Error
				c.sees("%v %d %s %s", errors.As(err, &coded), coded.Code, coded.Message, coded.Data)
			},
		},
		"bearer tokens": {
			server: func() func(*http.Request) *mcp.Server {
				s := newMoved(nil)
				mcp.AddTool(s, &mcp.Tool{Name: "who"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					return movedText("%s %v", r.Extra.TokenInfo.UserID, r.Extra.TokenInfo.Scopes), nil, nil
				})
				return alwaysFrom(s)
			},
			wrap: auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
				if token == "bad" {
					return nil, auth.ErrInvalidToken
				}
				return &auth.TokenInfo{UserID: token, Scopes: []string{"read"}, Expiration: time.Now().Add(time.Hour)}, nil
			}, &auth.RequireBearerTokenOptions{Scopes: []string{"read"}}),
			does: func(c *movedClients) {
				ada := c.connect("", nil, "Authorization", "Bearer ada")
				c.sees("%s", c.call(ada, "who", nil))
				for _, token := range []string{"bad", ""} {
					c.sees("token %q: %d", token, c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", "Bearer "+token))
				}
				thief := c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", "Bearer bob", "Mcp-Session-Id", ada.ID())
				c.sees("another user's session is refused: %v", thief == http.StatusForbidden || thief == http.StatusNotFound)
			},
		},
		"a method of its own": {
			server: func() func(*http.Request) *mcp.Server {
				s := newMoved(nil)
				if err := mcp.AddReceivingCustomMethod(s, "own/greet", func(_ context.Context, ss *mcp.ServerSession, p *movedParams) (*movedResult, error) {
					return &movedResult{Text: fmt.Sprintf("hello %s, %v", p.Name, ss.ID() != "")}, nil
				}); err != nil {
					panic(err)
				}
				return alwaysFrom(s)
			},
			does: func(c *movedClients) {
				client := mcp.NewClient(&mcp.Implementation{Name: "moved", Version: "1"}, nil)
				mcptest.Check(c.t, mcp.AddSendingCustomMethod[*movedParams, *movedResult](client, "own/greet"))
				s := mcptest.Must(client.Connect(c.t.Context(), &mcp.StreamableClientTransport{Endpoint: c.url}, nil))(c.t)
				defer s.Close()
				r, err := mcp.CallCustomMethod[*movedParams, *movedResult](c.t.Context(), s, "own/greet", &movedParams{Name: "Ada"})
				c.sees("%s %v", r.Text, err)
			},
		},
		"a proxy": {
			server: func() func(*http.Request) *mcp.Server {
				clientSide, serverSide := mcp.NewInMemoryTransports()
				behind := newMoved(nil)
				mcp.AddTool(behind, &mcp.Tool{Name: "add"}, func(_ context.Context, _ *mcp.CallToolRequest, in movedSum) (*mcp.CallToolResult, movedSum, error) {
					return nil, movedSum{A: in.A + in.B}, nil
				})
				if _, err := behind.Connect(context.Background(), serverSide, nil); err != nil {
					panic(err)
				}
				to, err := mcp.NewClient(&mcp.Implementation{Name: "proxy", Version: "1"}, nil).Connect(context.Background(), clientSide, nil)
				if err != nil {
					panic(err)
				}
				s := newMoved(nil)
				mcp.AddTool(s, &mcp.Tool{Name: "add"}, func(ctx context.Context, _ *mcp.CallToolRequest, in movedSum) (*mcp.CallToolResult, any, error) {
					r, err := to.CallTool(ctx, &mcp.CallToolParams{Name: "add", Arguments: in})
					return r, nil, err
				})
				return alwaysFrom(s)
			},
			does: func(c *movedClients) {
				s := c.connect("", nil)
				r, err := s.CallTool(c.t.Context(), &mcp.CallToolParams{Name: "add", Arguments: movedSum{1, 2}})
				c.sees("%v %v", r.StructuredContent, err)
				c.sees("%s", c.call(s, "add", map[string]any{"a": "no number"}))
			},
		},
		"completion, prompts, resources and pages": {
			server: func() func(*http.Request) *mcp.Server {
				s := newMoved(&mcp.ServerOptions{
					PageSize: 2,
					CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
						return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "!"}}}, nil
					},
				})
				for i := range 5 {
					s.AddTool(&mcp.Tool{Name: fmt.Sprint("t", i), InputSchema: &jsonschema.Schema{Type: "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						return movedText("%d", i), nil
					})
				}
				s.AddPrompt(&mcp.Prompt{Name: "greet"}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
					return &mcp.GetPromptResult{Description: "hello " + r.Params.Arguments["name"]}, nil
				})
				s.AddResource(&mcp.Resource{URI: "x://here", Name: "here"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
					return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Blob: []byte{0, 1}}}}, nil
				})
				return alwaysFrom(s)
			},
			does: func(c *movedClients) {
				s := c.connect("", nil)
				var names []string
				for tool, err := range s.Tools(c.t.Context(), nil) {
					if err != nil {
						c.t.Error(err)
						return
					}
					names = append(names, tool.Name)
				}
				first, err := s.ListTools(c.t.Context(), nil)
				c.sees("%v, %d on the first page, %v", names, len(first.Tools), err)
				done, err := s.Complete(c.t.Context(), &mcp.CompleteParams{
					Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"}, Argument: mcp.CompleteParamsArgument{Name: "name", Value: "a"},
				})
				c.sees("%v %v", done.Completion.Values, err)
				prompt, err := s.GetPrompt(c.t.Context(), &mcp.GetPromptParams{Name: "greet", Arguments: map[string]string{"name": "Ada"}})
				c.sees("%s %v", prompt.Description, err)
				read, err := s.ReadResource(c.t.Context(), &mcp.ReadResourceParams{URI: "x://here"})
				c.sees("%v %v", read.Contents[0].Blob, err)
				_, err = s.ReadResource(c.t.Context(), &mcp.ReadResourceParams{URI: "x://away"})
				var coded *jsonrpc.Error
				c.sees("%v %d %s", errors.As(err, &coded), coded.Code, coded.Message)
				c.sees("%s", c.call(s, "nothing", nil))
			},
		},
		"the end of a session": {
			server: carts, does: func(c *movedClients) {
				s := c.connect("", nil)
				id := s.ID()
				_ = s.Close() // Close sends DELETE
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id", id))
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id", "never-was"))
			},
		},
		"SessionTimeout": {
			sdk: &mcp.StreamableHTTPOptions{SessionTimeout: 50 * time.Millisecond}, ours: &holdfast.Options{SessionTTL: 50 * time.Millisecond, SessionLife: -1},
			server: carts, does: func(c *movedClients) {
				id := c.begins()
				for end := time.Now().Add(time.Minute); time.Now().Before(end); {
					// Each request belongs to the session, and prolongs its life.
					select {
					case <-time.After(200 * time.Millisecond):
					case <-c.t.Context().Done():
					}
					if status := c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id", id); status != http.StatusOK {
						c.sees("then %d", status)
						return
					}
				}
				c.sees("it does not end")
			},
		},
		"MaxRequestBodyBytes": {
			sdk: &mcp.StreamableHTTPOptions{MaxRequestBodyBytes: 1 << 10}, ours: &holdfast.Options{MaxBody: 1 << 10},
			server: carts, does: func(c *movedClients) {
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"a":"`+strings.Repeat("a", 2<<10)+`"}}}`, "Mcp-Session-Id", c.begins()))
			},
		},
		"DNS rebinding": {
			server: carts, does: func(c *movedClients) {
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Host", "evil.example"))
			},
		},
		"DisableLocalhostProtection": {
			sdk: &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}, ours: &holdfast.Options{AllowedHosts: []string{"*"}},
			server: carts, does: func(c *movedClients) {
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Host", "proxy.example", "Mcp-Session-Id", c.begins()))
			},
		},
		"CrossOriginProtection": {
			sdk: &mcp.StreamableHTTPOptions{CrossOriginProtection: trusting()}, ours: &holdfast.Options{AllowedOrigins: []string{"https://app.example"}},
			server: carts, does: func(c *movedClients) {
				id := c.begins()
				for _, origin := range []string{"https://app.example", "https://evil.example"} {
					c.sees("%s %d", origin, c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Origin", origin, "Sec-Fetch-Site", "cross-site", "Mcp-Session-Id", id))
				}
			},
		},
		"CrossOriginProtection around the handler": {
			ours: &holdfast.Options{AllowedOrigins: []string{"*"}}, wrap: trusting().Handler,
			server: carts, does: func(c *movedClients) {
				id := c.begins()
				for _, origin := range []string{"https://app.example", "https://evil.example"} {
					c.sees("%s %d", origin, c.posts(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Origin", origin, "Sec-Fetch-Site", "cross-site", "Mcp-Session-Id", id))
				}
			},
		},
		"EventStore": {
			sdk: &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}, ours: &holdfast.Options{Retry: 10 * time.Millisecond},
			server: func() func(*http.Request) *mcp.Server {
				s := newMoved(nil)
				mcp.AddTool(s, &mcp.Tool{Name: "polled"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					for i := range 3 {
						_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i)})
						r.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
					}
					return movedText("to the end"), nil, nil
				})
				return alwaysFrom(s)
			},
			does: func(c *movedClients) {
				var mu sync.Mutex
				var steps []float64
				all := make(chan struct{})
				s := c.connect("", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					mu.Lock()
					defer mu.Unlock()
					if steps = append(steps, r.Params.Progress); len(steps) == 3 {
						close(all)
					}
				}})
				params := &mcp.CallToolParams{Name: "polled"}
				params.SetProgressToken("p")
				r, err := s.CallTool(c.t.Context(), params)
				if err != nil {
					c.sees("%v", err)
					return
				}
				<-all
				mu.Lock()
				defer mu.Unlock()
				c.sees("%s %v", said(r), steps)
			},
		},
		"a modern client that asks for nothing else": {
			server: carts, does: func(c *movedClients) {
				const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
				c.sees("%d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"id","arguments":{},`+meta+`}}`,
					"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "id"))
			},
		},
		"no server": {
			server: func() func(*http.Request) *mcp.Server { return func(*http.Request) *mcp.Server { return nil } },
			does: func(c *movedClients) {
				c.sees("%d", c.posts(opening))
			},
		},
		"wrong requests": {
			server: carts, does: func(c *movedClients) {
				c.sees("without a session %d", c.posts(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "Mcp-Protocol-Version", "1999-01-01"))
				c.sees("a form %d", c.posts("a=b", "Content-Type", "application/x-www-form-urlencoded"))
				c.sees("no JSON %d", c.posts("{"))
			},
		},
	}
}

type movedKey struct{}

type movedSum struct {
	A int `json:"a"`
	B int `json:"b"`
}

type movedParams struct {
	mcp.ParamsBase
	Name string `json:"name"`
}

type movedResult struct {
	mcp.ResultBase
	Text string `json:"text"`
}

func trusting() *http.CrossOriginProtection {
	p := http.NewCrossOriginProtection()
	if err := p.AddTrustedOrigin("https://app.example"); err != nil {
		panic(err)
	}
	return p
}

var opening = mcptest.Initialize("2025-06-18", "{}")

// posts posts a message, with headers (names and values), and returns the status.
func (c *movedClients) posts(body string, header ...string) int {
	c.t.Helper()
	return mcptest.Post(c.t, c.url, body, header...).Status
}

// begins begins a session by hand, and returns its id.
func (c *movedClients) begins() string {
	c.t.Helper()
	id := mcptest.Post(c.t, c.url, opening).Session()
	c.posts(mcptest.Initialized, "Mcp-Session-Id", id)
	return id
}

// askingServer is a server that uses all features of a session.
func askingServer() func(*http.Request) *mcp.Server {
	s := newMoved(&mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	s.AddResource(&mcp.Resource{URI: "x://watched", Name: "watched"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "name?", RequestedSchema: &jsonschema.Schema{Type: "object"}})
		if err != nil {
			return nil, nil, err
		}
		model, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1, Messages: []*mcp.SamplingMessage{}})
		if err != nil {
			return nil, nil, err
		}
		if err := r.Session.Ping(ctx, nil); err != nil {
			return nil, nil, err
		}
		roots, err := r.Session.ListRoots(ctx, nil)
		if err != nil {
			return nil, nil, err
		}
		return movedText("%v %s %s %s", answer.Content["name"], model.Content.(*mcp.TextContent).Text, roots.Roots[0].URI, r.Session.InitializeParams().ClientInfo.Name), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "tell"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		for i := range 3 {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i)})
		}
		_ = r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "debug", Data: "low"})
		_ = r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "error", Data: "high"})
		return movedText("told"), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "grow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		mcp.AddTool(s, &mcp.Tool{Name: "grown"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return movedText("grown"), nil, nil
		})
		return movedText("grows"), nil, s.ResourceUpdated(context.WithoutCancel(ctx), &mcp.ResourceUpdatedNotificationParams{URI: "x://watched"})
	})
	return alwaysFrom(s)
}

// askedClient is a client of askingServer.
func askedClient(c *movedClients) {
	told := make(chan string, 100)
	s := c.connect("", &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "hello"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			told <- fmt.Sprint("progress ", r.Params.Progress)
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			told <- fmt.Sprint("log ", r.Params.Data)
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { told <- "tools changed" },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			told <- "updated " + r.Params.URI
		},
		Capabilities: &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}},
	})
	if err := s.Ping(c.t.Context(), nil); err != nil {
		c.sees("%v", err)
	}
	hear := func(n int) (all []string) {
		for range n {
			select {
			case what := <-told:
				all = append(all, what)
			case <-time.After(time.Minute):
				c.t.Errorf("after %v nothing comes", all)
				return all
			}
		}
		slices.Sort(all)
		return all
	}
	if err := s.SetLoggingLevel(c.t.Context(), &mcp.SetLoggingLevelParams{Level: "warning"}); err != nil {
		c.sees("%v", err)
	}
	if err := s.Subscribe(c.t.Context(), &mcp.SubscribeParams{URI: "x://watched"}); err != nil {
		c.sees("%v", err)
	}
	params := &mcp.CallToolParams{Name: "tell"}
	params.SetProgressToken("p")
	if _, err := s.CallTool(c.t.Context(), params); err != nil {
		c.sees("%v", err)
	}
	c.sees("%v", hear(4))
	c.sees("%s", c.call(s, "grow", nil))
	c.sees("%v", hear(2))
	c.sees("%s", c.call(s, "grown", nil))
	c.sees("%s", c.call(s, "ask", nil))
}

// FAILURES 26: TestFailure26Options checks that docs/go-sdk.md names each option of the go-sdk's handler.
func TestFailure26Options(t *testing.T) {
	t.Parallel()
	doc := mcptest.Must(os.ReadFile("docs/go-sdk.md"))(t)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[mcp.StreamableHTTPOptions]()) {
		if !strings.Contains(string(doc), "\n| `"+field.Name+"` | ") {
			t.Errorf("it has no row for %s", field.Name)
		}
	}
}

// FAILURES 26: TestFailure26Moved runs programs that were written for the go-sdk's handler, with that handler and with ours.
// Their clients observe the same, and only the names of the handler and of its options change in the programs.
func TestFailure26Moved(t *testing.T) {
	t.Parallel()
	for name, program := range movedPrograms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(handler http.Handler) []string {
				if program.wrap != nil {
					handler = program.wrap(handler)
				}
				web := mcptest.Serve(t, handler)
				c := &movedClients{t: t, url: web}
				program.does(c)
				return c.seen
			}
			before := run(mcp.NewStreamableHTTPHandler(program.server(), program.sdk))
			o := program.ours
			if o != nil {
				o.Logger = slog.New(slog.DiscardHandler)
			}
			handler := holdfast.NewHandler(program.server(), o)
			mcptest.ShutDownAtEnd(t, handler, time.Second)
			after := run(handler)
			if !slices.Equal(before, after) {
				t.Errorf("before:\n  %s\nafter:\n  %s", strings.Join(before, "\n  "), strings.Join(after, "\n  "))
			}
			if len(before) == 0 {
				t.Error("nothing was seen")
			}
			t.Logf("%s", strings.Join(after, "\n"))
		})
	}
}
