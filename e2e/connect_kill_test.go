package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/testlong"
)

// TestConnectKilled kills "holdfast connect" with SIGKILL at any moment, again and
// again, while a host makes a call, and makes the same call again after each
// restart: the tool runs once, and the host gets its answer.
func TestConnectKilled(t *testing.T) {
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	runs := make(map[int]int) // by the number of the call
	server := mcp.NewServer(&mcp.Implementation{Name: "counts", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(_ context.Context, _ *mcp.CallToolRequest, args struct {
		N int `json:"n"`
	}) (*mcp.CallToolResult, any, error) {
		mu.Lock()
		runs[args.N]++
		mu.Unlock()
		time.Sleep(20 * time.Millisecond) // it is work
		return nil, args.N, nil
	})
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = h.Shutdown(ctx)
		s.CloseClientConnections()
		s.Close()
	})
	calls := testlong.Either(10, 40)
	state := t.TempDir()
	began := time.Now()
	if !callThrough(t, s.URL, t.TempDir(), calls, time.Minute) {
		t.Fatal("not even a process that is left alone gets an answer")
	}
	usual := time.Since(began) // the time of a start, an initialize and a call: the shortest so far
	kills, n := 0, 0
	for ; n < calls || kills == 0; n++ { // a slow start can make every process of the first calls outlive its call
		tries := 0
		for answered := false; !answered; tries++ {
			life := rand.N(usual * time.Duration(3+tries) / 4) // later and later, so that it ends
			began = time.Now()
			answered = callThrough(t, s.URL, state, n, life)
		}
		usual = min(usual, time.Since(began))
		kills += tries - 1
		mu.Lock()
		if runs[n] != 1 {
			t.Errorf("call %d has run %d times, in %d tries", n, runs[n], tries)
		}
		mu.Unlock()
	}
	t.Logf("%d calls, %d kills", n, kills)
}

// callThrough makes call n of the tool through a new process, which is killed after
// a time if it has not answered. It reports whether it has.
func callThrough(t *testing.T, url, state string, n int, life time.Duration) bool {
	t.Helper()
	cmd := exec.Command(built, "connect", "--state", state, "--log-level", "error", url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	death := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
	defer func() {
		_ = in.Close()
		_ = cmd.Wait() // it was killed, or not
	}()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, `"id":0,`):
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			fmt.Fprintf(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","arguments":{"n":%d}}}`+"\n", n)
		case strings.Contains(line, `"id":1,`):
			death.Stop()
			if !strings.Contains(line, fmt.Sprintf(`"structuredContent":%d`, n)) {
				t.Errorf("call %d: %s", n, line)
			}
			_ = in.Close()
			_, _ = io.Copy(io.Discard, out)
			return true
		}
	}
	return false
}
