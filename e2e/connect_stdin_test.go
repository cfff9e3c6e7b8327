package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// If a host writes text that is not a message, holdfast connect answers with one error, under the text's id if that can be read, and goes on.
func TestConnectInvalid(t *testing.T) {
	t.Parallel()
	b := hostOf(t, connectCommand(t, "connect:"+serve(t, "--demo").URL)...)
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	const pong = `"id":7,"result"`
	under := func(id string, code int) string { return fmt.Sprintf(`"id":%s,"error":{"code":%d`, id, code) }
	alone := func(code int) string { return fmt.Sprintf(`"2.0","error":{"code":%d`, code) }
	for text, want := range map[string][]string{
		`{"jsonrpc":"2.0","id":7}`:                              {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"params":{}}`:                  {under("7", -32600)},
		`{"id":7}`:                                              {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"method":5}`:                   {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"method":null}`:                {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"Method":"ping"}`:              {under("7", -32600)},
		`{"jsonrpc":"2.0","id":"a","method":"ping","params":3}`: {under(`"a"`, -32600)},
		`{"jsonrpc":"2.0","id":7,"method":"ping","params":"x"}`: {under("7", -32600)},
		`{"id":7,"method":"ping"}`:                              {under("7", -32600)},
		`{"jsonrpc":"1.0","id":7,"method":"ping"}`:              {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"method":"ping","method":"x"}`: {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}`:  {under("7", -32600)},
		`{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`:       {alone(-32600)},
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`:           {alone(-32600)},
		`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`:            {alone(-32600)},
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`:             {alone(-32600)},
		`{"jsonrpc":"2.0","id":[1],"method":"ping"}`:            {alone(-32600)},
		`{"jsonrpc":"2.0","id":true,"method":"ping"}`:           {alone(-32600)},
		`[]`:     {alone(-32600)},
		`[1,{}]`: {alone(-32600), alone(-32600)},
		`[` + ping + `,{"jsonrpc":"2.0","id":8},3]`:                           {pong, under("8", -32600), alone(-32600)},
		ping + `{"jsonrpc":"2.0","id":8,"method":5}`:                          {pong, under("8", -32600)},
		ping + ` trailing`:                                                    {under("7", -32700)},
		`hello ` + ping:                                                       {under("7", -32700)},
		`{"jsonrpc":"2.0","id":7,"method":"ping","extra":{"a":1}}`:            {pong},
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\",\"x\":\"a\tb\"}":   {under("7", -32700)},
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\",\"x\":\"a\xe9b\"}": {under("7", -32700)},
		`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":`:              {under("7", -32700)},
		"\xef\xbb\xbf" + ping:                                                 {pong},
		ping + "\r":                                                           {pong},
		"\n\r\n   \n\t":                                                       nil,
		`{"jsonrpc":"2.0","id":99,"result":{}}`:                               nil,
		`{"jsonrpc":"2.0","method":"notifications/x","params":{"x":`:          nil,
		`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"` + strings.Repeat("a", 17<<20) + `"}}`:   {under("7", -32600)},
		`{"jsonrpc":"2.0","method":"ping","params":{"x":"` + strings.Repeat("a", 17<<20) + `"},"id":"z"}`: {under(`"z"`, -32600)},
		`nonsense`: {alone(-32700)},
	} {
		b.Say("%s", text)
		b.Say(`{"jsonrpc":"2.0","id":"end","method":"ping"}`)
		var got []string
		for ended := false; !ended || len(got) < len(want); {
			switch line, ok := b.Line(); {
			case !ok:
				t.Fatalf("holdfast connect ended after %.100q", text)
			case strings.Contains(line, `"id":"end"`):
				ended = true
			default:
				got = append(got, line)
			}
		}
		for _, one := range want {
			i := slices.IndexFunc(got, func(line string) bool { return strings.Contains(line, one) })
			if i < 0 {
				t.Errorf("%.100q: want %s, got %q", text, one, got)
				continue
			}
			got = slices.Delete(got, i, i+1)
		}
		if len(got) > 0 {
			t.Errorf("%.100q: also %q", text, got)
		}
	}
}

