package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// A bodyServer is a server whose answers have as many members as its client asks for. It is made of
// nothing but texts, so that it can say what no library would.
type bodyServer struct {
	modern  bool          // it speaks revision 2026-07-28, and no other; else those before it
	answers chan struct{} // the client's answers to its questions
}

// A bodyRequest is what a bodyServer looks at.
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

// script is the server over stdio.
func (s bodyServer) script(m jsonrpc.Message, say func(string)) string {
	s.answer(m.Raw, say)
	return ""
}

// ServeHTTP makes it a server over Streamable HTTP, without sessions.
func (s bodyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	said := false
	s.answer(body, func(text string) {
		if !said {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		said = true
		_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
		_ = http.NewResponseController(w).Flush()
	})
	if !said {
		w.WriteHeader(http.StatusAccepted)
	}
}

// answer says what follows from a message.
func (s bodyServer) answer(text []byte, say func(string)) {
	var m bodyRequest
	_ = json.Unmarshal(text, &m) // what is not as it should be is not looked at
	if m.Method == "" {
		s.answers <- struct{}{}
	}
	if m.ID == nil || m.Method == "" {
		return
	}
	result := func(text string) { say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + text + `}`) }
	const capabilities = `"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}},"serverInfo":{"name":"bodies","version":"1"}`
	switch {
	case m.Method == "initialize" && !s.modern:
		result(`{"protocolVersion":"` + m.Params.Revision + `",` + capabilities + `}`)
	case m.Method == "server/discover" && s.modern:
		result(`{"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0,"cacheScope":"private",` + capabilities + `}`)
	case m.Method == "ping" && !s.modern:
		result(`{}`)
	case m.Method == "tools/call":
		time.Sleep(time.Duration(m.Params.Arguments.MS) * time.Millisecond)
		s.call(&m, say, result)
	case strings.HasSuffix(m.Method, "/list"):
		s.list(&m, result)
	case m.Method == "resources/read":
		result(`{"contents":[]}`)
	case m.Method == "prompts/get":
		result(`{"messages":[]}`)
	case m.Method == "completion/complete":
		result(`{"completion":{"values":["a"]}}`)
	case m.Method == "logging/setLevel", strings.HasPrefix(m.Method, "resources/"):
		result(`{}`)
	default:
		say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"method not found"}}`)
	}
}

// list answers with a page of a list: a cursor says how long it is, and of what.
func (s bodyServer) list(m *bodyRequest, result func(string)) {
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
	result(`{` + more + `"` + member + `":[` + items + `]}`)
}

// call answers a call of a tool.
func (s bodyServer) call(m *bodyRequest, say, result func(string)) {
	n, more := m.Params.Arguments.N, ""
	if s.modern {
		more = `"resultType":"complete",`
	}
	members := testwork.Many(n, `"x%d":0`)
	comma := ""
	if n > 0 {
		comma = ","
	}
	note := func(method, params string) {
		say(`{"jsonrpc":"2.0","method":"` + method + `","params":{` + params + `}}`)
	}
	switch m.Params.Arguments.Case {
	case "result":
		result(`{` + more + `"content":[]` + comma + members + `}`)
		return
	case "same":
		result(`{` + more + `"content":[]` + comma + testwork.Many(n, `"_meta":{}`) + `}`)
		return
	case "meta":
		result(`{` + more + `"content":[],"_meta":{` + members + `}}`)
		return
	case "structured":
		result(`{` + more + `"content":[],"structuredContent":{` + members + `}}`)
		return
	case "content":
		result(`{` + more + `"content":[` + testwork.Many(n, `{"type":"text","text":""}`) + `]}`)
		return
	case "error":
		say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32000,"message":"no","data":{` + members + `}}}`)
		return
	case "top":
		say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{` + more + `"content":[]}` + comma + members + `}`)
		return
	case "questions":
		result(`{"resultType":"input_required","requestState":"s","inputRequests":{` +
			testwork.Many(n, `"q%d":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}`) + `}}`)
		return
	case "visits":
		say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32042,"message":"visit","data":{"elicitations":[` +
			testwork.Many(n, `{"mode":"url","elicitationId":"e%d","url":"https://a.example/","message":"?"}`) + `]}}}`)
		return
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
			say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"ask-%d","method":"elicitation/create","params":{"message":"%s","requestedSchema":{"type":"object","properties":{}}}}`, i, strings.Repeat("?", 3500)))
		}
		for range n {
			<-s.answers
		}
	case "asked":
		say(`{"jsonrpc":"2.0","id":"ask","method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{` + testwork.Many(n, `"x%d":{"type":"string"}`) + `}}}}`)
	}
	result(`{` + more + `"content":[]}`)
}
