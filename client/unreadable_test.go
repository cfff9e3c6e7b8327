package client_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// All calls share a connection. An answer that breaks JSON or JSON-RPC a little is read, or ends its call with an error
// that quotes it. Bytes that are no answer end no call.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	const result = `{"content":[]}`
	servers := map[string]func(t *testing.T, say func(id string) []string) *raw{
		"HTTP+SSE":  dialOddSSE,
		"WebSocket": dialOddWebSocket,
	}
	for name, of := range map[string]struct {
		texts string // with ID for the id of the call
		want  string // a part of the answer
	}{
		"an id as a string":       {`{"jsonrpc":"2.0","id":"ID","result":` + result + `}`, result},
		"an id as a fraction":     {`{"jsonrpc":"2.0","id":ID.0,"result":` + result + `}`, result},
		"null beside the result":  {`{"jsonrpc":"2.0","id":ID,"error":null,"result":` + result + `}`, result},
		"noise, then the answer":  {`ping|[DONE]|{}|{"jsonrpc":"2.0","id":99,"result":NaN}|{"jsonrpc":"2.0","id":ID,"result":` + result + `}`, result},
		"NaN":                     {`{"jsonrpc":"2.0","id":ID,"result":NaN}`, "NaN"},
		"an error that is text":   {`{"jsonrpc":"2.0","id":ID,"error":"no luck"}`, "no luck"},
		"an error with id null":   {`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad"}}`, `{"code":-32602,"message":"bad"}`},
		"an error without an id":  {`{"jsonrpc":"2.0","error":{"code":-32602,"message":"bad"}}`, `{"code":-32602,"message":"bad"}`},
		"text before the message": {`INFO {"jsonrpc":"2.0","id":ID,"result":` + result + `}`, "INFO"},
	} {
		for transport, dial := range servers {
			t.Run(transport+", "+name, func(t *testing.T) {
				t.Parallel()
				r := dial(t, func(id string) []string { return strings.Split(strings.ReplaceAll(of.texts, "ID", id), "|") })
				r.open()
				r.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"odd"}}`)
				if m := r.answer("7"); !strings.Contains(strings.ReplaceAll(string(m.Raw), `\"`, `"`), of.want) {
					t.Errorf("the answer is %s", m.Raw)
				}
				r.send(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
				if m := r.answer("8"); m.Error != nil {
					t.Errorf("then it is %s", m.Raw)
				}
			})
		}
	}
}

// dialOddWebSocket returns a client of a server over a WebSocket. The server answers a tool call with the messages that say returns for the call's id.
func dialOddWebSocket(t *testing.T, say func(id string) []string) *raw {
	url, _ := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		for _, text := range oddly(m, say) {
			utter(ws, "%s", text)
		}
		return true
	})
	return newRaw(t, url, client.Options{})
}

// oddly returns such a server's answer to a message.
func oddly(m jsonrpc.Message, say func(id string) []string) []string {
	switch {
	case m.Kind != jsonrpc.Request:
		return nil
	case m.Method == "tools/call":
		return say(string(m.ID))
	}
	return []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)}
}

// dialOddSSE is dialOddWebSocket over HTTP+SSE.
func dialOddSSE(t *testing.T, say func(id string) []string) *raw {
	url := mcptest.Serve(t, &mcptest.Server{New: func() mcptest.Script {
		return func(m jsonrpc.Message, _ func(string)) string {
			if m.Method == "initialize" {
				return fmt.Sprintf(greeting, m.ID)
			}
			return strings.Join(oddly(m, say), "\n")
		}
	}})
	return newRaw(t, url+"/sse", client.Options{Transport: client.SSE})
}
