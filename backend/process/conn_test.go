//go:build unix

package process

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

func TestEcho(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	const calls = 100
	var all sync.WaitGroup
	for range calls {
		all.Go(func() { deliver(t, c, "echo", `{"text":"hello"}`) })
	}
	all.Wait()
	var msgs []jsonrpc.Message
	for range calls {
		msgs = append(msgs, within(t, soon, "answer", r.said))
	}
	// The messages are compared after all have arrived: none shares its bytes with another.
	for _, m := range msgs {
		if m.Kind != jsonrpc.Response || string(m.ID) != "7" || string(m.Result) != `{"text":"hello"}` {
			t.Fatalf("got %s %s", m.Kind, m.Raw)
		}
	}
	large := fmt.Sprintf(`{"text":%q}`, strings.Repeat("l", 1<<20))
	deliver(t, c, "echo", large)
	if m := within(t, soon, "large answer", r.said); string(m.Result) != large {
		t.Errorf("got %d bytes, want %d", len(m.Result), len(large))
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.end()
	if err := c.Deliver(request("echo", "{}")); err == nil {
		t.Error("a closed conversation takes messages")
	}
	if strings.Contains(f.logs.String(), "hush") {
		t.Error("the session's secret was logged")
	}
}

// A server sees ids that it can represent, the client's own if possible. The client
// gets its own ids back.
func TestIDs(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	send := func(text string) {
		t.Helper()
		m := mcptest.Must(jsonrpc.Parse([]byte(text)))(t)
		mcptest.Check(t, c.Deliver(backend.Inbound{Message: m}))
	}
	for _, id := range []string{`9007199254740993`, `-0`, `"a\/b"`, `"é<"`, `""`, `-12`, `"x y"`} {
		send(`{"jsonrpc":"2.0","id":` + id + `,"method":"ids"}`)
		if m := within(t, soon, "answer", r.said); string(m.ID) != id || !strings.Contains(string(m.Raw), `"id":`+id) {
			t.Errorf("the answer to %s is %s", id, m.Raw)
		}
	}
	send(`{"jsonrpc":"2.0","id":"w\u0061its","method":"unknown"}`)
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"wa\u0069ts","reason":"r"}}`)
	m := within(t, soon, "cancellation", r.said)
	if got := string(m.Params); m.Method != "saw" || !regexp.MustCompile(`^\{"requestId":\d+,"reason":"r"\}$`).MatchString(got) {
		t.Errorf("the cancellation arrived as %s %s", m.Method, got)
	}
	send(`{"jsonrpc":"2.0","id":"plain","method":"unknown"}`)
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"plain"}}`)
	if m := within(t, soon, "cancellation", r.said); string(m.Params) != `{"requestId":"plain"}` {
		t.Errorf("the cancellation arrived as %s", m.Raw)
	}
	if n := len(c.requests.All()); n != 0 {
		t.Errorf("%d requests are on record", n)
	}
}

