package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// greeting is a feature that the server does not know: a method, and a member in each result of a tool.
type greeting struct{}

const methodGreet = "example.com/greet"

func (greeting) Ref(*modern.Request) string { return "" }

func (greeting) Serve(_ *modern.Request, m *jsonrpc.Message) (result []byte, ours bool, err error) {
	if m.Method != methodGreet {
		return nil, false, nil
	}
	name := jsonrpc.String(jsonrpc.Field(m.Params, "name"))
	if name == "" {
		return nil, true, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "who is to be greeted?")
	}
	return []byte(`{"resultType":"complete","text":` + string(jsonrpc.Quote("hello, "+name)) + `}`), true, nil
}

func (greeting) NotFound(string) *jsonrpc.Error         { return nil }
func (greeting) Continues(*jsonrpc.Message) bool        { return false }
func (greeting) Patience(*modern.Request) time.Duration { return 0 }

func (greeting) Answer(*modern.Request, *jsonrpc.Message, *session.Session, uint64) []byte {
	return nil
}

func (greeting) Own(q *modern.Request, response []byte) []byte {
	if q.Method == protocol.MethodCallTool {
		response, _ = jsonrpc.Set(response, []byte("true"), "result", "_meta", "example.com/greeted")
	}
	return response
}

func (greeting) Listen(*modern.Request, *jsonrpc.Message, modern.Again) (modern.Listen, error) {
	return nil, nil
}

// A feature is a type and a line in Options.Features: the code that serves requests does not change.
func TestFeatureIsAdded(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	n.AddFeature(greeting{})
	p := &peer{n: n}
	for _, test := range []struct {
		method, name, params, want string
		status                     int
	}{
		{methodGreet, "", `{"name":"ada"}`, `"text":"hello, ada"`, http.StatusOK},
		{methodGreet, "", `{}`, "who is to be greeted?", http.StatusBadRequest},
		{"example.com/other", "", `{}`, `"code":-32601`, http.StatusNotFound},
		{protocol.MethodCallTool, "echo", `{"name":"echo","arguments":{"text":"x"}}`, `"example.com/greeted":true`, http.StatusOK},
	} {
		if r := p.modern(test.method, test.name, test.params, `{}`); r.status != test.status || !strings.Contains(string(r.body), test.want) {
			t.Errorf("%s %s: %d %s", test.method, test.params, r.status, r.body)
		}
	}
}