// A host does not get a server's requests for capabilities that it has not declared: holdfast connect answers them, as serve does.
func TestConnectServerChecks(t *testing.T) {
	t.Parallel()
	up := mcptest.Serve(t, &mcptest.Server{Listens: true, New: checking})
	for name, url := range map[string]string{
		"HTTP": up + "/events", "the standalone stream": up + "/get", "WebSocket": "ws" + strings.TrimPrefix(up, "http") + "/ws",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := hostOf(t, connectCommand(t, "connect:"+url)...)
			b.Say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"check","arguments":{}}}`)
			for line, ok := b.Line(); ok; line, ok = b.Line() {
				if strings.Contains(line, "question-") {
					t.Errorf("the host is told %s", line)
				}
				if strings.Contains(line, `"id":1,`) {
					if !strings.Contains(line, heardOfChecks) {
						t.Errorf("got %s", line)
					}
					return
				}
			}
			t.Error("no response")
		})
	}
}

// A waiter is a server with the tool "pay", which reports progress and waits until it may end, and the tool "asks", which asks the user.
type waiter struct {
	URL       string
	ended     chan struct{} // closed when the tool may end
	end       func()        // closes ended
	cancelled atomic.Bool   // the tool's call was cancelled
	runs      atomic.Int32
	notified  atomic.Int32 // how often the roots have changed
}

func newWaiter(t *testing.T) *waiter {
	t.Helper()
	mcptest.Check(t, build())
	w := &waiter{ended: make(chan struct{})}
	w.end = sync.OnceFunc(func() { close(w.ended) })
	server := mcp.NewServer(&mcp.Implementation{Name: "waits", Version: "1"}, &mcp.ServerOptions{
		RootsListChangedHandler: func(context.Context, *mcp.RootsListChangedRequest) { w.notified.Add(1) }, //nolint:staticcheck // hosts of revision 2025-11-25 have it
	})
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, req *mcp.CallToolRequest, args struct {
		Amount float64 `json:"amount"`
		Note   string  `json:"note,omitempty"`
	}) (*mcp.CallToolResult, any, error) {
		w.runs.Add(1)
		_ = progress(ctx, req, 1) // if it fails, the call ends without progress
		select {
		case <-w.ended:
		case <-ctx.Done():
			w.cancelled.Store(true)
		}
		return nil, args.Amount, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "asks"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		_, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "well?", RequestedSchema: map[string]any{"type": "object"}})
		return said(fmt.Sprint("asked: ", err)), nil, nil
	})
	w.URL = library(t, server, &holdfast.Options{Retry: 10 * time.Millisecond})
	t.Cleanup(w.end)
	return w
}

// began waits until the tool runs.
func (w *waiter) began(t *testing.T) {
	t.Helper()
	mcptest.Eventually(t, "the call", time.Minute, func() bool { return w.runs.Load() == 1 })
}

// ranOnce checks that the tool ran once.
func (w *waiter) ranOnce(t *testing.T) {
	t.Helper()
	if n := w.runs.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func pay(id int, amount, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"_meta":%s,"name":"pay","arguments":{"amount":%s}}}`, id, meta, amount)
}

// hello has the first messages of a legacy host.
const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"elicitation":{}},"clientInfo":{"name":"pipe","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

// start starts holdfast connect with an input that ends. It returns a function that waits for the process to end, and returns its output.
func (w *waiter) start(t *testing.T, state, input string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := exec.Command(built, "connect", "--state", state, "--log-level", "error", w.URL)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, os.Stderr
	mcptest.Check(t, cmd.Start())
	late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	return cmd, func() string {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, out.String())
		}
		late.Stop()
		return out.String()
	}
}