// TestAnswers has answers that break JSON or JSON-RPC a little. The client gets the result, the server's own error, or an error
// that quotes the answer. The session goes on after each.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const result = `{"content":[]}`
	for name, of := range map[string]struct{ answer, result, err string }{
		"Latin-1":                 {"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"caf\xe9\"}}", `{"a":"caf` + "\uFFFD" + `"}`, ""},
		"a tab in a string":       {"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\t\"}}", `{"a":"\u0009"}`, ""},
		"id 7.0":                  {`{"jsonrpc":"2.0","id":7.0,"result":` + result + `}`, result, ""},
		"id in quotes":            {`{"jsonrpc":"2.0","id":"7","result":` + result + `}`, result, ""},
		"error null":              {`{"jsonrpc":"2.0","id":7,"result":` + result + `,"error":null}`, result, ""},
		"byte order mark":         {"\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":7,"result":` + result + `}`, result, ""},
		"id null of an error":     {`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad"}}`, "", `{"code":-32602,"message":"bad"}`},
		"NaN":                     {`{"jsonrpc":"2.0","id":7,"result":{"structuredContent":{"a":NaN}}}`, "", `NaN`},
		"text before the message": {`INFO {"jsonrpc":"2.0","id":7,"result":` + result + `}`, "", `INFO`},
		"pretty-printed":          {"{\n \"jsonrpc\": \"2.0\",\n \"id\": 7,\n \"result\": {}\n}", "", `cannot be read`},
		"error as text":           {`{"jsonrpc":"2.0","id":7,"error":"no luck"}`, "", `no luck`},
		"no version":              {`{"id":7,"result":` + result + `}`, "", `cannot be read`},
		"a log, then the answer":  {`sent {"jsonrpc":"2.0","id":7,"result":` + result + "}\n" + `{"jsonrpc":"2.0","id":7,"result":` + result + `}`, result, ""},
		"a banner, the answer":    {"Server {v1} is ready\n{\n" + `{"jsonrpc":"2.0","id":7,"result":` + result + `}`, result, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := newFixture(t, Options{}).open()
			text, _ := json.Marshal(base64.StdEncoding.EncodeToString([]byte(of.answer)))
			deliver(t, c, "print", fmt.Sprintf(`{"raw":%s}`, text))
			m := within(t, soon, "answer", r.said)
			if string(m.ID) != "7" || string(m.Result) != of.result || !strings.Contains(strings.ReplaceAll(string(m.Error), `\"`, `"`), of.err) || (of.err == "") != (m.Error == nil) {
				t.Errorf("the client got %s", m.Raw)
			}
			deliver(t, c, "echo", result)
			if m := within(t, soon, "the next answer", r.said); string(m.Result) != result {
				t.Errorf("then it got %s", m.Raw)
			}
		})
	}
}

// An invalid request of the server is refused under its id, if the id can be read.
func TestBrokenRequests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":44,"method":"ping","params":"x"}`: `"id":44,"error":{"code":-32600`,
		`{"jsonrpc":"1.0","id":45,"method":"ping"}`:              `"id":45,"error":{"code":-32600`,
		`{"id":"46","method":"ping"}`:                            `"id":"46","error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":60,"method":"m","params":[NaN]}`:  `"id":60,"error":{"code":-32700`,
		// The server gets no answer to a line that may be a log, or the beginning of an answer.
		`{"id":1,"level":"info"}` + "\n" + `{"id":47,"method":"ping"}`:       `"id":47,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":1,"resu` + "\n" + `{"id":48,"method":"ping"}`: `"id":48,"error":{"code":-32600`,
	} {
		c, r := newFixture(t, Options{}).open()
		deliver(t, c, "print", fmt.Sprintf(`{"text":%q}`, text))
		if m := within(t, soon, "refusal", r.said); m.Method != "saw" || !strings.Contains(string(m.Params), want) {
			t.Errorf("%s is answered with %s", text, m.Raw)
		}
	}
}

func TestBatchAndGarbage(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	deliver(t, c, "print", `{"text":"\nListening on stdio\u0007!\n\n"}`)
	deliver(t, c, "print", fmt.Sprintf(`{"text":"{%s"}`, strings.Repeat("x", 1000)))
	deliver(t, c, "print", `{"text":" [{\"jsonrpc\":\"2.0\",\"method\":\"a\"}, {\"jsonrpc\":\"2.0\",\"method\":\"b\"}]"}`)
	for _, want := range []string{"a", "b"} {
		if m := within(t, soon, "message", r.said); m.Method != want {
			t.Errorf("got %q, want %q", m.Method, want)
		}
	}
	logs := f.logs.String()
	if n := strings.Count(logs, `"level":"WARN"`); n != 2 {
		t.Errorf("%d warnings, want 2:\n%s", n, logs)
	}
	if !strings.Contains(logs, `Listening on stdio\\a!`) || strings.Contains(logs, strings.Repeat("x", maxQuote)) {
		t.Errorf("lines are not quoted, or not cut:\n%s", logs)
	}
}

