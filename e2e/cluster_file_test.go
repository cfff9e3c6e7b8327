package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// fileEngine is an engine for one node: files in a directory.
func fileEngine(t *testing.T) *sharedEngine {
	dir := t.TempDir()
	return &sharedEngine{name: "file", url: func([]string) string { return "file:" + dir }}
}

// One node with its calls on disk is killed, and started again with the same directory and port. Retry-safe calls
// run again, the outcome of others is unknown, and a call that had ended can be read. (Failures 1, 2 and 7)
func TestFile(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fileEngine(t), shape{nodes: 1})
	n := f.nodes[0]
	at := fixed(n.url())
	ctx := bounded(t, time.Minute)
	idle, asks := f.client(at, at), f.client(at, at)
	done := request{tool: "work", key: `"done"`, args: workArgs{ID: callID(t, "done"), Steps: 2, MS: 20}}
	f.whole(done, asks.ask(ctx, 7, done, ""))

	requests := []request{
		{tool: "work", args: workArgs{ID: callID(t, "work"), Steps: 100, MS: 20_000}},
		{tool: "look", args: workArgs{ID: callID(t, "look"), Steps: 10, MS: 5_000}},
		{tool: "work", key: `"cut"`, args: workArgs{ID: callID(t, "cut"), Steps: 100, MS: 20_000}},
	}
	told := make([]<-chan *callRecord, len(requests))
	for i, q := range requests {
		told[i] = start(ctx, f.client(at, at), q)
	}
	f.running(requests...)
	time.Sleep(300 * time.Millisecond) // so that the calls send some progress
	killed := time.Now()
	n.kill()
	mcptest.Check(t, n.start(n.address()))
	t.Logf("it serves again after %v", time.Since(killed).Round(time.Millisecond))
	for i, q := range requests {
		s := <-told[i]
		s.want(t, q, q.tool == "work")
		t.Logf("%s: ended after %v", q.tool, s.ended.Sub(killed).Round(time.Millisecond))
	}
	f.wantRuns(requests[0].args.ID, 1, 1)
	f.wantRuns(requests[1].args.ID, 2, 2)
	f.wantRuns(requests[2].args.ID, 1, 1)
	f.whole(done, asks.ask(ctx, 7, done, ""))
	q := request{tool: "work", args: workArgs{ID: callID(t, "idle"), Steps: 2, MS: 20}}
	f.whole(q, idle.call(ctx, q))
	stranger := &specClient{at: at, session: strings.Repeat("x", len(idle.session)), http: idle.http}
	if r := stranger.exchange(t, "GET", ""); r.Status != http.StatusNotFound {
		t.Errorf("a session that never was: %d: %s", r.Status, r.Body)
	}
}

// One node with its calls on disk is told to stop, and started again with the same directory
// and port, as in an update. Short calls end before it stops. Of longer calls, those that are
// retry-safe run again after the restart, and the outcome of others is unknown. Calls that come
// meanwhile are refused with a Retry-After: our client comes back by itself, and the official
// client's session can be used again. A client that listens stays connected. (Failure 8)
func TestFileTerminated(t *testing.T) {
	testlong.Only(t, "its calls outlive a drain of 3 s")
	t.Parallel()
	f := newFleet(t, fileEngine(t), shape{nodes: 1, flags: []string{"--drain", "3s"}})
	n := f.nodes[0]
	at := fixed(n.url())
	ctx := bounded(t, 90*time.Second)
	ours, quiet := f.officialClient(holdfast.NewClientTransport(n.url(), nil)), f.officialClient(holdfast.NewClientTransport(n.url(), nil))
	theirs, idle := f.officialClient(&mcp.StreamableClientTransport{Endpoint: n.url(), MaxRetries: 30}), f.client(at, at)
	requests := []request{
		{tool: "work", args: workArgs{ID: callID(t, "short"), Steps: 4, MS: 1_000}},
		{tool: "look", args: workArgs{ID: callID(t, "look"), Steps: 12, MS: 6_000}},
		{tool: "work", args: workArgs{ID: callID(t, "long"), Steps: 12, MS: 60_000}},
		{tool: "look", args: workArgs{ID: callID(t, "ours"), Steps: 12, MS: 6_000}},
	}
	told := make([]<-chan *callRecord, len(requests))
	for i, q := range requests {
		var c caller = ours
		if i < 3 {
			c = f.client(at, at)
		}
		told[i] = start(ctx, c, q)
	}
	f.running(requests...)
	listening := mcptest.Must(idle.now().Send(ctx, http.MethodGet, ""))(t) //nolint:bodyclose // the goroutine closes it
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, listening.Body)
		listening.Body.Close()
	}()

	n.signal(syscall.SIGTERM)
	began := time.Now()
	mcptest.Eventually(t, "what is new is refused", 10*time.Second, func() bool {
		q := request{tool: "look", args: workArgs{ID: callID(t, "idle")}}
		r := idle.exchange(t, "POST", q.body(idle.ids.Add(1)))
		if r.Status != http.StatusOK && (r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" ||
			!strings.Contains(r.Body, "the server is shutting down: try again later")) {
			t.Fatalf("refused with %d, Retry-After %q: %s", r.Status, r.Header.Get("Retry-After"), r.Body)
		}
		return r.Status != http.StatusOK
	})
	select {
	case <-left:
		t.Error("the stream of a client that listens ended before the node")
	default:
	}
	// A request for a list, which is answered from memory, is served.
	idle.listTools(t)
	late := request{tool: "work", args: workArgs{ID: callID(t, "late"), Steps: 2, MS: 20}}
	lateTold := start(ctx, quiet, late)
	refused := request{tool: "work", args: workArgs{ID: callID(t, "refused"), Steps: 0, MS: 20}}
	if s := theirs.call(ctx, refused); s.err == nil {
		t.Errorf("the official client was answered while its node was ending: %q", s.received)
	} else {
		t.Logf("the official client: %v", s.err)
	}
	f.wantRuns(refused.args.ID, 0, 0)
	select {
	case <-n.now().ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	t.Logf("it ended %v after SIGTERM", time.Since(began).Round(time.Millisecond))
	if n.now().err != nil {
		t.Errorf("it ended with %v", n.now().err)
	}
	mcptest.Check(t, n.start(n.address()))
	for i, q := range requests {
		(<-told[i]).want(t, q, i == 2)
	}
	f.wantRuns(requests[0].args.ID, 1, 1)
	f.wantRuns(requests[1].args.ID, 2, 2)
	f.wantRuns(requests[2].args.ID, 1, 1)
	f.wantRuns(requests[3].args.ID, 2, 2)
	f.whole(late, <-lateTold) // our client made it while the node ended
	f.whole(refused, theirs.call(ctx, refused))
}

