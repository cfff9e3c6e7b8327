package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/statefile"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// taskSoon is the time after which calls become tasks in tests.
const taskSoon = 50 * time.Millisecond

// A testHost is a host that runs a bridge.
type testHost struct {
	t     *testing.T
	in    *io.PipeWriter
	out   *io.PipeReader
	lines *bufio.Scanner
	early []string // lines that read has yet to return
	stop  context.CancelFunc
	ended chan error
}

func newHost(t *testing.T, url, state string) *testHost {
	t.Helper()
	return newHostWith(t, url, &Options{Transport: "auto", State: state, TaskAfter: taskSoon})
}

func newHostWith(t *testing.T, url string, opts *Options) *testHost {
	t.Helper()
	in, toIt := io.Pipe()
	fromIt, out := io.Pipe()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	c := &testHost{t: t, in: toIt, out: fromIt, lines: bufio.NewScanner(fromIt), stop: stop, ended: make(chan error, 1)}
	go func() {
		c.ended <- Run(ctx, url, in, out, opts)
		_ = out.Close()
	}()
	t.Cleanup(c.leave)
	return c
}

// leave ends the bridge, as SIGTERM does.
func (c *testHost) leave() {
	c.stop()
	_ = c.out.Close()
	if err := <-c.ended; err != nil {
		c.t.Error(err)
	}
	c.ended <- nil // for the next receiver
	_ = c.in.Close()
}

func (c *testHost) send(format string, args ...any) {
	c.t.Helper()
	mcptest.Must(fmt.Fprintf(c.in, format+"\n", args...))(c.t)
}

// read reads until a line has a text in it, and returns that line.
func (c *testHost) read(text string) string {
	c.t.Helper()
	var others []string
	for {
		var line string
		switch {
		case len(c.early) > 0:
			line, c.early = c.early[0], c.early[1:]
		case c.lines.Scan():
			line = c.lines.Text()
		default:
			c.t.Fatalf("the bridge ended before %s: it said %.300q", text, others)
		}
		if strings.Contains(line, text) {
			return line
		}
		others = append(others, line)
	}
}

// taken waits until the bridge has taken all lines that it was sent, which it does in order. A repeated call has its host then.
// Lines that arrive meanwhile are kept for read.
func (c *testHost) taken() {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":"taken","method":"ping"}`)
	for c.lines.Scan() {
		if strings.Contains(c.lines.Text(), `"id":"taken"`) {
			return
		}
		c.early = append(c.early, c.lines.Text())
	}
	c.t.Fatalf("the bridge ended: it said %.300q", c.early)
}

func (c *testHost) open() {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"caller","version":"1"}}}`)
	c.read(`"id":0,`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// count calls the tool count.
func (c *testHost) count(id, to int) {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"count","arguments":{"to":%d,"delay_ms":20},"_meta":{"progressToken":%d}}}`, id, to, id)
}

// sessionFiles returns the session files in a directory for state files.
func sessionFiles(t *testing.T, state string) []string {
	t.Helper()
	return mcptest.Must(filepath.Glob(filepath.Join(state, "connect", "*.json")))(t)
}

// A call that is repeated too late runs again.
func TestRepeatedTooLate(t *testing.T) {
	t.Parallel()
	for _, ago := range []time.Duration{time.Minute, 2 * repeatWithin} {
		t.Run(ago.String(), func(t *testing.T) {
			t.Parallel()
			url, halt := countServer(t)
			state := t.TempDir()
			first := newHost(t, url, state)
			first.open()
			halt.Store(true)
			first.count(1, 30)
			first.read(`"progress":3,`)
			first.leave()
			names := sessionFiles(t, state)
			if len(names) != 1 {
				t.Fatalf("kept %q", names)
			}
			data := mcptest.Must(os.ReadFile(names[0]))(t)
			var s sessionRecord
			if err := json.Unmarshal(data, &s); err != nil || len(s.Calls) != 1 {
				t.Fatalf("%+v, %v", s, err)
			}
			s.Alive = time.Now().Add(-ago)
			s.Calls[0].Left = s.Alive
			mcptest.Check(t, statefile.Replace(names[0], mcptest.Must(json.Marshal(s))(t)))
			second := newHost(t, url, state)
			second.open()
			second.count(7, 30)
			second.taken()
			halt.Store(false)
			line := second.read(`"method":"notifications/progress"`)
			if again := strings.Contains(line, `"progress":1,`); again != (ago > repeatWithin) {
				t.Errorf("after %v: %s", ago, line)
			}
			second.read(`"id":7,"result"`)
			second.in.Close()
			if err := <-second.ended; err != nil {
				t.Error(err)
			}
			second.ended <- nil
		})
	}
}

