package servers_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
)

// Clients at a server's own path are told when a change of the file changes its lists, over each transport and in each
// era, whether or not the server declares that its lists may change. After that they get the new lists.
func TestOwnPathTold(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	for kind, server := range map[string]func(t *testing.T, name string) (entry, tool string){
		"tells of changes": func(_ *testing.T, name string) (entry, tool string) { return `"$` + name + `"`, "echo" },
		"tells of none": func(t *testing.T, name string) (entry, tool string) {
			return fmt.Sprintf(`{"type": "http", "url": %q}`, newMoody(t, name).url), "echo"
		},
		"is modern, and tells of none": func(_ *testing.T, name string) (entry, tool string) {
			return fmt.Sprintf(`{"command": %q, "args": [%q], "env": {%q: "loose modern"}}`, exe, name, standIn), "work"
		},
		"is shared": func(_ *testing.T, name string) (entry, tool string) {
			return fmt.Sprintf(`{"command": %q, "args": [%q], "env": {%q: "loose"}, "holdfast": {"share": true}}`, exe, name, standIn), "work"
		},
	} {
		for name, watch := range watchers {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				before, tool := server(t, "a")
				after, _ := server(t, "b")
				file := func(entry, settings string) string {
					if kind == "is shared" {
						return `{"mcpServers": {"s": ` + strings.Replace(entry, `"share": true`, strings.TrimSuffix(`"share": true, `+settings, ", "), 1) + `}}`
					}
					return `{"mcpServers": {"s": ` + entry + `}, "holdfast": {"servers": {"s": {` + settings + `}}}}`
				}
				f := newFarm(t, file(before, ""), "a", "b")
				at := *f
				at.base += "/s"
				w := watch(t, &at)
				for _, step := range []struct{ what, entry, settings, has, lacks string }{
					{"at first", before, "", tool, "x." + tool},
					{"a prefix", before, `"prefix": "x."`, "x." + tool, ""},
					{"no prefix", before, ``, tool, "x." + tool},
					{"a tool denied", before, fmt.Sprintf(`"tools": {"deny": [%q]}`, tool), "", tool},
					{"no tool denied", before, `"tools": {"deny": []}`, tool, ""},
					{"other tools allowed", before, `"tools": {"allow": ["none"]}`, "", tool},
					{"another server", after, `"prefix": "y."`, "y." + tool, ""},
					{"that with another prefix", after, `"prefix": "z."`, "z." + tool, "y." + tool},
				} {
					if step.what != "at first" {
						f.set.Apply(f.parse(file(step.entry, step.settings)))
						w.changed()
					}
					got := w.tools()
					if step.has != "" && !strings.Contains(got, step.has) || step.lacks != "" && strings.Contains(got, step.lacks) {
						t.Errorf("%s: tools: %s", step.what, got)
					}
				}
				f.set.Apply(f.parse(file(after, `"prefix": "z.", "path": "/moved/mcp"`)))
				want := "z." + tool
				if name == "2026-07-28" { // the others have a session, or a connection, that was begun before
					want = "moved to /moved/mcp"
				}
				if got := w.tools(); !strings.Contains(got, want) {
					t.Errorf("after a change of the path: %s", got)
				}
			})
		}
	}
}

