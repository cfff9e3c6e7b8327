package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

// A client without the SDK can make a modern request of a fixture's tool.
func TestPerRequest(t *testing.T) {
	fixture := newServer()
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return fixture }, options())
	server := httptest.NewServer(handler)
	defer server.Close()
	defer func() { _ = handler.Shutdown(t.Context()) }()
	for _, tt := range []struct {
		name, tool, rest, region string
		status                   int
		want                     string
	}{
		{"a header is missing", "test_x_mcp_header", `"arguments":{"region":"eu"}`, "", 400, `-32020`},
		{"a header differs", "test_x_mcp_header", `"arguments":{"region":"eu"}`, "us", 400, `-32020`},
		{"a header repeats", "test_x_mcp_header", `"arguments":{"region":"eu"}`, "eu", 200, `called with`},
		{"a capability is missing", "test_missing_capability", `"arguments":{}`, "", 400, `"requiredCapabilities":{"sampling":{}}`},
		{"asked under the handler's key", "test_input_required_result_elicitation", `"arguments":{}`, "", 200, `"user_name":{`},
		{"answered", "test_input_required_result_elicitation",
			`"arguments":{},"inputResponses":{"user_name":{"action":"accept","content":{"name":"Ann"}}}`, "", 200, `Hello, Ann!`},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tt.tool + `",` + tt.rest +
			`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tt.tool, "Mcp-Param-Region": tt.region,
		} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != tt.status || !strings.Contains(string(got), tt.want) {
			t.Errorf("%s: %d %s (%v), want %d and %s", tt.name, res.StatusCode, got, err, tt.status, tt.want)
		}
	}
}
