package server_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/backend/message"
	"holdfast/jsonrpc"
)

// curious is a backend that sends its client the request in the arguments of a tool or prompt,
// and answers with the client's response. The tool "native" asks by an InputRequiredResult.
type curious struct {
	asking atomic.Pointer[message.Exchange]
}

func (c *curious) Serve(x *message.Exchange) {
	switch {
	case x.Kind == jsonrpc.Response:
		c.asking.Load().Result(result(string(x.Raw)))
	case x.Method == "tools/call", x.Method == "completion/complete", x.Method == "prompts/get":
		asks := jsonrpc.Field(x.Params, "arguments")
		if jsonrpc.String(jsonrpc.Field(x.Params, "name")) == "native" {
			x.Result([]byte(`{"resultType":"input_required","requestState":"mine","inputRequests":{"a":` + string(asks) + `}}`))
			return
		}
		c.asking.Store(x)
		x.Request([]byte(`"q"`), jsonrpc.String(jsonrpc.Field(asks, "method")), jsonrpc.Field(asks, "params"))
	case x.Kind == jsonrpc.Request:
		x.Result([]byte(`{"capabilities":{},"tools":[]}`))
	}
}

// A modern client gets only questions for which it has declared the capability, and only in requests that can have input.
func TestModernAsked(t *testing.T) {
	t.Parallel()
	p := &peer{n: newNode(t, config{backend: message.New(new(curious))})}
	const form, visit = `{"method":"elicitation/create","params":{"message":"?"}}`, `{"method":"elicitation/create","params":{"mode":"url"}}`
	const sample, tools, roots = `{"method":"sampling/createMessage","params":{}}`, `{"method":"sampling/createMessage","params":{"tools":[]}}`, `{"method":"roots/list","params":{}}`
	for _, c := range []struct{ asks, caps, refused string }{
		{form, `{"elicitation":{}}`, ""}, {form, `{}`, "elicitation"}, {form, `{"elicitation":{"url":{}}}`, "elicitation.form"},
		{visit, `{"elicitation":{"url":{}}}`, ""}, {visit, `{"elicitation":{}}`, "elicitation.url"},
		{sample, `{"sampling":{}}`, ""}, {sample, `{"elicitation":{}}`, "sampling"}, {tools, `{"sampling":{}}`, "sampling.tools"},
		{roots, `{"roots":{}}`, ""}, {roots, `{}`, "roots"}, {`{"method":"vendor/ask"}`, `{}`, "vendor/ask"},
	} {
		what := c.asks + " of " + c.caps
		for _, name := range []string{"asks", "native"} {
			r := p.modern("tools/call", name, `{"name":"`+name+`","arguments":`+c.asks+`}`, c.caps)
			asked := jsonrpc.String(jsonrpc.Field(r.body, "result", "resultType")) == "input_required"
			if asked != (c.refused == "") || !asked && !strings.Contains(string(r.body), c.refused) {
				t.Errorf("%s, %s: %d %s", name, what, r.status, r.body)
			}
			if name == "native" && !asked && (r.status != 400 || string(jsonrpc.Field(r.body, "error", "code")) != fmt.Sprint(codeCapability) ||
				jsonrpc.Field(r.body, "error", "data", "requiredCapabilities") == nil) {
				t.Errorf("native, %s: %d %s", what, r.status, r.body)
			}
		}
	}
	const all = `{"elicitation":{}}`
	if r := p.modern("completion/complete", "", `{"arguments":`+form+`}`, all); !strings.Contains(string(r.body), "no input for completion/complete") {
		t.Errorf("in a request that has no input: %d %s", r.status, r.body)
	}
	if r := p.modern("prompts/get", "asks", `{"name":"asks","arguments":`+form+`}`, all); jsonrpc.Field(r.body, "result", "inputRequests") == nil {
		t.Errorf("in a prompt: %d %s", r.status, r.body)
	}
}