func TestStderr(t *testing.T) {
	f := newFixture(t, Options{})
	c, _ := f.open()
	deliver(t, c, "complain", "{}")
	poll(t, "three lines are logged", func() bool { return strings.Contains(f.logs.String(), "the last word") })
	logs := strings.Split(strings.TrimSpace(f.logs.String()), "\n")
	if len(logs) != 3 {
		t.Fatalf("%d lines, want 3", len(logs))
	}
	for _, want := range []string{`"level":"INFO"`, `"session":"public-name"`, `"stderr":"a complaint"`} {
		if !strings.Contains(logs[0], want) {
			t.Errorf("no %s in %s", want, logs[0])
		}
	}
	if len(logs[1]) > maxLogLine+200 {
		t.Errorf("a line of %d bytes was logged", len(logs[1]))
	}
}

// The environment of a server does not contain Holdfast's own settings.
func TestOwnEnvironment(t *testing.T) {
	t.Setenv("HOLDFAST_STORE", "secret")
	t.Setenv("FOR_THE_SERVER", "kept")
	b := mcptest.Must(New([]string{"sh"}, nil))(t)
	defer b.Close()
	env := b.environment("tag")
	if slices.Contains(env, "HOLDFAST_STORE=secret") || !slices.Contains(env, "FOR_THE_SERVER=kept") {
		t.Errorf("got %q", env)
	}
}

func TestExit(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	deliver(t, c, "exit", "{}")
	why := within(t, soon, "Closed", r.closed)
	const want = "server process exited: exit status 3"
	if why.Error() != want {
		t.Errorf("got %q, want %q", why, want)
	}
	if err := c.Deliver(request("echo", "{}")); err == nil {
		t.Error("an ended conversation takes messages")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c, r = f.open() // a second session
	deliver(t, c, "echo", "{}")
	within(t, soon, "answer", r.said)
}

func TestKilled(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	deliver(t, c, "echo", "{}")
	within(t, soon, "answer", r.said)
	mcptest.Check(t, syscall.Kill(c.pid, syscall.SIGKILL))
	why := within(t, soon, "Closed", r.closed)
	if want := "server process exited: signal: killed"; why.Error() != want {
		t.Errorf("got %q, want %q", why, want)
	}
}

// All messages from before the exit are delivered before Closed.
func TestBurstThenExit(t *testing.T) {
	f := newFixture(t, Options{})
	c, r := f.open()
	deliver(t, c, "burst", "{}")
	why := within(t, soon, "Closed", r.closed)
	if len(r.said) != 5000 || why.Error() != "server process exited: exit status 0" {
		t.Errorf("got %d messages, and %q", len(r.said), why)
	}
	for n := range len(r.said) {
		if m := <-r.said; string(m.Params) != fmt.Sprintf(`{"n":%d}`, n) {
			t.Fatalf("message %d is %s", n, m.Raw)
		}
	}
}

// A server process that closes a pipe, exits or writes a message that is too long ends the conversation, and Closed says why.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct{ script, why string }{
		"long message": {
			`head -c 20000 /dev/zero | tr '\0' x; exec sleep 1000`,
			"server process wrote a message of more than 1000 bytes"},
		"closed stdout": {
			`exec >&-; exec sleep 1000`,
			"server process closed its stdout"},
		"closed stdin": {
			`exec <&-; echo not any more >&2; echo '{"jsonrpc":"2.0","method":"ready"}'; exec sleep 1000`,
			"server process stopped reading its stdin: broken pipe"},
		"exit after closed stdout": {
			`exec >&-; exit 5`,
			"the server ended at its start (exit status 5)"},
		"last line without an end": {
			`printf '{"jsonrpc":"2.0","method":"ready"}'; exit 6`,
			"server process exited: exit status 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{MaxMessage: 1000, Grace: 100 * time.Millisecond}, sh(test.script)...)
			c, r := f.open()
			if strings.Contains(test.script, "ready") {
				within(t, soon, "message", r.said)
				// The process may have exited. Or another process that is being started still
				// has the closed end of the pipe: then only a later message fails.
				var over atomic.Bool
				delivered := make(chan struct{})
				go func() {
					defer close(delivered)
					for !over.Load() {
						_ = c.Deliver(request("echo", "{}"))
						time.Sleep(10 * time.Millisecond)
					}
				}()
				defer func() { over.Store(true); <-delivered }()
			}
			if why := within(t, soon, "Closed", r.closed); why.Error() != test.why {
				t.Errorf("got %q, want %q", why, test.why)
			}
		})
	}
}