// When stdin ends, holdfast connect answers all requests of the host before it ends.
func TestConnectStdinEnds(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]func(*testing.T) string{"kept": (*testing.T).TempDir, "not kept": func(*testing.T) string { return "" }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiter(t)
			dir := state(t)
			_, wait := w.start(t, dir, hello+`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`+"\n"+pay(1, "10", "{}")+"\n"+
				`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n"+`{"jsonrpc":"2.0","id":3}`) // the last line has no newline
			w.began(t)
			time.AfterFunc(500*time.Millisecond, func() { w.end() }) // long after connect has read the end of stdin
			got := wait()
			for _, want := range []string{`"id":0,"result"`, `"structuredContent":10`, `"id":2,"result"`, `"id":3,"error"`} {
				if strings.Count(got, want) != 1 {
					t.Errorf("want %s in %s", want, got)
				}
			}
			if w.notified.Load() != 1 || w.runs.Load() != 1 {
				t.Errorf("%d notifications, %d runs", w.notified.Load(), w.runs.Load())
			}
			if _, wait := w.start(t, dir, hello+mcptest.Call(1, "asks", "{}")); true { // the user has left
				if got := wait(); strings.Count(got, `"id":1,`) != 1 {
					t.Errorf("a call that asks the host gets %s", got)
				}
			}
		})
	}
}

// SIGINT ends holdfast connect before the call has ended: the request gets an error, and the next process gets the response of
// the call, which has run once. The next process also gets it if connect ended because no process read its stdout.
func TestConnectStdinEndsEarly(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*testing.T, *waiter, string){
		"SIGTERM": func(t *testing.T, w *waiter, state string) {
			cmd, wait := w.start(t, state, hello+pay(1, "10", "{}"))
			w.began(t)
			mcptest.Check(t, cmd.Process.Signal(os.Interrupt))
			if got := wait(); strings.Count(got, `"id":1,"error":{"code":-32000,"message":"holdfast connect ends before`) != 1 {
				t.Errorf("got %s", got)
			}
		},
		"no reader": func(t *testing.T, w *waiter, state string) {
			if runtime.GOOS != "linux" {
				t.Skip("it is not known there")
			}
			cmd := exec.Command(built, "connect", "--state", state, "--log-level", "error", w.URL)
			cmd.Stdin = strings.NewReader(hello + pay(1, "10", "{}"))
			r, theirs, err := os.Pipe()
			mcptest.Check(t, err)
			cmd.Stdout = theirs
			mcptest.Check(t, cmd.Start())
			_ = theirs.Close()
			late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
			w.began(t)
			_ = r.Close()
			if err := cmd.Wait(); err != nil { // connect ends, though the call has not ended
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiter(t)
			state := t.TempDir()
			ends(t, w, state)
			cmd := exec.Command(built, "connect", "--state", state, "--log-level", "error", w.URL)
			in, out := io.Pipe()
			cmd.Stdin = in
			var got bytes.Buffer
			cmd.Stdout = &got
			go func() { _, _ = io.WriteString(out, hello+pay(1, "10", "{}")+"\n"); w.end(); _ = out.Close() }()
			if err := cmd.Run(); err != nil || !strings.Contains(got.String(), `"structuredContent":10`) || w.runs.Load() != 1 {
				t.Errorf("%v, %d runs: %s", err, w.runs.Load(), got.String())
			}
		})
	}
}

// A host sends only its first request, to a server that does not answer it, and leaves: connect ends soon after, with the
// server's processes.
func TestConnectStdinEndsBeforeItBegins(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it takes four seconds")
	mcptest.Check(t, build())
	for name, first := range map[string]string{
		"legacy":  hello,
		"modern":  `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n",
		"nothing": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := filepath.Join(t.TempDir(), "alive")
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // once it took 62 s
			defer cancel()
			cmd := exec.CommandContext(ctx, built, "connect", "--", "sh", "-c", "echo $$ >'"+mark+"'; exec sleep 600")
			cmd.Stdin = strings.NewReader(first)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("it ends with %v and %s", err, out)
			}
			if first != "" && !strings.Contains(string(out), `"error"`) {
				t.Errorf("the host is answered with %s", out)
			}
			pid, err := os.ReadFile(mark)
			if err != nil {
				return // the server was never started
			}
			if err := exec.CommandContext(t.Context(), "kill", "-0", strings.TrimSpace(string(pid))).Run(); err == nil {
				t.Errorf("process %s is alive", pid)
			}
		})
	}
}
