package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// newUnknowing returns a server that sends members that no revision has. Its tool returns the params that the server got.
func newUnknowing() mcptest.Script {
	var hello atomic.Pointer[string] // the params of initialize
	hello.Store(new(string))
	answers := mcptest.Answers{
		"initialize": func(m jsonrpc.Message, _ func(string)) string {
			params := string(m.Params)
			hello.Store(&params)
			return mcptest.Result(m, fmt.Sprintf(`{"protocolVersion":%s,"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"x/server":{}},"x-capability":{"a":1}},`+
				`"serverInfo":{"name":"unknown","version":"1","icons":[{"src":"https://example.com/i.png"}],"x-info":1},"x-hello":2}`, jsonrpc.Field(m.Params, "protocolVersion")))
		},
		"tools/list": mcptest.Fixed(`{"tools":[{"name":"tell","inputSchema":{"type":"object","x-schema":true},"icons":[{"src":"https://example.com/t.png","theme":"dark"}],"annotations":{"readOnlyHint":true,"x-hint":"h"},` +
			`"_meta":{"ui":{"resourceUri":"ui://app"},"x/tool":1},"x-tool":{"b":2}}],"_meta":{"x/list":1},"x-list":3}`),
		"tools/call": func(m jsonrpc.Message, _ func(string)) string {
			told, _ := json.Marshal(*hello.Load() + string(m.Params))
			return mcptest.Result(m, fmt.Sprintf(`{"content":[{"type":"text","text":%s,"annotations":{"x-note":1},"_meta":{"x/content":1},"x-content":4},{"type":"x-kind","x-of":5}],"structuredContent":{"c":[]},"_meta":{"x/result":1},"x-result":6}`, told))
		},
	}
	return func(m jsonrpc.Message, say func(string)) string {
		if m.Kind != jsonrpc.Request || answers[m.Method] != nil {
			return answers.Script(m, say)
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found","data":{"x-data":7},"x-error":8}}`, m.ID)
	}
}

// wantAll checks that text contains the texts in want, with quotes escaped or not.
func wantAll(t *testing.T, what, text string, want ...string) {
	t.Helper()
	plain := strings.ReplaceAll(text, `\"`, `"`)
	for _, w := range want {
		if !strings.Contains(plain, w) {
			t.Errorf("%s: %s is missing in %s", what, w, plain)
		}
	}
}

// FAILURES 28: extensions and members that Holdfast does not know pass through every backend and both translations, both ways.
func TestFailure28Unknown(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	up := mcptest.Serve(t, &mcptest.Server{New: newUnknowing, Open: true}) + "/json"
	const capabilities = `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"x/client":{}},"x-client":{"d":1}}`
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `,"clientInfo":{"name":"c","version":"1","x-info":1},"x-init":2}}`
	ofServer := []string{`"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}`, `"x/server":{}`}
	ofInfo := []string{`"icons":[{"src":"https://example.com/i.png"}]`, `"x-info":1`}
	ofTool := []string{`"x-schema":true`, `"theme":"dark"`, `"x-hint":"h"`, `"resourceUri":"ui://app"`, `"x/tool":1`, `"x-tool":{"b":2}`}
	ofResult := []string{`"x-note":1`, `"x/content":1`, `"x-content":4`, `{"type":"x-kind","x-of":5}`, `"x/result":1`, `"x-result":6`}
	ofClient := []string{`"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}`, `"x/client":{}`, `"x-client":{"d":1}`}
	ofCall := []string{`"x/call":{"e":1}`, `"x-param":9`, `"x-argument":[1]`}
	calls := func(prefix, meta string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%stell","arguments":{"x-argument":[1]},"x-param":9,"_meta":{"x/call":{"e":1}%s}}}`, prefix, meta)
	}
	merged := fmt.Sprintf(`{"mcpServers":{"a":{"command":%q,"args":["unknown"]},"b":{"url":%q}},"holdfast":{"merge":true}}`, self, up)
	for name, of := range map[string]struct {
		url    func() string
		prefix string
		shared bool // the server has one client, which declares no capabilities
		merged bool // the name of the server and the members of its list are those of the merged server
	}{
		"process":          {url: func() string { return serve(t, "--", self, "unknown").URL }},
		"upstream":         {url: func() string { return serve(t, "--upstream", up).URL }},
		"shared":           {url: func() string { return serve(t, "--share", "--", self, "unknown").URL }, shared: true},
		"merged, process":  {url: func() string { return serveFile(t, merged) + "/mcp" }, prefix: "a_", merged: true},
		"merged, upstream": {url: func() string { return serveFile(t, merged) + "/mcp" }, prefix: "b_", merged: true},
	} {
		url := of.url()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := post(t, url, "", "", hello)
			session := r.Header.Get("Mcp-Session-Id")
			post(t, url, "", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			wantAll(t, "the server's capabilities", r.Body, ofServer...)
			if !of.merged {
				wantAll(t, "the server's info", r.Body, append(ofInfo, `"x-capability":{"a":1}`, `"x-hello":2`)...)
			}
			list := post(t, url, "", session, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"x/call":1}}}`).Body
			wantAll(t, "a tool", list, ofTool...)
			if !of.merged {
				wantAll(t, "the list", list, `"x/list":1`, `"x-list":3`)
			}
			got := post(t, url, "", session, calls(of.prefix, "")).Body
			wantAll(t, "a result", got, ofResult...)
			wantAll(t, "a call", got, ofCall...)
			if !of.shared {
				wantAll(t, "the client's capabilities", got, ofClient...)
			}
			if failed := post(t, url, "", session, `{"jsonrpc":"2.0","id":4,"method":"vendor/unknown","params":{}}`).Body; !of.merged {
				wantAll(t, "an error", failed, `"x-data":7`)
			}
			modern := post(t, url, "", "", calls(of.prefix, `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"m","version":"1"},"io.modelcontextprotocol/clientCapabilities":`+capabilities)).Body
			wantAll(t, "a result for a modern client", modern, ofResult...)
			wantAll(t, "a call of a modern client", modern, ofCall...)
			if !of.shared {
				wantAll(t, "a modern client's capabilities", modern, ofClient...)
			}
		})
	}
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		b := hostOf(t, connectCommand(t, "connect:"+up)...)
		b.Say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		wantAll(t, "a tool", b.response("2"), append(ofTool, `"x/list":1`, `"x-list":3`)...)
		b.Say("%s", calls("", ""))
		got := b.response("3")
		wantAll(t, "a result", got, ofResult...)
		wantAll(t, "a call", got, ofCall...)
	})
}
