package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestConnectKilled kills "holdfast connect" with SIGKILL at any moment, again and again, while
// a host makes a call, and makes the same call again after each restart: the tool runs once,
// and the host gets its answer. A host that has the id of a task asks for the task instead.
// (Failure 15)
func TestConnectKilled(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	for name, host := range map[string]killHost{
		"legacy": {
			begins: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}`,
			ready:  `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n",
		},
		"modern":                         modernKillHost("{}", false),
		"modern, tasks of connect":       modernKillHost(`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, true),
		"modern, tasks are the server's": modernKillHost(`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, false),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "legacy" {
				testlong.Only(t, "kills many processes")
			}
			var mu sync.Mutex
			runs := make(map[int]int) // runs of the tool, by the number of the call
			server := mcp.NewServer(&mcp.Implementation{Name: "counts", Version: "1"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(_ context.Context, _ *mcp.CallToolRequest, args struct {
				N int `json:"n"`
			}) (*mcp.CallToolResult, any, error) {
				mu.Lock()
				runs[args.N]++
				mu.Unlock()
				time.Sleep(20 * time.Millisecond) // the tool works for a while
				return nil, args.N, nil
			})
			s := library(t, server, &holdfast.Options{
				Retry: 10 * time.Millisecond, Eras: map[bool]holdfast.Era{true: holdfast.ErasLegacy, false: holdfast.ErasBoth}[host.legacyServer], TaskAfter: 10 * time.Millisecond,
			})
			calls := testlong.Either(10, 40)
			state := t.TempDir()
			began := time.Now()
			task := ""
			if !callThrough(t, host, s, t.TempDir(), -1, time.Minute, &task) { // -1: not a number of the calls below, which have no bound
				t.Fatal("not even a process that is left alone gets an answer")
			}
			usual := time.Since(began) // the time of a start, an initialize and a call: the shortest so far
			kills, n, tasks := 0, 0, 0
			for ; n < calls || kills == 0; n++ { // a slow start can make every process of the first calls outlive its call
				tries, task := 0, ""
				for answered := false; !answered; tries++ {
					life := rand.N(usual * time.Duration(3+tries) / 4) // longer with each try, so that one succeeds
					began = time.Now()
					answered = callThrough(t, host, s, state, n, life, &task)
				}
				usual = min(usual, time.Since(began))
				kills += tries - 1
				if task != "" {
					tasks++
				}
				mu.Lock()
				if runs[n] != 1 {
					t.Errorf("call %d has run %d times, in %d tries", n, runs[n], tries)
				}
				mu.Unlock()
			}
			t.Logf("%d calls, of which %d became tasks, %d kills", n, tasks, kills)
			if knows := strings.Contains(host.meta, "tasks"); knows != (tasks > 0) {
				t.Errorf("%d calls became tasks", tasks)
			}
		})
	}
}

// A killHost is a kind of host, and its server.
type killHost struct {
	legacyServer bool   // the server speaks no modern revision
	begins       string // the first message, of id 0
	meta         string // in the params of each further request
	ready        string // a message before the call, or ""
}

func modernKillHost(capabilities string, legacyServer bool) killHost {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"host","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
	return killHost{legacyServer, `{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`, "," + meta, ""}
}

// callThrough makes call n of the tool through a new process, which is killed after life if it
// has not answered. It reports whether it has answered. task is the id of the task that the
// call has become, or "".
func callThrough(t *testing.T, host killHost, url, state string, n int, life time.Duration, task *string) bool {
	t.Helper()
	cmd := exec.Command(built, "connect", "--state", state, "--task-after", "10ms", "--log-level", "error", url)
	cmd.Stderr = os.Stderr
	in := mcptest.Must(cmd.StdinPipe())(t)
	out := mcptest.Must(cmd.StdoutPipe())(t)
	mcptest.Check(t, cmd.Start())
	death := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
	defer func() {
		_ = in.Close()
		_ = cmd.Wait() // an error says that it was killed
	}()
	poll := func() {
		fmt.Fprintf(in, `{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":%q%s}}`+"\n", *task, host.meta)
	}
	fmt.Fprintln(in, host.begins)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, `"id":0,`) && *task != "":
			poll()
		case strings.Contains(line, `"id":0,`):
			fmt.Fprintf(in, `%s{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","arguments":{"n":%d}%s}}`+"\n", host.ready, n, host.meta)
		case strings.Contains(line, `"resultType":"task"`):
			_, id, _ := strings.Cut(line, `"taskId":"`)
			*task, _, _ = strings.Cut(id, `"`)
			poll()
		case strings.Contains(line, `"status":"working"`):
			time.Sleep(10 * time.Millisecond) // between polls
			poll()
		case strings.Contains(line, `"id":1,`), strings.Contains(line, `"id":2,`):
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
