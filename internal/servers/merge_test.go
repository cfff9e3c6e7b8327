package servers_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// All servers are served as one: names have prefixes, and requests and all pages of lists reach the right server.
func TestMerge(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "b c": {"$url_b", "holdfast": {"tools": {"deny": ["*_*"]}}}, "own": {"$url_c", "holdfast": {"prefix": "my.", "tools": {"allow": ["echo"]}}}},
		"holdfast": {"merge": true}}`, "a", "b", "c")
	s := f.connect("/mcp")
	want := []string{"a_echo", "a_read_all", "a_read_one", "a_slow", "a_write_all", "a_write_one", "b_c_echo", "b_c_slow", "my.echo"}
	if got := tools(t, s); !slices.Equal(got, want) {
		t.Errorf("tools: %v\n want %v", got, want)
	}
	for tool, want := range map[string]string{
		"a_echo": "a:echo:hi", "b_c_echo": "b:echo:hi", "my.echo": "c:echo:hi", "echo": "Unknown tool: echo", "b_c_read_one": "Unknown tool", "a_nothing": "unknown tool", "my.slow": "Unknown tool",
	} {
		if got := call(t, s, tool); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", tool, got, want)
		}
	}
	var prompts []string
	for p, err := range s.Prompts(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, p.Name)
	}
	if slices.Sort(prompts); !slices.Equal(prompts, []string{"a_greet", "b_c_greet", "my.greet"}) {
		t.Errorf("prompts: %v", prompts)
	}
	if p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "b_c_greet"}); err != nil || p.Description != "b:greet" {
		t.Errorf("prompt: %+v %v", p, err)
	}
	if r, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "a_greet"}, Argument: mcp.CompleteParamsArgument{Name: "n"}}); err != nil || r.Completion.Values[0] != "a:greet" {
		t.Errorf("completion: %+v %v", r, err)
	}
	var resources []string
	for r, err := range s.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		resources = append(resources, r.URI)
	}
	if slices.Sort(resources); !slices.Equal(resources, []string{"test://a/1", "test://a/2", "test://a/3", "test://a/4", "test://b/1", "test://b/2", "test://b/3", "test://b/4", "test://c/1", "test://c/2", "test://c/3", "test://c/4"}) {
		t.Errorf("resources: %v", resources)
	}
	for uri, want := range map[string]string{"test://b/2": "b", "test://c/items/7": "c", "test://a/items/1": "a"} {
		if r, err := f.connect("/mcp").ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil || r.Contents[0].Text != want+" has "+uri { // the resource was not listed before
			t.Errorf("%s: %+v %v", uri, r, err)
		}
	}
	if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://nobody"}); err == nil || !strings.Contains(strings.ToLower(err.Error()), "not found") {
		t.Errorf("a resource of nobody: %v", err)
	}
	n := 0
	for r, err := range s.ResourceTemplates(t.Context(), nil) {
		if err != nil || !strings.HasPrefix(r.URITemplate, "test://") {
			t.Errorf("template: %+v %v", r, err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d templates", n)
	}
	// The sessions of all servers as one are not known at another path.
	if status, text, _ := f.post("/a/mcp", f.session("/mcp").Session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != http.StatusNotFound {
		t.Errorf("a merged session at a server's path: %d %s", status, text)
	}
}

// When one server fails, the others go on. The failed server works again when it comes back.
func TestMergeFailure(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "gone": {"command": "no-such-program"}}, "holdfast": {"merge": true}}`, "a", "b")
	s := f.connect("/mcp")
	if got := tools(t, s); len(got) != 6 || got[0] != "a_echo" {
		t.Errorf("tools: %v", got)
	}
	if got := call(t, s, "gone_echo"); !strings.Contains(got, `the server "gone" did not take the request`) {
		t.Error(got)
	}
	if got := call(t, s, "a_echo"); got != "a:echo:hi" {
		t.Error(got)
	}
	f.set.Apply(f.parse(`{"mcpServers": {"a": "$a", "gone": "$b"}, "holdfast": {"merge": true}}`))
	mcptest.Eventually(t, "the server is there", patience, func() bool { return call(t, s, "gone_echo") == "b:echo:hi" })
}

