package main

import (
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

// forms are the schemas of a server's forms, by the names of its tools.
var forms = map[string]string{
	"person":  `{"type":"object","required":["name","age"],"properties":{"name":{"type":"string","minLength":2},"age":{"type":"integer","minimum":3,"default":1},"news":{"type":"boolean"}}}`,
	"unsaid":  `{"type":"object","required":["name","more"],"properties":{"name":{"type":"string"}}}`,
	"nothing": `{"type":"object","required":["more"]}`,
	"options": `{"type":"object","properties":{"name":{"type":"string"}}}`,
}

// foreign returns the URL of a server of the go-sdk without Holdfast, which checks the answers that it gets.
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

// pushy returns the URL of a legacy server that asks although its client has not declared elicitation, as servers
// of some libraries do. Its tools return the answer unchanged.
func pushy(t *testing.T) string {
	var q mcptest.Questions
	asks := func(m jsonrpc.Message, say func(string)) string {
		answer := q.Ask(say, "elicitation/create", fmt.Sprintf(`{"message":"Who?","requestedSchema":%s}`, forms[mcptest.Tool(m)]))
		return mcptest.Text(m, string(answer.Result))
	}
	return mcptest.Serve(t, &mcptest.Server{Stateless: true, Script: mcptest.Answers{
		"response": q.Answered, "tools/call person": asks, "tools/call options": asks,
	}.Script})
}

// holdfast call lets the user answer the questions of a server without Holdfast, and sends no
// form that its schema forbids. Without a user it declines, and prints that.
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
			args, typed := []string{"call", "--state=", c.url, c.tool}, "Ada\n36\n\n"
			if c.typed != "-" {
				args, typed = append(args, "--interactive"), c.typed
			}
			out, says, err := runInside(t, typed, args...)
			if failed := fmt.Sprint(err); c.failed == "" && err != nil || !strings.Contains(failed, c.failed) {
				t.Errorf("it failed with %v", err)
			}
			if strings.TrimSpace(out) != c.out || !strings.Contains(says, c.says) {
				t.Errorf("%s\n%s", out, says)
			}
		})
	}
}
