package translate

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast/backend/process"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// serverVariable makes this test binary a server of the go-sdk.
const serverVariable = "TRANSLATE_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		if err := serveSDK(); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// serveSDK is a server of the go-sdk on stdio that speaks both eras.
func serveSDK() error {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	},
	) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
	})
	return server.Run(context.Background(), &mcp.StdioTransport{})
}

// run returns a process backend in this package's translator.
func run(t *testing.T, env []string, command ...string) *translator {
	t.Helper()
	p := mcptest.Must(process.New(command, &process.Options{Env: append(os.Environ(), env...), Logger: quiet}))(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	b := New(p, quiet).(*translator)
	if !b.Processes() {
		t.Error("no processes")
	}
	b.patience = soon
	return b
}

// request makes a request, and returns its response and the messages before it.
func (h *holdfast) request(of *call, text string) (response jsonrpc.Message, before []said) {
	h.t.Helper()
	h.deliver(of, text)
	for {
		s := h.next()
		if s.closed != nil {
			h.t.Fatalf("closed: %v", s.closed)
		}
		switch {
		case s.m.Kind == jsonrpc.Response:
			return s.m, before
		case s.m.Method == "roots/list": // server-everything sends this request unasked
			h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, s.m.ID))
			continue
		}
		before = append(before, s)
	}
}

// If a command speaks both eras, no client's messages are translated.
func TestProcessOfBothEras(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	b := run(t, []string{serverVariable + "=1", "GORACE=atexit_sleep_ms=0"}, self)
	h := converse(t, b, protocol.V20260728)
	echo := `"name":"echo","arguments":{"text":"hello"}`
	for range 2 {
		m, _ := h.request(&call{"a"}, modernRequest(`"x"`, "tools/call", echo, ""))
		if jsonrpc.String(jsonrpc.Field(m.Result, "resultType")) != protocol.ResultComplete || !strings.Contains(string(m.Result), `"text":"hello"`) {
			t.Errorf("echo: %s", m.Raw)
		}
		h = converse(t, b, protocol.V20260728)
	}
	for range 2 {
		h = converse(t, b, "")
		m, _ := h.request(&call{"a"}, initializeRequest)
		if jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion")) != protocol.V20250618 {
			t.Errorf("initialize: %s", m.Raw)
		}
		h.deliver(nil, initializedNotice)
		m, _ = h.request(&call{"a"}, fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{%s}}`, echo))
		if jsonrpc.Field(m.Result, "resultType") != nil || !strings.Contains(string(m.Result), `"text":"hello"`) {
			t.Errorf("echo: %s", m.Raw)
		}
	}
	if legacy, modern := b.speaks.get(); legacy != yes || modern != yes {
		t.Errorf("legacy: %v, modern: %v", legacy, modern)
	}
}

// The reference server speaks legacy revisions only.
func TestServerEverything(t *testing.T) {
	t.Parallel()
	const server = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
	dir := os.Getenv("HOLDFAST_NPM")
	if dir == "" {
		dir = filepath.Join("..", "..", ".ci", "tmp", "npm")
	}
	file, err := filepath.Abs(filepath.Join(dir, server))
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(file)
	node, noNode := exec.LookPath("node")
	testlong.Needs(t, err == nil && noNode == nil, "node and "+server+": see e2e/doc.go")
	b := run(t, nil, node, file, "stdio")
	h := converse(t, b, protocol.V20260728)

	m, _ := h.request(&call{"a"}, modernRequest("1", "server/discover", "", ""))
	var discovered struct {
		SupportedVersions []string
		Capabilities      map[string]any
		ResultType        string
		CacheScope        string
		Instructions      string
		Meta              map[string]any `json:"_meta"`
	}
	if err := json.Unmarshal(m.Result, &discovered); err != nil {
		t.Fatalf("%s: %v", m.Raw, err)
	}
	if d := discovered; !slices.Contains(d.SupportedVersions, protocol.V20260728) || d.Capabilities["tools"] == nil || d.Capabilities["tasks"] != nil ||
		d.ResultType != "complete" || d.CacheScope != "private" || d.Instructions == "" || d.Meta[protocol.MetaServerInfo] == nil {
		t.Errorf("discovered %s", m.Result)
	}
	m, _ = h.request(&call{"a"}, modernRequest("2", "tools/list", "", ""))
	if jsonrpc.Field(m.Result, "tools") == nil || string(jsonrpc.Field(m.Result, "ttlMs")) != "0" {
		t.Errorf("tools: %s", m.Raw)
	}
	m, before := h.request(&call{"a"}, modernRequest("3", "tools/call",
		`"name":"trigger-long-running-operation","arguments":{"duration":1,"steps":3}`, `"progressToken":"mine"`))
	if jsonrpc.Field(m.Result, "content") == nil || len(before) != 3 {
		t.Errorf("%d notifications, %s", len(before), m.Raw)
	}
	for _, s := range before {
		if s.call == nil || jsonrpc.String(jsonrpc.Field(s.m.Params, "progressToken")) != "mine" {
			t.Errorf("progress: %s", s.m.Raw)
		}
	}
	m, _ = h.request(&call{"a"}, modernRequest("4", "resources/read", `"uri":"demo://no/such"`, ""))
	if string(jsonrpc.Field(m.Error, "code")) != "-32602" {
		t.Errorf("no such resource: %s", m.Raw)
	}

	listen := &call{"listen"}
	const uri = "demo://resource/dynamic/text/1"
	h.deliver(listen, listenTo("5", `{"toolsListChanged":true,"resourceSubscriptions":["`+uri+`"]}`))
	for {
		s := h.next()
		if s.m.Method != protocol.MethodAcknowledged {
			continue
		}
		if s.call != listen || !strings.Contains(string(s.m.Raw), uri) {
			t.Errorf("acknowledged: %s", s.m.Raw)
		}
		break
	}
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)

	ask := &call{"ask"}
	h.deliver(ask, modernRequest("6", "tools/call", `"name":"trigger-elicitation-request","arguments":{}`, ""))
	for {
		s := h.next()
		if s.m.Kind == jsonrpc.Request && s.m.Method != "roots/list" {
			if s.call != ask || s.m.Method != "elicitation/create" {
				t.Errorf("asked %s", s.m.Raw)
			}
			h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, s.m.ID))
		}
		if s.m.Kind == jsonrpc.Response {
			if s.call != ask || !strings.Contains(string(s.m.Result), "declined") {
				t.Errorf("answered %s", s.m.Raw)
			}
			break
		}
	}

	research := &call{"research"}
	h.deliver(research, modernRequest("7", "tools/call", `"name":"simulate-research-query","arguments":{"topic":"python","ambiguous":true}`, ""))
	for asked := false; ; {
		s := h.next()
		if s.m.Method == "elicitation/create" {
			asked = s.call == research
			h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"interpretation":"snake"}}}`, s.m.ID))
		}
		if s.m.Kind == jsonrpc.Response {
			if !asked || s.call != research || !strings.Contains(string(s.m.Result), "snake") || strings.Contains(string(s.m.Result), "related-task") {
				t.Errorf("a tool that needs a task, asked %v: %s", asked, s.m.Raw)
			}
			break
		}
	}
	if legacy, modern := b.speaks.get(); modern != no {
		t.Errorf("legacy: %v, modern: %v", legacy, modern)
	}
}
