package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// servers are the kinds of servers that Holdfast stands in front of, from old to new.
var servers = map[string]func(*mcp.Server) http.Handler{
	"HTTP+SSE 2024-11-05": func(s *mcp.Server) http.Handler {
		return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, nil)
	},
	"no event store": streamable,
	"JSON": func(s *mcp.Server) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{JSONResponse: true})
	},
	"no sessions": func(s *mcp.Server) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true})
	},
	"event store": func(s *mcp.Server) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	},
	"Holdfast": func(s *mcp.Server) http.Handler {
		return holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, nil)
	},
}

// All messages go through, both ways, with each kind of server.
func TestServers(t *testing.T) {
	t.Parallel()
	for name, handler := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, nil, func(s *mcp.Server) http.Handler {
				h := handler(s)
				if h, ok := h.(*holdfast.Handler); ok {
					mcptest.ShutDownAtEnd(t, h, 2*time.Second)
				}
				return h
			})
			asks := name != "no sessions" && name != "JSON" // the other kinds can send requests
			told := make(chan float64, 10)
			network := http.DefaultTransport.(*http.Transport).Clone()
			defer network.CloseIdleConnections()
			cs, err := mcp.NewClient(impl, &mcp.ClientOptions{
				ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": r.Params.Message + "!"}}, nil
				},
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { told <- r.Params.Progress },
			}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url, HTTPClient: &http.Client{Transport: network}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			p := &mcp.CallToolParams{Name: "count", Arguments: map[string]any{"To": 3}}
			p.SetProgressToken("token")
			if res, err := cs.CallTool(t.Context(), p); err != nil || res.StructuredContent != 3.0 {
				t.Fatalf("count: %+v, %v", res, err)
			}
			for i := range 3 {
				if name == "JSON" {
					break // without streams there is no progress
				}
				if got := <-told; got != float64(i+1) {
					t.Errorf("progress %v, want %d", got, i+1)
				}
			}
			if list, err := cs.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 3 {
				t.Errorf("tools: %v, %v", list, err)
			}
			if asks {
				res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"Name": "bob"}})
				if err != nil || res.StructuredContent != "bob!" {
					t.Errorf("ask: %+v, %v", res, err)
				}
			}
			if res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "none"}); err == nil {
				t.Errorf("a tool that is not there: %+v", res)
			}
		})
	}
}

// A client that is cut off gets the messages that it has missed, although its server keeps none.
func TestClientCut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"no event store", "HTTP+SSE 2024-11-05"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, nil, servers[name])
			c := open(t, w.url)
			r := c.Stream(t, http.MethodPost, tool("1", "slow", "{}"))
			r.Until(t, `"progress":1`)
			r.Close()
			w.let <- struct{}{}
			r = c.Stream(t, http.MethodGet, "", "Last-Event-ID", r.LastID)
			r.Until(t, `"progress":2`)
			if m := r.Until(t, `"id":1`); !strings.Contains(string(m.Data), `"result"`) {
				t.Errorf("%s", m.Data)
			}
			if n := w.runs.Load(); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// When a server is killed in mid-call, the call's outcome is unknown. The session goes on
// in a new session of the next server.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"no event store", "event store", "HTTP+SSE 2024-11-05"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, nil, servers[name])
			c := open(t, w.url)
			r := c.Stream(t, http.MethodPost, tool("1", "slow", "{}"))
			r.Until(t, `"progress":1`)
			w.kill(servers[name](w.server()))
			if m := mcptest.Parse(string(r.Until(t, `"id":1`).Data)); !unknown(m) {
				t.Errorf("the call that ran: %s", m.Raw)
			}
			m := response(c.Post(t, tool("2", "count", `{"To":2}`)))
			if string(jsonrpc.Field(m.Result, "structuredContent")) != "2" {
				t.Errorf("the next call: %s", m.Raw)
			}
			if n := w.runs.Load(); n != 2 {
				t.Errorf("tools ran %d times, want 2", n)
			}
		})
	}
}

