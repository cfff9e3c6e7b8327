package skim

import (
	"strings"
	"testing"

	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/jsonrpc"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		text string
		kind jsonrpc.Kind
		id   string
		ok   bool
	}{
		{`{"jsonrpc":"2.0","id":7,"result":{"id":8,"method":"` + long + `"}}`, jsonrpc.Response, "7", true},
		{`{"result":{"a":[{"id":1},"\"id\":2"]},"id":"q\"}"}`, jsonrpc.Response, `"q\"}"`, true},
		{`{"id":null,"error":{"code":1,"message":"` + long + `"}}`, jsonrpc.Response, "", true},
		{`{"method":"roots/list","params":{"x":"` + long + `"},"id":"a"}`, jsonrpc.Request, `"a"`, true},
		{`{"id":5,"method":"a","result":{}}`, jsonrpc.Request, "5", true},
		{`{"method":"notifications/message","params":{"id":3,"data":"` + long + `"}}`, jsonrpc.Notification, "", true},
		{`{"id":"` + long + `","result":{}}`, jsonrpc.Response, "", true}, // longer than the limit for an id
		{`{"` + long + `":1,"id":3}`, jsonrpc.Notification, "3", false},
		{`[{"id":1,"result":{}}]`, jsonrpc.Notification, "", false},
		{`{}`, jsonrpc.Notification, "", false},
	} {
		var m Message
		for i := range len(c.text) { // byte by byte
			_, _ = m.Write([]byte(c.text[i : i+1]))
		}
		kind, ok := m.Kind()
		if kind != c.kind || ok != c.ok || string(m.ID()) != c.id {
			t.Errorf("%.60s: %v %v, id %.60s", c.text, kind, ok, m.ID())
		}
	}
}
