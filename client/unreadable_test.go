package client_test

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// All calls share a connection. An answer that breaks JSON or JSON-RPC a little is read, or ends its call with an error
// that quotes it. Bytes that are no answer end no call.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	const result = `{"content":[]}`
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
		for transport, hello := range map[string]string{"HTTP+SSE": greeting, "WebSocket": keyedGreeting} {
			t.Run(transport+", "+name, func(t *testing.T) {
				t.Parallel()
				url := mcptest.Serve(t, &mcptest.Server{New: func() mcptest.Script {
					return mcptest.Answers{
						"initialize": func(m jsonrpc.Message, _ func(string)) string { return fmt.Sprintf(hello, m.ID) },
						"tools/call odd": func(m jsonrpc.Message, _ func(string)) string {
							return strings.NewReplacer("ID", string(m.ID), "|", "\n").Replace(of.texts)
						},
					}.Script
				}})
				to, o := url+"/sse", client.Options{Transport: client.SSE}
				if transport == "WebSocket" {
					to, o = "ws"+strings.TrimPrefix(url, "http")+"/ws", client.Options{}
				}
				r := newRaw(t, to, o)
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