func TestNeverReads(t *testing.T) {
	const most = 256 << 10
	f := newFixture(t, Options{MaxQueue: most, Grace: 50 * time.Millisecond}, "sleep", "1000")
	c, r := f.open()
	m := request("echo", fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 1000)))
	var err error
	sent := 0
	for err == nil && sent < 10*most {
		began := time.Now()
		err = c.Deliver(m)
		if took := time.Since(began); took > soon {
			t.Fatalf("Deliver took %v", took)
		}
		sent += len(m.Raw)
	}
	if err == nil || !strings.Contains(err.Error(), "does not read its stdin") {
		t.Errorf("got %v after %d bytes", err, sent)
	}
	if sent < most-most/16 || sent > 2*most+pipeSize {
		t.Errorf("%d bytes were taken; the limit is %d", sent, most)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.end()
}

// A process that ignores both the end of its stdin and SIGTERM is killed.
func TestStubborn(t *testing.T) {
	t.Parallel()
	const grace = 200 * time.Millisecond
	f := newFixture(t, Options{Grace: grace},
		sh(`trap '' TERM; echo '{"jsonrpc":"2.0","method":"ready"}'; while :; do sleep 0.05; done`)...)
	c, r := f.open()
	within(t, soon, "message", r.said)
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 2*grace || took > 2*grace+soon {
		t.Errorf("Close took %v, the grace period is %v", took, grace)
	}
	r.end()
}

// A process that ends at the end of its stdin gets the time for that.
func TestOrderlyEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "done")
	f := newFixture(t, Options{Grace: soon}, "sh", "-c", `while read -r line; do :; done; echo done >"$0"`, file)
	c, r := f.open()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.end()
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestCloseRacesExit(t *testing.T) {
	f := newFixture(t, Options{}, sh("read -r line; exit 1")...)
	var all sync.WaitGroup
	for range 20 {
		c, r := f.open()
		all.Go(func() { _ = c.Deliver(request("exit", "{}")) }) // may come too late
		for range 2 {
			all.Go(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				r.end()
			})
		}
	}
	all.Wait()
}

func TestNewFails(t *testing.T) {
	for _, command := range [][]string{nil, {""}, {"holdfast-no-such-program"}, {"./no/such/program"}} {
		if b, err := New(command, nil); err == nil {
			t.Errorf("New(%q) = %v, want an error", command, b)
		}
	}
}

func TestOpenFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server")
	mcptest.Check(t, os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755))
	f := newFixture(t, Options{Dir: filepath.Dir(file)}, "./server")
	mcptest.Check(t, os.Remove(file))
	r := newRecorder(t)
	r.end()
	if _, err := f.Open(context.Background(), backend.Start{}, r); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the program is gone", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Open(context.Background(), backend.Start{}, r); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
}

// A lateCancel is a context that is cancelled from the second call of Err on.
type lateCancel struct {
	context.Context
	looked int
}

func (c *lateCancel) Err() error {
	if c.looked++; c.looked > 1 {
		return context.Canceled
	}
	return nil
}

func TestOpenCancelled(t *testing.T) {
	f := newFixture(t, Options{}, "sleep", "1000")
	r := newRecorder(t)
	r.end()
	ctx := &lateCancel{Context: context.Background()}
	if _, err := f.Open(ctx, backend.Start{}, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if left := marked(f.mark); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Open(ended, backend.Start{}, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