// A session that the server has forgotten begins anew, and the call that discovers this runs once.
func TestSessionLost(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, streamable)
	c := open(t, w.url)
	w.become(streamable(w.server()))
	m := response(c.Post(t, tool("1", "count", `{"To":2}`)))
	if string(jsonrpc.Field(m.Result, "structuredContent")) != "2" || w.runs.Load() != 1 {
		t.Errorf("%d runs, %s", w.runs.Load(), m.Raw)
	}
}

// A call waits for a server that is away, and runs once when the server is back.
func TestServerAway(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, streamable)
	c := open(t, w.url)
	server := w.http
	refusals := new(atomic.Int32)
	w.become(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && refusals.Add(1) == 3 {
			w.become(server)
		}
		rw.Header().Set("Retry-After", "0")
		rw.WriteHeader(http.StatusServiceUnavailable)
	}))
	m := response(c.Post(t, tool("1", "count", `{"To":2}`)))
	if string(jsonrpc.Field(m.Result, "structuredContent")) != "2" || w.runs.Load() != 1 {
		t.Errorf("%d runs, %s", w.runs.Load(), m.Raw)
	}
}

// A request that the server makes in a call goes to the client on the stream of this call.
func TestAskedInItsCall(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, streamable)
	c := open(t, w.url)
	var replies [2]*mcptest.Stream
	var asked [2]jsonrpc.Message
	for i := range replies {
		replies[i] = c.Stream(t, http.MethodPost, tool(fmt.Sprint(i+1), "ask", fmt.Sprintf(`{"Name":"caller %d"}`, i)))
	}
	for i, r := range replies {
		asked[i] = mcptest.Parse(string(r.Until(t, "elicitation/create").Data))
		if got := jsonrpc.String(jsonrpc.Field(asked[i].Params, "message")); got != fmt.Sprintf("caller %d", i) {
			t.Errorf("call %d was asked %q", i, got)
		}
	}
	for i, m := range asked {
		c.Post(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":"answer %d"}}}`, m.ID, i))
	}
	for i, r := range replies {
		m := mcptest.Parse(string(r.Until(t, fmt.Sprintf(`"id":%d,`, i+1)).Data))
		if got := jsonrpc.String(jsonrpc.Field(m.Result, "structuredContent")); got != fmt.Sprintf("answer %d", i) {
			t.Errorf("call %d: %s", i, m.Raw)
		}
	}
}

// A cancellation reaches the server.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"1", "9007199254740993"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			w := begin(t, nil, func(s *mcp.Server) http.Handler {
				mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1})
					<-ctx.Done()
					ended <- ctx.Err()
					return nil, nil, ctx.Err()
				})
				return streamable(s)
			})
			c := open(t, w.url)
			c.Stream(t, http.MethodPost, strings.Replace(tool(id, "wait", "{}"), `"progressToken":`+id, `"progressToken":1`, 1)).Until(t, `"progress":1`)
			c.Post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`)
			if err := <-ended; err == nil {
				t.Error("the tool ended without an error")
			}
		})
	}
}

// The end of a client's session ends the session at the server.
func TestEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan string, 1)
	w := begin(t, nil, func(s *mcp.Server) http.Handler {
		h := streamable(s)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if r.Method == http.MethodDelete {
				ended <- r.Header.Get("Mcp-Session-Id")
			}
		})
	})
	c := open(t, w.url)
	_, err := c.Exchange(t.Context(), http.MethodDelete, "")
	mcptest.Check(t, err)
	if id := <-ended; id == "" || id == c.Session {
		t.Errorf("session %q was ended at the server", id)
	}
}

// An id that a server in JavaScript would change comes back unchanged.
func TestIDs(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, func(*mcp.Server) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.Method != http.MethodPost {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			var m map[string]any // numbers are float64
			if json.Unmarshal(body, &m) != nil || m["id"] == nil {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			result := map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "serverInfo": impl}
			_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": m["id"], "result": result})
		})
	})
	c := open(t, w.url)
	for _, id := range []string{"9007199254740993", `"\u00e9"`, "7", `"a"`, "-0"} {
		if m := response(c.Post(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`)); string(m.ID) != id {
			t.Errorf("the response to %s has the id %s", id, m.ID)
		}
	}
}