// While a call is in flight, its session goes on with the old server. The client is told of the change after the call has
// ended, and not before, so that it does not list the old server's tools again. The call loses no message.
func TestOwnPathToldLater(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(t *testing.T, f *farm) (watcher, func(tool string) string){
		"GET stream": func(t *testing.T, f *farm) (watcher, func(string) string) {
			c, changed := watching()
			s := f.at(c, "/mcp", "2025-11-25")
			return watcher{changed: func() { isTold(t, changed) }}, func(tool string) string { return call(t, s, tool) }
		},
		"2026-07-28": func(t *testing.T, f *farm) (watcher, func(string) string) {
			return watchers["2026-07-28"](t, f), func(tool string) string {
				// The client is the one of the listen, so that they share a conversation with the server.
				_, text, _ := f.post("/mcp", "", mcptest.ModernRequest(1, "tools/call", "{}", fmt.Sprintf(`"name":%q,"arguments":{"Message":"hi"}`, tool)))
				return text
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, `{"mcpServers": {"s": "$a"}}`, "a", "b")
			at := *f
			at.base += "/s"
			w, call := slow(t, &at)
			done := make(chan string, 1)
			go func() { done <- call("slow") }()
			<-f.began
			f.set.Apply(f.parse(`{"mcpServers": {"s": "$b"}}`))
			told := make(chan struct{})
			go func() {
				defer close(told)
				w.changed()
			}()
			if got := call("echo"); !strings.Contains(got, "a:echo:hi") {
				t.Errorf("beside the call in flight: %s", got)
			}
			select {
			case <-told:
				t.Error("the client is told while the old server serves it")
			default:
			}
			f.release()
			if got := <-done; !strings.Contains(got, "a:slow:hi") {
				t.Errorf("the call in flight: %s", got)
			}
			<-told
			if got := call("echo"); !strings.Contains(got, "b:echo:hi") {
				t.Errorf("after that: %s", got)
			}
		})
	}
}

// A server that comes back after its end with another answer to initialize may have another version. Then clients at its
// own path are told, as clients of all servers as one are. With the same answer they are not.
func TestOwnPathToldOfVersion(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	version := filepath.Join(t.TempDir(), "version")
	write := func(text string) {
		t.Helper()
		mcptest.Check(t, os.WriteFile(version, []byte(text), 0o600))
	}
	write("1")
	f := newFarm(t, fmt.Sprintf(`{"mcpServers": {"s": {"command": "sh", "args": ["-c", "%s=$(cat \"$0\") exec \"$1\"", %q, %q], "env": {%q: "1"}}}}`, standInVersion, version, exe, standIn))
	c, changed := watching()
	s := f.at(c, "/s/mcp", "2025-11-25")
	pid := call(t, s, "pid")
	for _, step := range []struct {
		version string
		told    bool
	}{{"1", false}, {"2", true}, {"2", false}, {"3", true}, {"3", false}} { // a notification in vain is seen at the next step that tells none, at the latest
		write(step.version)
		call(t, s, "end")
		was := pid
		if pid = call(t, s, "pid"); pid == was {
			t.Fatalf("the process %s has not ended", pid)
		}
		if step.told {
			isTold(t, changed)
		}
		select {
		case <-changed:
			t.Errorf("version %s: the client is told, in vain or twice", step.version)
		default:
		}
	}
}

// TestOneAcknowledgement changes a server five times under a listen: its client gets one acknowledgement, and is told of each change.
func TestOneAcknowledgement(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	entry := func(name string) string {
		return fmt.Sprintf(`{"mcpServers": {"s": {"command": %q, "args": [%q], "env": {%q: "loose modern"}}}}`, exe, name, standIn)
	}
	dir := t.TempDir()
	f := newFarm(t, entry(filepath.Join(dir, "first")), "a")
	client := &mcptest.Client{URL: f.base + "/s/mcp"}
	listen := client.Stream(t, http.MethodPost, mcptest.ModernRequest("l", protocol.MethodSubscriptions, "{}", listens))
	acks := 0
	until := func(want string) {
		t.Helper()
		for {
			event := listen.Until(t, "method")
			if strings.Contains(string(event.Data), protocol.MethodAcknowledged) {
				acks++
			}
			if strings.Contains(string(event.Data), want) {
				return
			}
		}
	}
	until(protocol.MethodAcknowledged)
	for _, name := range []string{"b", "a", "d", "c", "e"} {
		name = filepath.Join(dir, name)
		f.set.Apply(f.parse(entry(name)))
		until(protocol.MethodToolsListChanged)
		mcptest.Eventually(t, "the server to be asked", patience, func() bool {
			_, err := os.Stat(name)
			return err == nil
		})
		// The process answers in order: a second acknowledgement would be in the stream before this answer.
		if r := client.Post(t, mcptest.ModernRequest("q", "tools/list", "{}")); !strings.Contains(r.Body, "spray") {
			t.Fatalf("tools: %s", r.Body)
		}
	}
	if acks != 1 {
		t.Errorf("%d acknowledgements", acks)
	}
}
