package e2e

import (
	"errors"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testport"
)

// A program with its calls in memory is killed and started again at its address: the go-sdk's client, unchanged, goes on in its
// session; a deleted session stays deleted; and another program does not know the session.
func TestReviveAfterKill(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	at, dir := testport.Addr(t), filepath.Join(t.TempDir(), "state")
	start := func() *program {
		return serveBy(t, exec.Command(built, "serve", "--demo", "--listen", at, "--state-dir", dir))
	}
	p := start()
	ctx := t.Context()
	client := mcp.NewClient(&mcp.Implementation{Name: "revived", Version: "1"}, nil)
	session := mcptest.Must(client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: p.URL, DisableStandaloneSSE: true}, nil))(t)
	defer session.Close()
	counts := func() error {
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "count", Arguments: map[string]any{"to": 3}})
		if err == nil && r.IsError {
			err = errors.New("the tool failed")
		}
		return err
	}
	mcptest.Check(t, counts())
	ended := post(t, p.URL, "", "", begins).Header.Get("Mcp-Session-Id")
	post(t, p.URL, "", ended, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if r, err := mcptest.Exchange(ctx, http.MethodDelete, p.URL, "", "Mcp-Session-Id", ended); err != nil || r.Status != http.StatusNoContent {
		t.Fatal(r, err)
	}
	for range 2 {
		_ = p.cmd.Process.Kill()
		_ = p.wait(t, time.Minute)
		p = start()
		if err := counts(); err != nil {
			t.Errorf("after the restart: %v", err)
		}
		if r := post(t, p.URL, "", ended, calls("count")); r.Status != 404 {
			t.Errorf("a session that was ended: %d %s", r.Status, r.Body)
		}
	}
	other := serve(t, "--demo")
	if r := post(t, other.URL, "", session.ID(), calls("count")); r.Status != 404 {
		t.Errorf("at another program: %d %s", r.Status, r.Body)
	}
	none := serveBy(t, exec.Command(built, "serve", "--demo", "--listen", "127.0.0.1:0", "--session-life", "0"))
	if id := post(t, none.URL, "", "", begins).Header.Get("Mcp-Session-Id"); len(id) > 40 || strings.Contains(id, ".") {
		t.Errorf("with --session-life 0 an id is %q", id)
	}
}