// piped makes the test binary an MCP server on standard input and output that resumes
// requests (SEP-975), and keeps its calls in a directory.
func piped(args []string) {
	err := func() error {
		ctx := context.Background()
		store, err := engine.Open(ctx, args[0], engine.Options{})
		if err != nil {
			return err
		}
		work := workServer(args[1])
		handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return work }, &holdfast.Options{Store: store})
		if err := handler.ServeConn(ctx, os.Stdin, os.Stdout); err != nil {
			return err
		}
		bounded, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		_ = handler.Shutdown(bounded) // calls that were cut short are kept
		return store.Close()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// newPipe starts piped as a process, and begins a session with it.
func newPipe(t *testing.T, url, traces string) *mcptest.Process {
	t.Helper()
	p := mcptest.Piped(t, exec.Command(os.Args[0], "piped", url, traces))
	p.Say("%s", mcptest.Initialize("2025-11-25", `{"resumableRequests":{}}`))
	p.Hear(`"id":0`)
	p.Say(mcptest.Initialized)
	return p
}

// A stdio server is killed in the middle of calls. After its start it runs retry-safe calls
// again at once. Its client resumes the calls by their tokens on a new connection (SEP-975),
// and receives the end of each.
func TestPipeKilled(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, traces: t.TempDir()}
	url := fileEngine(t).url(nil)
	p := newPipe(t, url, f.traces)
	tokens := make(map[int]string)
	requests := map[int]request{
		1: {tool: "work", args: workArgs{ID: callID(t, "work"), Steps: 100, MS: 20_000}},
		2: {tool: "look", args: workArgs{ID: callID(t, "look"), Steps: 10, MS: 1_000}},
	}
	for id, q := range requests {
		p.Say("%s", q.body(int64(id)))
		tokens[id] = jsonrpc.String(jsonrpc.Field([]byte(p.Hear("resumePolicy", fmt.Sprintf(`"requestId":%d`, id))), "params", "resumeToken"))
	}
	f.running(requests[1], requests[2])
	p.Kill()
	p = newPipe(t, url, f.traces)
	mcptest.Eventually(t, "what is safe runs again", time.Minute, func() bool { return f.runs(requests[2].args.ID) == 2 })
	for id, want := range map[int]string{1: "outcome unknown", 2: "did " + requests[2].args.ID} {
		p.Say(`{"jsonrpc":"2.0","id":%d,"method":"requests/resume","params":{"resumeToken":%q}}`, id, tokens[id])
		if said := p.Hear(fmt.Sprintf(`"id":%d,`, id)); !strings.Contains(said, want) {
			t.Errorf("call %d ended with %s", id, said)
		}
		f.wantRuns(requests[id].args.ID, id, id)
	}
}
