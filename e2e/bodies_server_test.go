package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// A bodyServer is a server that answers with as many members as its client asks for. It writes its
// messages as text, as no library would write them.
type bodyServer struct {
	mcptest.Answers
	modern  bool          // it speaks revision 2026-07-28 only; else only older revisions
	answers chan struct{} // one for each answer of a client to a question
}

func newBodyServer(modern bool) *bodyServer {
	s := &bodyServer{modern: modern, answers: make(chan struct{}, 10_000)}
	const capabilities = `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}}`
	s.Answers = mcptest.Answers{
		"response": func(jsonrpc.Message, func(string)) string { s.answers <- struct{}{}; return "" },
		"initialize": func(m jsonrpc.Message, _ func(string)) string {
			return mcptest.Result(m, mcptest.Welcome(m, capabilities))
		},
		"tools/call": s.call, "tools/list": s.list, "prompts/list": s.list, "resources/list": s.list, "resources/templates/list": s.list,
		"resources/read": mcptest.Fixed(`{"contents":[]}`), "resources/subscribe": mcptest.Fixed(`{}`), "resources/unsubscribe": mcptest.Fixed(`{}`),
		"prompts/get": mcptest.Fixed(`{"messages":[]}`), "completion/complete": mcptest.Fixed(`{"completion":{"values":["a"]}}`), "logging/setLevel": mcptest.Fixed(`{}`),
	}
	if modern {
		refuse := func(m jsonrpc.Message, _ func(string)) string {
			return mcptest.Error(m, jsonrpc.CodeMethodNotFound, "method not found")
		}
		s.Answers["initialize"], s.Answers["ping"] = refuse, refuse
		s.Answers["server/discover"] = mcptest.Fixed(`{"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0,"cacheScope":"private","capabilities":` + capabilities + `,"serverInfo":{"name":"bodies","version":"1"}}`)
	}
	return s
}

// serve serves s over Streamable HTTP, without sessions, and returns the URL.
func (s *bodyServer) serve(t *testing.T) string {
	return mcptest.Serve(t, &mcptest.Server{Stateless: true, Script: s.Script})
}

// list returns a page of a list. The cursor says the page's kind and length.
func (s *bodyServer) list(m jsonrpc.Message, _ func(string)) string {
	kind, size, _ := strings.Cut(jsonrpc.String(jsonrpc.Field(m.Params, "cursor")), "-")
	n, _ := strconv.Atoi(size)
	items, member := `{"name":"say","inputSchema":{"type":"object"}}`, "tools"
	switch m.Method {
	case "prompts/list":
		items, member = testwork.Many(n, `{"name":"p%d"}`), "prompts"
	case "resources/list":
		items, member = testwork.Many(n, `{"name":"r","uri":"r:%d"}`), "resources"
	case "resources/templates/list":
		items, member = testwork.Many(n, `{"name":"r","uriTemplate":"r:%d{x}"}`), "resourceTemplates"
	default:
		switch kind {
		case "tools":
			items = testwork.Many(n, `{"name":"t%d","inputSchema":{"type":"object"}}`)
		case "members":
			items = `{"name":"say","inputSchema":{"type":"object"},` + testwork.Many(n, `"x%d":0`) + `}`
		case "properties":
			items = `{"name":"say","inputSchema":{"type":"object","properties":{` + testwork.Many(n, `"x%d":{}`) + `}}}`
		case "headers":
			items = `{"name":"said","inputSchema":{"type":"object","properties":{` + testwork.Many(n, `"x%d":{"type":"string","x-mcp-header":"X%d"}`) + `}}}`
		case "annotations":
			items = `{"name":"said","inputSchema":{"type":"object","properties":{"a":{"type":"string",` + testwork.Many(n, `"x-mcp-header":"X"`) + `}}}}`
		case "deep":
			items = `{"name":"said","inputSchema":` + strings.Repeat(`{"properties":{"a":`, 90) + `{"type":"string","x-mcp-header":"X","enum":[` + testwork.Many(n, `"x%d"`) + `]}` + strings.Repeat(`}}`, 90) + `}`
		}
	}
	more := ""
	if s.modern {
		more = `"resultType":"complete","ttlMs":0,"cacheScope":"private",`
	}
	return mcptest.Result(m, `{`+more+`"`+member+`":[`+items+`]}`)
}

// call answers a call of a tool.
func (s *bodyServer) call(m jsonrpc.Message, say func(string)) (answer string) {
	ms, _ := strconv.Atoi(string(jsonrpc.Field(m.Params, "arguments", "ms")))
	time.Sleep(time.Duration(ms) * time.Millisecond)
	n, _ := strconv.Atoi(string(jsonrpc.Field(m.Params, "arguments", "n")))
	more := ""
	if s.modern {
		more = `"resultType":"complete",`
	}
	members := testwork.Many(n, `"x%d":0`)
	comma := ""
	if n > 0 {
		comma = ","
	}
	response := func(text string) string { return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,` + text + `}` }
	note := func(method, params string) {
		say(`{"jsonrpc":"2.0","method":"` + method + `","params":{` + params + `}}`)
	}
	ask := func(id, message, properties string) {
		say(`{"jsonrpc":"2.0","id":"` + id + `","method":"elicitation/create","params":{"message":"` + message + `","requestedSchema":{"type":"object","properties":{` + properties + `}}}}`)
	}
	content, rest := "", "" // of the result: its content, and its other members
	switch jsonrpc.String(jsonrpc.Field(m.Params, "arguments", "case")) {
	case "result":
		rest = comma + members
	case "same":
		rest = comma + testwork.Many(n, `"_meta":{}`)
	case "meta":
		rest = `,"_meta":{` + members + `}`
	case "structured":
		rest = `,"structuredContent":{` + members + `}`
	case "content":
		content = testwork.Many(n, `{"type":"text","text":""}`)
	case "error":
		return response(`"error":{"code":-32000,"message":"no","data":{` + members + `}}`)
	case "top":
		return response(`"result":{` + more + `"content":[]}` + comma + members)
	case "questions":
		return response(`"result":{"resultType":"input_required","requestState":"s","inputRequests":{` +
			testwork.Many(n, `"q%d":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}`) + `}}`)
	case "visits":
		return response(`"error":{"code":-32042,"message":"visit","data":{"elicitations":[` +
			testwork.Many(n, `{"mode":"url","elicitationId":"e%d","url":"https://a.example/","message":"?"}`) + `]}}`)
	case "progress":
		note("notifications/progress", `"progressToken":"t","progress":1`+comma+members)
	case "log":
		note("notifications/message", `"level":"error","data":{`+members+`}`)
	case "changed":
		note("notifications/tools/list_changed", members)
	case "updated":
		note("notifications/resources/updated", `"uri":"r:1"`+comma+members)
	case "cancelled":
		note("notifications/cancelled", `"requestId":"nothing"`+comma+members)
	case "ask":
		for i := range n {
			ask(fmt.Sprint("ask-", i), strings.Repeat("?", 3500), "")
		}
		for range n {
			<-s.answers
		}
	case "asked":
		ask("ask", "?", testwork.Many(n, `"x%d":{"type":"string"}`))
	}
	return response(`"result":{` + more + `"content":[` + content + `]` + rest + `}`)
}
