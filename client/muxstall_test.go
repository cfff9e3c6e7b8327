package client_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// The messages of a call over a WebSocket may go to another client. The call is resumed after
// its end, and not before. A call that the server does not know any more fails.
func TestWebSocketStalledCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const running = 1
		var asks, early atomic.Int32
		url, hc := serveInside(t, &sockets{t: t, say: func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
			switch id := jsonrpc.String(jsonrpc.Field(m.Params, "requestId")); {
			case m.Method == "tools/call":
				name := jsonrpc.String(m.ID)
				utter(ws, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"t","_meta":{"holdfast/eventId":"%s.1.1"}}}`, m.ID, name)
			case m.Method == "requests/getStatus" && id == "gone":
				utter(ws, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"there is no such request"}}`, m.ID)
			case m.Method == "requests/getStatus":
				status := "completed"
				if asks.Add(1) <= running {
					status = "processing"
				}
				utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{"requestId":"read","status":%q,"hasPendingMessage":false,"hasInputRequest":false}}`, m.ID, status)
			case m.Method == "requests/resume":
				if asks.Load() <= running || jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/lastEventId")) != "read.1.1" {
					early.Add(1)
				}
				utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{"read":"on"}}`, m.ID)
			}
			return true
		}})
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
		r.open()
		for _, id := range []string{"read", "gone"} {
			r.send(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"x"}}`, id)
		}
		answers := make(map[string]string)
		for range 2 {
			m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response })
			answers[jsonrpc.String(m.ID)] = string(m.Raw)
		}
		if got := answers["read"]; !strings.Contains(got, `"read":"on"`) || early.Load() > 0 {
			t.Errorf("%d resumed too early, or from nowhere: %s", early.Load(), got)
		}
		if got := answers["gone"]; !strings.Contains(got, "outcome unknown: the server does not know the call") {
			t.Error(got)
		}
	})
}

// A server sends a message twice, because the call was resumed twice. The host gets it once,
// also if the first sending reached the end of the call.
func TestWebSocketRepeatedMessages(t *testing.T) {
	t.Parallel()
	url, _ := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			for range 2 {
				utter(ws, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"t","_meta":{"holdfast/eventId":"c.1.1"}}}`, m.ID)
				utter(ws, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"of the call","_meta":{"holdfast/eventId":"c.1.2"}}}`)
				utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			}
			utter(ws, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"of none","_meta":{"holdfast/eventId":"s.1.1"}}}`)
		}
		return true
	})
	r := newRaw(t, url, client.Options{NoListen: true})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	var heard []string
	r.until(func(m jsonrpc.Message) bool {
		if m.Method == "notifications/message" {
			heard = append(heard, jsonrpc.String(jsonrpc.Field(m.Params, "data")))
		}
		return len(heard) > 0 && heard[len(heard)-1] == "of none"
	})
	if got := strings.Join(heard, ", "); got != "of the call, of none" {
		t.Errorf("heard %s", got)
	}
}

// When two clients follow one call, one of them over a WebSocket, both get its response, and each gets each message once.
func TestTwoClientsFollowOneCall(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"ws", "http"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, on := mcp.NewServer(impl, nil), make(chan struct{}, 2)
				mcp.AddTool(server, &mcp.Tool{Name: "step"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					for i := range 2 {
						_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: float64(i + 1)})
						select {
						case <-on:
						case <-ctx.Done():
							return nil, nil, ctx.Err()
						}
					}
					return nil, "done", nil
				})
				url, hc := serveInside(t, holdfastOf(t, server, nil))
				first := newRaw(t, scheme+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
				first.open()
				first.send(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"step","arguments":{}}}`)
				progress := func(n int) func(jsonrpc.Message) bool {
					return func(m jsonrpc.Message) bool {
						return m.Method == "notifications/progress" && string(jsonrpc.Field(m.Params, "progress")) == fmt.Sprint(n)
					}
				}
				first.until(progress(1))
				state := first.State()
				if len(state.Calls) != 1 || state.Calls[0].Token == "" {
					t.Fatalf("%+v", state)
				}
				call := state.Calls[0]
				call.Stream, call.Session, call.Key, call.Request = "", "", "", nil
				other := newRaw(t, scheme+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc, NoListen: true, State: &client.State{
					URL: state.URL, Revision: state.Revision, Calls: []client.CallState{call},
				}})
				on <- struct{}{}
				other.until(progress(2))
				on <- struct{}{}
				ended := make(chan string, 2)
				for _, r := range []*raw{first, other} {
					go func() {
						ctx, stop := context.WithTimeout(context.Background(), soon)
						defer stop()
						for {
							m, err := r.Receive(ctx)
							if err != nil {
								ended <- err.Error()
								return
							}
							if progress(1)(m) || r == other && progress(2)(m) {
								ended <- "again: " + string(m.Raw)
								return
							}
							if m.Kind == jsonrpc.Response {
								_ = r.Close() // this also ends the session, if this client began it
								ended <- string(m.Raw)
								return
							}
						}
					}()
				}
				for range 2 {
					if got := <-ended; !strings.Contains(got, "done") {
						t.Error(got)
					}
				}
			})
		})
	}
}
