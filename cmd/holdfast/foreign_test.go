package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// forms are what a server asks for, by the names of its tools.
var forms = map[string]string{
	"person":  `{"type":"object","required":["name","age"],"properties":{"name":{"type":"string","minLength":2},"age":{"type":"integer","minimum":3,"default":1},"news":{"type":"boolean"}}}`,
	"unsaid":  `{"type":"object","required":["name","more"],"properties":{"name":{"type":"string"}}}`,
	"nothing": `{"type":"object","required":["more"]}`,
	"options": `{"type":"object","properties":{"name":{"type":"string"}}}`,
}

// foreign returns the URL of a server of the go-sdk without Holdfast, which checks what it is answered.
func foreign(t *testing.T) string {
	server := mcp.NewServer(&mcp.Implementation{Name: "foreign", Version: "1"}, nil)
	for name, form := range forms {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
			res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Who?", RequestedSchema: json.RawMessage(form)})
			if err != nil {
				return nil, nil, err
			}
			said, err := json.Marshal(res.Content)
			return text("%s %s", res.Action, said), nil, err
		})
	}
	return mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
}

// pushy returns the URL of a legacy server that asks although its client has not declared that it can be asked, as
// servers of some libraries do. Its tools return the answer as it came.
func pushy(t *testing.T) string {
	answers := make(chan string, 1)
	script := func(m jsonrpc.Message, say func(string)) string {
		switch {
		case m.Kind == jsonrpc.Response:
			answers <- string(m.Result)
		case m.Kind == jsonrpc.Notification:
		case m.Method == "initialize":
			return mcptest.Result(m, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"pushy","version":"1"}}`)
		case m.Method == "tools/list":
			return mcptest.Result(m, `{"tools":[{"name":"person","inputSchema":{"type":"object"}},{"name":"options","inputSchema":{"type":"object"}}]}`)
		case m.Method == "tools/call":
			form := forms[jsonrpc.String(jsonrpc.Field(m.Params, "name"))]
			say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"Who?","requestedSchema":%s}}`, form))
			select {
			case got := <-answers:
				return mcptest.Text(m, got)
			case <-t.Context().Done():
			}
		default:
			return mcptest.Result(m, `{}`)
		}
		return ""
	}
	return mcptest.Serve(t, &mcptest.Server{Stateless: true, New: func() mcptest.Script { return script }})
}

// holdfast call has the user answer the questions of a server without Holdfast, and sends no form
// that its schema forbids. Where nobody can be asked, it declines, and says so.
func TestCallForeignForm(t *testing.T) {
	t.Parallel()
	checks, asks := foreign(t), pushy(t)
	for what, c := range map[string]struct {
		url, tool, typed  string // typed is what the user types; "-": there is no user
		out, says, failed string
	}{
		"as the schema says": {checks, "person", "\nA\nAda\n\n2\n36\n\n",
			`accept {"age":36,"name":"Ada"}`, "(want at least 2 characters)\n  name: Ada\n  age: \n  (a value is required)\n  age: 2\n  (want at least 3)\n  age: 36", ""},
		"the end within a form":        {checks, "person", "Ada\n", "decline null", "(declined)", ""},
		"required and not said":        {checks, "unsaid", "Ada\n\nsome\n7\n", `accept {"more":7,"name":"Ada"}`, "  more: \n  (a value is required)\n  more: some\n  (want JSON)\n", ""},
		"nothing else said":            {checks, "nothing", "\n[]\n", `accept {"more":[]}`, "(a value is required)", ""},
		"the end where nothing is":     {checks, "nothing", "", "decline null", "(declined)", ""},
		"no user":                      {checks, "person", "-", "", "", "does not support elicitation: to answer questions of the server, use a terminal or --interactive"},
		"no user, and asked":           {asks, "person", "-", `{"action":"decline"}`, "declined, because there is no terminal to ask at: Who?", ""},
		"no user, and all is optional": {asks, "options", "-", `{"action":"decline"}`, "declined, because there is no terminal to ask at: Who?", ""},
		"a form that is left empty":    {asks, "options", "\n", `{"action":"accept","content":{}}`, "  name [none]: ", ""},
	} {
		t.Run(what, func(t *testing.T) {
			var out bytes.Buffer
			var says mcptest.Log // of all commands in this process
			cmd := newRoot()
			args := []string{"call", "--state=", c.url, c.tool}
			if c.typed != "-" {
				args = append(args, "--interactive")
				cmd.SetIn(strings.NewReader(c.typed))
			} else {
				cmd.SetIn(strings.NewReader("Ada\n36\n\n"))
			}
			cmd.SetArgs(args)
			cmd.SetOut(&out)
			cmd.SetErr(&says)
			err := cmd.ExecuteContext(t.Context())
			if failed := fmt.Sprint(err); c.failed == "" && err != nil || !strings.Contains(failed, c.failed) {
				t.Errorf("it failed with %v", err)
			}
			if strings.TrimSpace(out.String()) != c.out || !strings.Contains(says.String(), c.says) {
				t.Errorf("%s\n%s", out.String(), says.String())
			}
		})
	}
}
