package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A request that another Conn sends again from a State has the same bytes, however the host has spelled
// it and the State was stored. If the server still takes it for another request, the outcome is unknown.
func TestRequestSentAgainIsIdentical(t *testing.T) {
	t.Parallel()
	const refused = `{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"the idempotency key was used for another request"}}`
	servers := map[string]func(*testing.T, chan<- string) string{
		"http": func(t *testing.T, calls chan<- string) string {
			t.Helper()
			var came atomic.Int32
			return mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				id := jsonrpc.Field(body, "id")
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Mcp-Session-Id", "s")
				switch jsonrpc.String(jsonrpc.Field(body, "method")) {
				case "initialize":
					fmt.Fprintf(w, keyedGreeting, id)
				case "tools/call":
					calls <- r.Header.Get("Idempotency-Key") + " " + string(body)
					if came.Add(1) == 1 {
						<-r.Context().Done()
						return
					}
					w.WriteHeader(http.StatusUnprocessableEntity)
					fmt.Fprintf(w, refused, id)
				default:
					w.WriteHeader(http.StatusAccepted)
				}
			}))
		},
		"ws": func(t *testing.T, calls chan<- string) string {
			t.Helper()
			url, _ := wsServer(t, func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
				if m.Method == "tools/call" {
					calls <- string(m.Raw)
					if n > 1 {
						utter(ws, refused, m.ID)
					}
				}
				return true
			})
			return url
		},
	}
	writers := map[string]func(any) ([]byte, error){
		"compact":  json.Marshal,
		"indented": func(s any) ([]byte, error) { return json.MarshalIndent(s, "", "  ") },
	}
	for kind, server := range servers {
		for way, write := range writers {
			t.Run(kind+", "+way, func(t *testing.T) {
				t.Parallel()
				calls := make(chan string, 2)
				a := newRaw(t, server(t, calls), client.Options{NoListen: true})
				a.open()
				a.send(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"a": "<é&\"` + "\u2028" + `>"}} }`)
				first := <-calls
				state := a.State()
				text, err := write(&state)
				a.Detach()
				if err != nil {
					t.Fatal(err)
				}
				state = client.State{}
				mcptest.Check(t, json.Unmarshal(text, &state))
				b := newRaw(t, state.URL, client.Options{NoListen: true, State: &state})
				m := b.answer("1")
				if !strings.Contains(string(m.Error), "outcome unknown: the idempotency key was used") {
					t.Errorf("answered %s", m.Raw)
				}
				if again := <-calls; first != again {
					t.Errorf("sent %s\nthen %s", first, again)
				}
			})
		}
	}
}

// A State that is taken between a call's first event id over a WebSocket and its token has the
// request: only the request leads back to the call.
func TestWebSocketStateBeforeToken(t *testing.T) {
	t.Parallel()
	url, _ := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			utter(ws, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"_meta":{"holdfast/eventId":"c.1.1"}}}`, m.ID)
			utter(ws, `{"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{"holdfast/eventId":"c.1.2"}}}`)
		}
		return true
	})
	r := newRaw(t, url, client.Options{NoListen: true})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	r.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	if s := r.State(); len(s.Calls) != 1 || s.Calls[0].LastEventID == "" || len(s.Calls[0].Request) == 0 {
		t.Errorf("%+v", s.Calls)
	}
}