// The server gets Holdfast's own capability to resume requests in place of the client's.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	bodies := make(chan []byte, 100)
	w := begin(t, nil, func(s *mcp.Server) http.Handler {
		inner := holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, nil)
		mcptest.ShutDownAtEnd(t, inner, 2*time.Second)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			bodies <- body
			inner.ServeHTTP(w, r)
		})
	})
	m := response(clientOf(w.url).Post(t, strings.Replace(hello, `"elicitation":{}`, `"resumableRequests":{"eventIds":true},"elicitation":{}`, 1)))
	if jsonrpc.Field(m.Result, "capabilities", "experimental") == nil {
		t.Errorf("no idempotency keys: %s", m.Raw)
	}
	if got := jsonrpc.Field(<-bodies, "params", "capabilities"); string(got) != `{"elicitation":{},"resumableRequests":{}}` {
		t.Errorf("the server was told %s", got)
	}
}

// When a server requires authorization, the client gets the challenge at its first request.
func TestUnauthorized(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for _, stateless := range []bool{false, true} {
			t.Run(fmt.Sprint(status, stateless), func(t *testing.T) {
				t.Parallel()
				const challenge = `Bearer resource_metadata="https://example.com/.well-known/oauth-protected-resource"`
				w := begin(t, nil, func(*mcp.Server) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("WWW-Authenticate", challenge)
						w.WriteHeader(status)
					})
				})
				if stateless {
					w.url = front(t, w.upstream, nil, &holdfast.Options{Stateless: true})
				}
				r := clientOf(w.url).Post(t, hello)
				if r.Status != status || r.Header.Get("WWW-Authenticate") != challenge || r.Header.Get("Mcp-Session-Id") != "" {
					t.Errorf("status %d, header %v", r.Status, r.Header)
				}
			})
		}
	}
}

// The client's token goes to the server only with PassAuthorization, and each message
// carries its own. When the server refuses the token later, the client gets the refusal.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		t.Run(fmt.Sprint(pass), func(t *testing.T) {
			t.Parallel()
			w := begin(t, &remote.Options{PassAuthorization: pass, Header: http.Header{"X-Key": {"k"}}}, func(s *mcp.Server) http.Handler {
				h := streamable(s)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Authorization") == "Bearer old" && r.Header.Get("Mcp-Session-Id") != "" && r.Method == http.MethodPost &&
						r.Header.Get("Mcp-Refuse") == "" && r.ContentLength > 80 {
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					h.ServeHTTP(w, r)
				})
			})
			c := open(t, w.url, "Authorization", "Bearer old")
			r := c.Post(t, tool("1", "count", `{"To":1}`))
			if refused := r.Status == http.StatusUnauthorized; refused != pass {
				t.Errorf("status %d", r.Status)
			}
			if !pass && unknown(response(r)) {
				t.Error("its outcome is not known")
			}
			if m := response(c.Post(t, tool("2", "count", `{"To":1}`), "Authorization", "Bearer new")); m.Result == nil {
				t.Errorf("%s", m.Raw)
			}
			if got := w.headers("Authorization"); got["Bearer old"] != pass || got["Bearer new"] != pass {
				t.Errorf("the server got %v", got)
			}
			if got := w.headers("X-Key"); len(got) != 1 || !got["k"] {
				t.Errorf("the server got %v", got)
			}
		})
	}
}

// A wrong URL is an error in each session.
func TestWrongURL(t *testing.T) {
	t.Parallel()
	url := front(t, "ftp://secret@example.com", nil, nil)
	if r := clientOf(url).Post(t, hello); r.Status != http.StatusBadGateway || strings.Contains(r.Body, "secret") {
		t.Errorf("status %d, %s", r.Status, r.Body)
	}
}
