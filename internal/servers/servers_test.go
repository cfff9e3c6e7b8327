package servers_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	switch os.Getenv(standIn) {
	case "":
	case "loose", "loose modern":
		runLoose(os.Getenv(standIn) == "loose modern")
		return
	case "mirror", "mirror modern":
		runMirror(os.Getenv(standIn) == "mirror modern")
		return
	case "diary":
		runDiary()
		return
	default:
		runStandIn()
		return
	}
	atOnce := 12 // the tests wait more than they work
	if testlong.Race {
		atOnce = 4
	}
	testlong.AtOnce(atOnce)
	goleak.VerifyTestMain(m)
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// Each server has its path, and sessions of its own.
func TestPaths(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "b c": {"$url_b", "holdfast": {"path": "/x/y"}}}}`, "a", "b")
	if got := call(t, f.connect("/a/mcp"), "echo"); got != "a:echo:hi" {
		t.Error(got)
	}
	if got := call(t, f.connect("/x/y"), "echo"); got != "b:echo:hi" {
		t.Error(got)
	}
	for _, path := range []string{"/mcp", "/b c/mcp", "/b/mcp", "/", "/a/mcp/"} {
		if status, _, _ := f.post(strings.ReplaceAll(path, " ", "%20"), "", hello); status != http.StatusNotFound {
			t.Errorf("%s is served: %d", path, status)
		}
	}
	id := f.session("/a/mcp").Session
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	if status, text, _ := f.post("/a/mcp", id, list); status != http.StatusOK || !strings.Contains(text, "echo") {
		t.Errorf("at its own path: %d %s", status, text)
	}
	if status, text, _ := f.post("/x/y", id, list); status != http.StatusNotFound {
		t.Errorf("the session of another server: %d %s", status, text)
	}
	if status, text, _ := f.post("/a/messages?sessionId="+id, "", list); status != http.StatusNotFound {
		t.Errorf("the session at the pair: %d %s", status, text)
	}
	if !testlong.Wanted() { // the first modern conversation takes long, as it probes the server
		return
	}
	// Modern requests have no session. Each server has a carrier for them.
	modern := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"Message":"m"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	for path, want := range map[string]string{"/a/mcp": "a:echo:m", "/x/y": "b:echo:m"} {
		if status, text, _ := f.post(path, "", modern); !strings.Contains(text, want) {
			t.Errorf("modern at %s: %d %s", path, status, text)
		}
	}
}

// The pair of revision 2024-11-05 is beside each endpoint.
func TestPair(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a"}}`, "a")
	res := (&mcptest.Client{URL: f.base + "/a/sse", HTTP: mcptest.Unpooled}).Open(t, http.MethodGet, "") //nolint:bodyclose // Open sees to it
	events := bufio.NewScanner(res.Body)
	next := func(prefix string) string {
		for events.Scan() {
			if rest, ok := strings.CutPrefix(events.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("no %q: %v", prefix, events.Err())
		return ""
	}
	to := next("data: ")
	if !strings.HasPrefix(to, "messages?sessionId=") {
		t.Fatal(to)
	}
	f.post("/a/"+to, "", hello)
	if got := next("data: "); !strings.Contains(got, `"serverInfo":{"name":"a"`) {
		t.Error(got)
	}
}

// A server's settings decide which tools it has, on all pages, and their names.
func TestRules(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"tools": {"allow": ["read_*", "echo", "w*_all"], "deny": ["*_all"]}, "prefix": "x/"}}, "b": "$b"}}`, "a", "b")
	s := f.connect("/a/mcp")
	if got := tools(t, s); !slices.Equal(got, []string{"x/echo", "x/read_one"}) {
		t.Errorf("tools: %v", got)
	}
	for tool, want := range map[string]string{
		"x/echo": "a:echo:hi", "x/read_one": "a:read_one:hi", "echo": "Unknown tool: echo", "x/read_all": "Unknown tool: x/read_all", "x/write_all": "Unknown tool: x/write_all", "x/slow": "Unknown tool",
	} {
		if got := call(t, s, tool); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", tool, got, want)
		}
	}
	if p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "x/greet"}); err != nil || p.Description != "a:greet" {
		t.Errorf("prompt: %+v %v", p, err)
	}
	if r, err := s.ListPrompts(t.Context(), nil); err != nil || len(r.Prompts) != 1 || r.Prompts[0].Name != "x/greet" {
		t.Errorf("prompts: %+v %v", r, err)
	}
	if r, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "x/greet"}, Argument: mcp.CompleteParamsArgument{Name: "n"}}); err != nil || r.Completion.Values[0] != "a:greet" {
		t.Errorf("completion: %+v %v", r, err)
	}
	if got := tools(t, f.connect("/b/mcp")); len(got) != 6 {
		t.Errorf("tools of the other server: %v", got)
	}
	inits := f.inits["a"].Load()
	// Settings change without a new conversation.
	f.set.Apply(f.parse(`{"mcpServers": {"a": {"$url_a", "holdfast": {"tools": {"deny": ["echo"]}}}, "b": "$b"}}`))
	if got := tools(t, s); !slices.Equal(got, []string{"read_all", "read_one", "slow", "write_all", "write_one"}) {
		t.Errorf("tools after the change: %v", got)
	}
	if n := f.inits["a"].Load(); n != inits {
		t.Errorf("the server was begun %d times more", n-inits)
	}
}

// A call that takes too long ends with "outcome unknown", and the server gets a cancellation.
func TestTimeout(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"timeout": "100ms"}}}}`, "a")
	s := f.connect("/a/mcp")
	if got := call(t, s, "slow"); !strings.Contains(got, "outcome unknown: the server did not answer within 100ms, the timeout of its configuration") {
		t.Error(got)
	}
	if testlong.Wanted() { // a cancellation waits for 2 s, as the client may be about to end the connection
		select {
		case <-f.ended:
		case <-time.After(patience):
			t.Error("the server was not told")
		}
	}
	for late := time.Now().Add(patience); ; { // on a busy machine this call takes longer than 100 ms, too
		got := call(t, s, "echo")
		if got == "a:echo:hi" {
			break
		}
		if !strings.Contains(got, "did not answer within 100ms") || time.Now().After(late) {
			t.Fatal(got)
		}
	}
}

