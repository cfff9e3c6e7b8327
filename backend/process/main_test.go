//go:build unix

package process

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

const (
	// modeVariable makes the test binary a server, or a user of the backend.
	modeVariable = "PROCESS_TEST_MODE"
	// markVariable marks a test's processes, independently of the tag.
	markVariable = "PROCESS_TEST_MARK"
	// soon is how long a test waits for an event that must happen.
	soon = 30 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(modeVariable) {
	case "server":
		serve(os.Stdin, os.Stdout)
		return
	case "holder":
		hold()
		return
	}
	testlong.AtOnce(16) // the tests wait more than they work
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == nil {
			fmt.Fprintf(os.Stderr, "a child is left (a zombie, if %d is not 0)\n", pid)
			code = 1
		}
		os.Exit(code)
	}))
}

// serve is a stdio server. The method of a request selects its behaviour.
func serve(in io.Reader, out io.Writer) {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := jsonrpc.Parse(bytes.TrimSpace(line))
		if err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(9)
		}
		if m.Kind == jsonrpc.Response { // reported to the client
			_, _ = fmt.Fprintf(out, "%s\n", jsonrpc.AppendRequest(nil, nil, "saw", m.Raw))
			continue
		}
		switch m.Method {
		case "echo":
			_, _ = fmt.Fprintf(out, "%s\r\n", jsonrpc.AppendResult(nil, m.ID, m.Params))
		case "ids": // answered as in many languages: the id is decoded, and encoded again
			var id any
			_ = json.Unmarshal(m.ID, &id)
			text, _ := json.Marshal(id)
			_, _ = fmt.Fprintf(out, "\xef\xbb\xbf%s\n", jsonrpc.AppendResult(nil, text, []byte(`{}`)))
		case "notifications/cancelled": // reported to the client
			_, _ = fmt.Fprintf(out, "%s\n", jsonrpc.AppendRequest(nil, nil, "saw", m.Params))
		case "print": // writes the text in its params unchanged
			var p struct {
				Text string
				Raw  []byte
			}
			_ = json.Unmarshal(m.Params, &p)
			_, _ = fmt.Fprintf(out, "%s%s\n", p.Text, p.Raw)
		case "complain":
			fmt.Fprintf(os.Stderr, "a complaint\n\n%s\nthe last word\n", strings.Repeat("x", 3*maxLogLine))
		case "burst": // writes messages, and exits
			w := bufio.NewWriter(out)
			for n := range 5000 {
				_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","method":"burst","params":{"n":%d}}`+"\n", n)
			}
			_ = w.Flush()
			os.Exit(0)
		case "exit":
			fmt.Fprintln(os.Stderr, "cannot go on")
			os.Exit(3)
		}
	}
}

// A recorder is a sink that keeps the messages that it gets. It fails the test if a
// message comes after the end.
type recorder struct {
	t      *testing.T
	said   chan jsonrpc.Message
	closed chan error

	mu   sync.Mutex
	over bool
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, said: make(chan jsonrpc.Message, 10000), closed: make(chan error, 10)}
}

func (r *recorder) check(what string, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		r.t.Errorf("%s after the end", what)
	}
	r.over = over
}

func (r *recorder) Emit(_ backend.Call, m jsonrpc.Message) {
	r.check("Emit", false)
	r.said <- m
}

func (r *recorder) EmitUnrelated(jsonrpc.Message) { r.t.Error("EmitUnrelated was called") }

func (r *recorder) Closed(why error, reopen bool) {
	r.check("Closed", true)
	if !reopen {
		r.t.Error("Closed says that the backend may not be opened again")
	}
	r.closed <- why
}

// end declares that no message may come any more.
func (r *recorder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// within returns the next value of a channel, and fails the test if none comes in time.
func within[T any](t *testing.T, limit time.Duration, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatalf("no %s within %v", what, limit)
		panic("unreachable")
	}
}

// poll waits until a condition holds.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// A fixture is a backend under test.
type fixture struct {
	*Backend
	t    *testing.T
	mark string
	logs *mcptest.Log // as JSON lines
}

// newFixture makes a backend of the command, or of the test server if there is none.
// At the end of the test no process that the backend started may be left.
func newFixture(t *testing.T, opts Options, command ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, mark: rand.Text(), logs: new(mcptest.Log)}
	opts.Logger = slog.New(slog.NewJSONHandler(f.logs, nil))
	opts.Env = append(os.Environ(), markVariable+"="+f.mark)
	if len(command) == 0 {
		opts.Env = append(opts.Env, modeVariable+"=server", "GORACE=atexit_sleep_ms=0")
		command = []string{os.Args[0]}
	}
	if opts.Grace == 0 {
		opts.Grace = 200 * time.Millisecond
	}
	b := mcptest.Must(New(command, &opts))(t)
	f.Backend = b
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		// A killed process may need a moment to vanish if it is not a child of the test.
		poll(t, "all processes gone", func() bool { return len(marked(f.mark)) == 0 })
	})
	return f
}

// open opens a session.
func (f *fixture) open() (*conn, *recorder) {
	f.t.Helper()
	r := newRecorder(f.t)
	c := mcptest.Must(f.Open(context.Background(), backend.Start{Session: "public-name", Secret: "hush"}, r))(f.t)
	return c.(*conn), r
}

// sh returns a command that runs a shell script.
func sh(script string) []string { return []string{"sh", "-c", script} }

// request makes a message of the client.
func request(method, params string) backend.Inbound {
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, []byte("7"), method, []byte(params)))
	if err != nil {
		panic(err)
	}
	return backend.Inbound{Message: m}
}

// deliver hands a request to the server.
func deliver(t *testing.T, c backend.Conn, method, params string) {
	t.Helper()
	mcptest.Check(t, c.Deliver(request(method, params)))
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc to find processes")
	}
}

// marked returns the processes of a test, without zombies; on systems without
// /proc, none.
func marked(mark string) (pids []int) {
	mcptest.Processes("environ", func(pid int, environ []byte) {
		if bytes.Contains(environ, []byte(markVariable+"="+mark)) {
			pids = append(pids, pid)
		}
	})
	return pids
}
