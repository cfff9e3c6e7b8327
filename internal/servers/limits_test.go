package servers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A server has limits of its own, which hold for its calls at its own path and among all servers
// as one. A change of the file changes the limits without the loss of a session.
func TestLimits(t *testing.T) {
	t.Parallel()
	const conf = `{"mcpServers": {"a": {"$url_a", "holdfast": %s}, "b": "$b"}, "holdfast": {"merge": true}}`
	f := newFarm(t, fmt.Sprintf(conf, `{"maxCalls": 2, "toolCalls": {"slow": 1}}`), "a", "b")
	own, all, other := f.session("/a/mcp").Session, f.session("/mcp").Session, f.session("/b/mcp").Session
	try := func(path, session, tool string, want int, reason string) {
		t.Helper()
		status, text, _ := f.post(path, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,"arguments":{"Message":"x"}}}`, path+tool, tool))
		if status != want || !strings.Contains(text, reason) {
			t.Errorf("%s of %s: %d %s", tool, path, status, text)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.connect("/mcp").CallTool(t.Context(), &mcp.CallToolParams{Name: "a_slow", Arguments: message{"x"}})
		done <- err
	}()
	<-f.began
	try("/a/mcp", own, "slow", http.StatusTooManyRequests, "1 calls of this tool")
	try("/mcp", all, "a_slow", http.StatusTooManyRequests, "1 calls of this tool")
	try("/mcp", all, "a_echo", http.StatusOK, "a:echo:x")
	try("/b/mcp", other, "echo", http.StatusOK, "b:echo:x")
	f.set.Apply(f.parse(fmt.Sprintf(conf, `{"maxCalls": 1}`)))
	try("/a/mcp", own, "echo", http.StatusTooManyRequests, "1 calls of this server")
	try("/mcp", all, "b_echo", http.StatusOK, "b:echo:x")
	f.set.Apply(f.parse(fmt.Sprintf(conf, `{"rate": "1/h", "rateBurst": 1}`)))
	try("/a/mcp", own, "echo", http.StatusOK, "a:echo:x")
	try("/mcp", all, "a_echo", http.StatusTooManyRequests, "this client, at this server, may begin")
	try("/mcp", all, "b_echo", http.StatusOK, "b:echo:x")
	f.set.Apply(f.parse(fmt.Sprintf(conf, `{}`)))
	try("/a/mcp", own, "echo", http.StatusOK, "a:echo:x")
	f.release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