// Two hosts at the same time have a session each, also after both have come back.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	url, halt := countServer(t)
	state := t.TempDir()
	a, b := newHost(t, url, state), newHost(t, url, state)
	a.open()
	b.open()
	halt.Store(true)
	a.count(1, 30)
	b.count(1, 30)
	a.read(`"progress":2,`)
	b.read(`"progress":2,`)
	a.leave()
	b.leave()
	if names := sessionFiles(t, state); len(names) != 2 {
		t.Errorf("kept %q", names)
	}
	a, b = newHost(t, url, state), newHost(t, url, state)
	a.open()
	b.open()
	a.count(2, 30)
	b.count(2, 30)
	a.taken()
	b.taken()
	halt.Store(false)
	for _, c := range []*testHost{a, b} {
		if line := c.read("progress"); strings.Contains(line, `"progress":1,`) {
			t.Error("a call was made a second time")
		}
		c.read(`"id":2,"result"`)
	}
}

// Two windows of a host that come back in another order continue their calls. The first gets
// the session of the other, which then takes its call over from there.
func TestCrossedHosts(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			if scheme == "ws" {
				testlong.Only(t, "a connection whose call another one takes over asks for it again after 5 s")
			}
			url, halt := countServer(t)
			state := t.TempDir()
			url = scheme + strings.TrimPrefix(url, "http")
			a, b := newHost(t, url, state), newHost(t, url, state)
			a.open()
			b.open()
			halt.Store(true)
			a.count(1, 60)
			b.count(1, 70)
			a.read(`"progress":2,`)
			b.read(`"progress":2,`)
			a.leave()
			b.leave() // later than a: b's session is resumed first
			a, b = newHost(t, url, state), newHost(t, url, state)
			a.open()
			a.count(2, 60)
			b.open()
			b.count(2, 70)
			a.taken()
			b.taken()
			halt.Store(false)
			for _, c := range []*testHost{a, b} {
				if line := c.read("progress"); strings.Contains(line, `"progress":1,`) {
					t.Error("a call was made a second time")
				}
				if line := c.read(`"id":2,`); !strings.Contains(line, `"result"`) {
					t.Error(line)
				}
			}
			a.leave()
			b.leave()
		})
	}
}

// A call that another process takes over from one that is ending stays in one session: the next process that has the other session does
// not continue it.
func TestTakenOverAtTheEnd(t *testing.T) {
	t.Parallel()
	url, halt := countServer(t)
	state := t.TempDir()
	a, b := newHost(t, url, state), newHost(t, url, state)
	a.open()
	b.open()
	halt.Store(true)
	a.count(1, 30)
	a.read(`"progress":2,`)
	a.in.Close() // its bridge waits for the response, until b has the call
	b.count(2, 30)
	b.taken()
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	a.ended <- nil
	calls := 0
	for _, name := range sessionFiles(t, state) {
		var r sessionRecord
		mcptest.Check(t, json.Unmarshal(mcptest.Must(os.ReadFile(name))(t), &r))
		calls += len(r.Calls)
	}
	if calls != 1 {
		t.Errorf("the call is in %d sessions", calls)
	}
	halt.Store(false)
	if line := b.read("progress"); strings.Contains(line, `"progress":1,`) {
		t.Error("the call was made a second time")
	}
	b.read(`"id":2,"result"`)
}

// A response that the host did not take is kept for the host that comes back.
func TestResponseNotTaken(t *testing.T) {
	t.Parallel()
	url, _ := countServer(t)
	state := t.TempDir()
	a := newHost(t, url, state)
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":1,"delay_ms":20}}}`)
	_ = a.out.CloseWithError(errors.New("gone"))
	if err := <-a.ended; err != nil { // the bridge notices when the answer comes
		t.Error(err)
	}
	a.ended <- nil
	b := newHost(t, url, state)
	b.open()
	b.count(2, 1)
	if line := b.read(`"jsonrpc"`); !strings.Contains(line, `"id":2,"result"`) {
		t.Errorf("the call was made a second time: %s", line)
	}
}

