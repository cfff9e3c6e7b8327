package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// The transports' work on a message grows linearly with the number of its members.
func TestLinear(t *testing.T) {
	request := func(params string) *jsonrpc.Message {
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return &m
	}
	tests := map[string]func(n int) func(){
		"sum of params": func(n int) func() {
			m := request(`{` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { modern.SumOf(m) }
		},
		"sum of equal params": func(n int) func() {
			m := request(`{` + testwork.Many(n, `"x":0`) + `}`)
			return func() { modern.SumOf(m) }
		},
		"what a client says of itself": func(n int) func() {
			m := request(`{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` + testwork.Many(n, `"io.modelcontextprotocol/clientCapabilities":{}`) + `},` + testwork.Many(n, `"name":"a"`) + `}`)
			header := http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"a"}}
			return func() {
				if status, err := new(modern.Request).Read(header, m); err != nil {
					t.Fatal(status, err)
				}
			}
		},
		"idempotency key": func(n int) func() {
			m := request(`{"_meta":{"idempotencyKey":0,` + testwork.Many(n, `"x%d":0`) + `}}`)
			return func() { _, _ = exchange.MessageKey(m) }
		},
		"answers to questions": func(n int) func() {
			m := request(`{"inputResponses":{` + testwork.Many(n, `"x%d":{}`) + `}}`)
			open := make([]jsonrpc.Message, n)
			for i := range open {
				open[i].ID = fmt.Append(nil, i)
			}
			return func() {
				if missing, err := modern.Respond(context.Background(), nil, m, open); len(missing) != n || err != nil {
					t.Fatal(len(missing), err)
				}
			}
		},
		"questions": func(n int) func() {
			q := jsonrpc.Message{Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`)}
			return func() {
				questions := []byte{123}
				for i := range n {
					questions = modern.AppendInput(questions, fmt.Append(nil, i), &q)
				}
			}
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}

// A batch with very many messages is refused.
func TestBatchBound(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":%d,"method":"ping"}`
	if msgs, batch, err := exchange.Parse([]byte(`[` + testwork.Many(exchange.MostBatch, ping) + `]`)); len(msgs) != exchange.MostBatch || !batch || err != nil {
		t.Errorf("the longest: %d messages, %v", len(msgs), err)
	}
	if _, _, err := exchange.Parse([]byte(`[` + testwork.Many(exchange.MostBatch+1, ping) + `]`)); err == nil || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("a longer one: %v", err)
	}
}