// A reload of the merged servers loses no call.
func TestMergeReload(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "b": "$b"}, "holdfast": {"merge": true}}`, "a", "b", "c")
	changed := make(chan struct{}, 10)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(_ context.Context, _ *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	s := f.with(c, "/mcp")
	const calls = 100
	var work sync.WaitGroup
	results := make(chan string, calls)
	for i := range calls {
		work.Go(func() { results <- call(t, s, []string{"a_slow", "b_slow"}[i%2]) })
	}
	for range calls {
		select {
		case <-f.began:
		case <-time.After(patience):
			t.Fatal("not all calls have begun")
		}
	}
	f.set.Apply(f.parse(`{"mcpServers": {"a": "$a", "b": "$c", "d": "$b"}, "holdfast": {"merge": true}}`))
	f.release()
	work.Wait()
	close(results)
	got := make(map[string]int)
	for r := range results {
		got[r]++
	}
	if want := map[string]int{"a:slow:hi": calls / 2, "b:slow:hi": calls / 2}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v; want %v", got, want)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the client was not told that the list has changed")
	}
	mcptest.Eventually(t, "the new servers are there", patience, func() bool { return call(t, s, "b_echo") == "c:echo:hi" && call(t, s, "d_echo") == "b:echo:hi" })
}

// A call is handed off after the time that the configuration sets.
func TestHandOffAfter(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": {"$url_a", "holdfast": {"handoffAfter": {"slow*": "20s", "*": "1m"}}}, "b": "$b"}, "holdfast": {"merge": true}}`, "a", "b")
	for _, c := range []struct {
		server, tool string
		after, want  time.Duration
	}{
		{"a", "slow_one", 0, 20 * time.Second}, {"a", "x", time.Hour, time.Minute}, {"*", "a_slow", 0, 20 * time.Second},
		{"b", "x", 0, 0}, {"b", "x", time.Hour, time.Hour}, {"*", "b_x", time.Hour, time.Hour}, {"none", "x", time.Hour, time.Hour},
		{"a", "holdfast_wait", 0, 20 * time.Second}, {"b", "holdfast_wait", 0, 0}, {"*", "holdfast_wait", time.Second, time.Second}, {"*", "holdfast_wait", 0, 20 * time.Second},
	} {
		if got := f.set.HandOffAfter(c.server, c.tool, c.after); got != c.want {
			t.Errorf("%s of %s, else %v: %v; want %v", c.tool, c.server, c.after, got, c.want)
		}
	}
}

// The configuration's settings for a host take precedence over the built-in ones.
func TestHosts(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a"}, "holdfast": {"hosts": {"claude-code": {"limit": "20s", "progress": true}}}}`, "a")
	if h := f.set.Host("claude-code", ""); h.Limit != 20*time.Second || !h.Extends {
		t.Errorf("%+v", h)
	}
	if h := f.set.Host("codex-mcp-client", ""); h.Limit != 300*time.Second || h.Extends {
		t.Errorf("%+v", h)
	}
}

// Requests and notifications of merged servers to the client, and its answers, reach the right side, although the servers use equal ids.
func TestMergeAsks(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"ask1": "$ask1", "ask2": "$ask2"}, "holdfast": {"merge": true}}`, "ask1", "ask2")
	updated, both := make(chan string, 10), make(chan struct{})
	var asking sync.WaitGroup
	asking.Add(2)
	go func() {
		asking.Wait()
		close(both)
	}()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asking.Done()
			<-both // each question is answered when both have arrived
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "re: " + r.Params.Message}}, nil
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
	})
	s := f.with(c, "/mcp")
	var work sync.WaitGroup
	for _, name := range []string{"ask1", "ask2"} {
		work.Go(func() {
			if got, want := call(t, s, name+"_ask"), name+" heard re: "+name+" asks"; got != want {
				t.Errorf("%s; want %s", got, want)
			}
		})
	}
	work.Wait()
	const uri = "test://ask2/3"
	mcptest.Check(t, s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}))
	mcptest.Eventually(t, "the client is told of the resource", patience, func() bool {
		mcptest.Check(t, f.server["ask2"].ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: uri}))
		select {
		case got := <-updated:
			return got == uri
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
}

// When one server changes, or is added, the processes of the others go on, in a merged session
// too. The client of that session is told of each change.
func TestMergeReloadKeeps(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	process := func(args, settings string) string {
		return fmt.Sprintf(`{"command": %q, "args": [%s], "env": {%q: "1"}, "holdfast": {%s}}`, exe, args, standIn, settings)
	}
	file := func(others string) string {
		return `{"mcpServers": {` + others + `, "kept": ` + process(`"x"`, "") + `}, "holdfast": {"merge": true}}`
	}
	f := newFarm(t, file(`"a": `+process(`"x"`, "")), "b")
	changed := make(chan struct{}, 10)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	s := f.at(c, "/mcp", "2025-11-25")
	pid, before := call(t, s, "kept_pid"), call(t, s, "a_pid")
	for _, step := range []struct {
		what, others string
		tool         string // a name that the list has now
		same         bool   // whether it is the tool of the same process as before
	}{
		{"a prefix", `"a": ` + process(`"x"`, `"prefix": "z_"`), "z_pid", true},
		{"tools denied", `"a": ` + process(`"x"`, `"prefix": "z_", "tools": {"deny": ["about"]}`), "z_pid", true},
		{"tools allowed", `"a": ` + process(`"x"`, `"prefix": "z_", "tools": {"allow": ["pid", "end"]}`), "z_pid", true},
		{"another server", `"a": ` + process(`"x"`, `"prefix": "z_"`) + `, "b": "$b"`, "z_pid", true},
		{"another command", `"a": ` + process(`"y"`, `"prefix": "z_"`) + `, "b": "$b"`, "z_pid", false},
		{"a server less", `"b": "$b"`, "", false},
	} {
		f.set.Apply(f.parse(file(step.others)))
		select {
		case <-changed:
		case <-time.After(patience):
			t.Errorf("%s: the client was not told", step.what)
		}
		if step.tool != "" {
			if now := call(t, s, step.tool); (now == before) != step.same || strings.Contains(now, " ") {
				t.Errorf("%s: the process %s is %s", step.what, before, now)
			}
		} else if got := call(t, s, "z_pid"); !strings.Contains(got, "nknown tool") {
			t.Errorf("%s: it is still called: %s", step.what, got)
		}
		if now := call(t, s, "kept_pid"); now != pid {
			t.Errorf("%s: the process %s of a server that did not change is %s", step.what, pid, now)
		}
	}
}