// The number of a server's processes is bounded. The bound of one server does not affect others.
func TestMaxProcesses(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"maxProcesses": 1}}, "b": "$b"}}`, "a", "b")
	status, text, h := f.post("/a/mcp", "", hello)
	if status != http.StatusOK {
		t.Fatal(status, text)
	}
	if status, text, _ := f.post("/b/mcp", "", hello); status != http.StatusOK {
		t.Errorf("the other server: %d %s", status, text)
	}
	began := time.Now()
	if status, text, _ := f.post("/a/mcp", "", hello); status != http.StatusTooManyRequests || !strings.Contains(text, `1 processes of the server \"a\" run on this node`) {
		t.Errorf("a second one: %d %s", status, text)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it was refused after %v, though nothing was about to end", took)
	}
	for i := range 20 { // a new session waits for a process that is about to end
		c := &mcptest.Client{URL: f.base + "/a/mcp", Session: h.Get("Mcp-Session-Id"), HTTP: mcptest.Unpooled}
		mcptest.Must(c.Exchange(t.Context(), http.MethodDelete, ""))(t)
		if status, text, h = f.post("/a/mcp", "", hello); status != http.StatusOK {
			t.Fatalf("%d, after the one before has ended: %d %s", i, status, text)
		}
	}
}

// These servers cost a process for each session: a command that is not shared, and all
// servers as one if there is such a command among them.
func TestStartsProcess(t *testing.T) {
	t.Parallel()
	const remote = `"up": "$b", "shared": {"command": "true", "holdfast": {"share": true}}`
	for conf, want := range map[string]map[string]bool{
		`{"holdfast": {"merge": true}, "mcpServers": {` + remote + `}}`:                             {"": false, "up": false, "shared": false, "none": false},
		`{"holdfast": {"merge": true}, "mcpServers": {"own": {"command": "true"}, ` + remote + `}}`: {"": true, "own": true, "up": false, "shared": false},
	} {
		f := newFarm(t, conf, "b")
		for name, want := range want {
			if name == "" {
				name = config.MergedName
			}
			if f.set.StartsProcess(name) != want {
				t.Errorf("%q in %s: a process is %v, want %v", name, conf, !want, want)
			}
		}
	}
}

// A reload loses no call: calls of an unchanged server go on, calls of a changed server end
// in its old process, and calls of a removed server end, too.
func TestReload(t *testing.T) {
	t.Parallel()
	const calls = 34
	f := newFarm(t, `{"mcpServers": {"kept": "$kept", "changed": "$changed", "removed": "$removed"}}`, "kept", "changed", "removed", "other", "added")
	var work sync.WaitGroup
	results := make(chan string, 3*calls)
	sessions := make(map[string]*mcp.ClientSession)
	for _, name := range []string{"kept", "changed", "removed"} {
		s := f.connect("/" + name + "/mcp")
		sessions[name] = s
		for range calls {
			work.Go(func() { results <- call(t, s, "slow") })
		}
	}
	for range 3 * calls {
		select {
		case <-f.began:
		case <-time.After(patience):
			t.Fatal("not all calls have begun")
		}
	}
	f.up["changed"] = f.up["other"]
	inits := f.inits["kept"].Load()
	did := f.set.Apply(f.parse(`{"mcpServers": {"kept": "$kept", "changed": "$changed", "added": "$added"}}`))
	if got, want := fmt.Sprint(did), "{[added] [changed] [removed] [kept]}"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if status, text, _ := f.post("/removed/mcp", "", hello); status != http.StatusBadRequest {
		t.Errorf("a new session of the removed server: %d %s", status, text)
	}
	if got := call(t, f.connect("/added/mcp"), "echo"); got != "added:echo:hi" {
		t.Error(got)
	}
	f.release()
	work.Wait()
	close(results)
	got := make(map[string]int)
	for r := range results {
		got[r]++
	}
	if want := map[string]int{"kept:slow:hi": calls, "changed:slow:hi": calls, "removed:slow:hi": calls}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v; want %v", got, want)
	}
	if got := call(t, sessions["kept"], "echo"); got != "kept:echo:hi" {
		t.Error(got)
	}
	mcptest.Eventually(t, "the session of the changed server is in the new one", patience, func() bool {
		return call(t, sessions["changed"], "echo") == "other:echo:hi"
	})
	if n := f.inits["kept"].Load(); n != inits {
		t.Errorf("the kept server was begun %d times more", n-inits)
	}
	mcptest.Eventually(t, "the path of the removed server is gone", patience, func() bool {
		status, _, _ := f.post("/removed/mcp", "", hello)
		return status == http.StatusNotFound
	})
}
