package e2e

import (
	"encoding/json"
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
	modern  bool          // it speaks revision 2026-07-28 only; else only older revisions
	answers chan struct{} // one for each answer of a client to a question
}

// A bodyRequest has the members of a message that a bodyServer reads.
type bodyRequest struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Cursor    string
		Revision  string `json:"protocolVersion"`
		Arguments struct {
			Case  string
			N, MS int
		}
	}
}

func newBodyServer(modern bool) bodyServer {
	return bodyServer{modern, make(chan struct{}, 10_000)}
}

// serve serves s over Streamable HTTP, without sessions, and returns the URL.
func (s bodyServer) serve(t *testing.T) string {
	return mcptest.Serve(t, &mcptest.Server{Stateless: true, New: func() mcptest.Script { return s.script }})
}

// script answers a message, as an [mcptest.Script].
func (s bodyServer) script(text jsonrpc.Message, say func(string)) (answer string) {
	var m bodyRequest
	_ = json.Unmarshal(text.Raw, &m) // malformed members are ignored
	if m.Method == "" {
		s.answers <- struct{}{}
	}
	if m.ID == nil || m.Method == "" {
		return ""
	}
	const capabilities = `"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}},"serverInfo":{"name":"bodies","version":"1"}`
	result := `{}`
	switch {
	case m.Method == "initialize" && !s.modern:
		result = `{"protocolVersion":"` + m.Params.Revision + `",` + capabilities + `}`
	case m.Method == "server/discover" && s.modern:
		result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0,"cacheScope":"private",` + capabilities + `}`
	case m.Method == "ping" && !s.modern:
	case m.Method == "tools/call":
		time.Sleep(time.Duration(m.Params.Arguments.MS) * time.Millisecond)
		return s.call(&m, say)
	case strings.HasSuffix(m.Method, "/list"):
		result = s.list(&m)
	case m.Method == "resources/read":
		result = `{"contents":[]}`
	case m.Method == "prompts/get":
		result = `{"messages":[]}`
	case m.Method == "completion/complete":
		result = `{"completion":{"values":["a"]}}`
	case m.Method == "logging/setLevel", strings.HasPrefix(m.Method, "resources/"):
	default:
		return mcptest.Error(text, -32601, "method not found")
	}
	return mcptest.Result(text, result)
}

// list returns a page of a list. The cursor says the page's kind and length.
func (s bodyServer) list(m *bodyRequest) string {
	kind, size, _ := strings.Cut(m.Params.Cursor, "-")
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
	return `{` + more + `"` + member + `":[` + items + `]}`
}

// call answers a call of a tool.
func (s bodyServer) call(m *bodyRequest, say func(string)) (answer string) {
	n, more := m.Params.Arguments.N, ""
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
	switch m.Params.Arguments.Case {
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