// An answer of the host with an error that is not as JSON-RPC defines it ends the question of a server with an official SDK.
func TestOddError(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "asks", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		_, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?"})
		return nil, fmt.Sprint(err), nil
	})
	url := mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() {
		for s := range server.Sessions() {
			_ = s.Close()
		}
	})
	h := newHost(t, url, t.TempDir())
	h.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"odd","version":"1"}}}`)
	h.read(`"id":0,`)
	h.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	h.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":{}}}`)
	id := jsonrpc.Field([]byte(h.read("elicitation/create")), "id")
	h.send(`{"jsonrpc":"2.0","id":%s,"error":{"code":"x","message":"no form"}}`, id)
	h.read("no form")
}

// A bridge that cannot write its state works all the same.
func TestUnusableState(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "file")
	mcptest.Check(t, os.WriteFile(state, nil, 0o600))
	url, _ := countServer(t)
	c := newHost(t, url, state)
	c.open()
	c.count(1, 2)
	c.read(`"id":1,"result"`)
}

// A host that closes its output, and reads on, gets the responses to all its requests, also if the session is kept.
func TestAnsweredAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"", t.TempDir()} {
		url, _ := countServer(t)
		var out bytes.Buffer
		in := strings.NewReader(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":1,"delay_ms":40}}}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
`)
		mcptest.Check(t, Run(t.Context(), url, in, &out, &Options{State: state}))
		for _, want := range []string{`"id":1,"result"`, `"id":2,"result"`} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("state %q: no %s in %s", state, want, out.String())
			}
		}
	}
}

// A line that is too long is an error, and the next one is read.
func TestReadLine(t *testing.T) {
	t.Parallel()
	r := bufio.NewReaderSize(strings.NewReader("one\n"+strings.Repeat("x", 100)+"\r\n\n"+strings.Repeat("y", 50)+"\r\nlast"), 16)
	var got []string
	for {
		line, err := readLine(r, 60)
		if err != nil && !errors.Is(err, io.EOF) {
			line = []byte(err.Error())
		}
		got = append(got, string(line))
		if errors.Is(err, io.EOF) {
			break
		}
	}
	want := []string{"one", (&longLineError{}).Error(), "", strings.Repeat("y", 50), "last"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q; want %q", got, want)
	}
}

// A repeated call can be cancelled, also one that was taken over from another window.
func TestCancelTakenOver(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "waits", Version: "1"}, nil)
	ended, tested := make(chan string, 2), make(chan struct{})
	mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, args struct{ Tag string }) (*mcp.CallToolResult, any, error) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1})
		select {
		case <-ctx.Done():
			ended <- args.Tag
		case <-tested:
		}
		return nil, nil, ctx.Err()
	})
	url := serve(t, server)
	t.Cleanup(func() { close(tested) })
	state := t.TempDir()
	wait := func(c *testHost, id int, tag string) {
		c.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait","arguments":{"Tag":%q},"_meta":{"progressToken":%d}}}`, id, tag, id)
	}
	a, b := newHost(t, url, state), newHost(t, url, state)
	a.open()
	b.open()
	wait(a, 1, "a")
	wait(b, 1, "b")
	a.read(`"progress":1`)
	b.read(`"progress":1`)
	a.leave()
	b.leave()
	c := newHost(t, url, state)
	c.open()
	wait(c, 1, "a")
	wait(c, 2, "b")
	c.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	c.read(`"id":3,`)
	for id := 1; id <= 2; id++ {
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)
	}
	var tags []string
	for range 2 {
		select {
		case tag := <-ended:
			tags = append(tags, tag)
		case <-time.After(soon / 2):
			t.Fatalf("only %q were cancelled", tags)
		}
	}
	c.send(`{"jsonrpc":"2.0","id":4,"method":"ping"}`)
	if line := c.read(`"id":`); !strings.Contains(line, `"id":4,`) {
		t.Errorf("a call that was cancelled has an answer: %s", line)
	}
}
