package bridge

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A modern host that cancels a request which has just been answered still hears of changes at a server with sessions.
func TestLateCancel(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}}})
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Eras: holdfast.ErasLegacy, Retry: 10 * time.Millisecond})
	url := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, 0)
	c := newHost(t, url, "")
	c.ask(1, "server/discover", "", false)
	c.ask(2, "tools/list", "", false)
	c.begin(3, protocol.MethodSubscriptions, `"notifications":{"toolsListChanged":true}`, false)
	c.read(protocol.MethodAcknowledged)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	c.taken()
	c.ask(4, "tools/list", "", false)
	mcp.AddTool(server, &mcp.Tool{Name: "new"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	told := []byte(c.read(protocol.MethodToolsListChanged))
	if id := string(jsonrpc.Field(told, "params", "_meta", protocol.MetaSubscriptionID)); id != "3" {
		t.Errorf("the host hears %s", told)
	}
}
