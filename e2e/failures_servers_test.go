package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// badStdio makes the test binary a server with a fault that could keep other servers from working.
func badStdio(args []string) {
	switch args[0] {
	case "late": // it ends at its start until the file exists
		if _, err := os.Stat(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "not yet")
			os.Exit(1)
		}
	case "hanging":
		select {}
	}
	kind := args[0]
	mcptest.Stdio(func(m jsonrpc.Message, _ func(string)) string {
		said := odd.Script(m, nil)
		if said == "" {
			return ""
		}
		const page = `{"tools":[{"name":"even","inputSchema":{"type":"object"}}],"nextCursor":%s}`
		cursor := string(jsonrpc.Field(m.Params, "cursor"))
		switch {
		case kind == "string ids" && m.ID[0] == '"':
			os.Exit(7)
		case m.Method == "initialize":
			is := map[string]string{"revision": "2099-12-31", "old": "2024-11-05"}[kind]
			if is != "" {
				return mcptest.Result(m, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"bad","version":"1"}}`, is))
			}
		case m.Method != "tools/list":
		case kind == "same cursor":
			return mcptest.Result(m, fmt.Sprintf(page, `"again"`))
		case (kind == "fails at page 2" || kind == "ends at page 2") && cursor == "":
			return mcptest.Result(m, fmt.Sprintf(page, `"2"`))
		case kind == "fails at page 2", kind == "fails at page 1":
			return mcptest.Error(m, -32603, "no such page")
		case kind == "ends at page 2":
			os.Exit(7)
		}
		return said
	})
}

// toolNames returns the names of a server's tools, page by page, and the last answer.
func toolNames(t *testing.T, c *peer) (names []string, last string) {
	t.Helper()
	cursor := ""
	for range 50 {
		last = c.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{%s}}`, cursor))
		var m struct {
			Result struct {
				Tools      []struct{ Name string }
				NextCursor *json.RawMessage
			}
		}
		unmarshal(t, []byte(last), &m)
		for _, tool := range m.Result.Tools {
			names = append(names, tool.Name)
		}
		if m.Result.NextCursor == nil {
			return names, last
		}
		cursor = fmt.Sprintf(`"cursor":%s`, *m.Result.NextCursor)
	}
	t.Errorf("the list does not end: %v", names)
	return names, last
}

// FAILURES 22: with one bad server among several, the tools of the others are listed and work.
func TestFailure22BadServer(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	site := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>hello</html>"))
	}))
	bad := map[string]string{
		"not there":   `{"command":"no-such-command-here"}`,
		"ends":        `{"command":"false"}`,
		"down":        `{"url":"http://127.0.0.1:9/mcp"}`,
		"hanging":     fmt.Sprintf(`{"command":%q,"args":["bad","hanging"]}`, self),
		"no server":   `{"command":"cat"}`,
		"a web site":  fmt.Sprintf(`{"url":%q}`, site),
		"two at once": fmt.Sprintf(`{"command":"false"},"worse":{"command":%q,"args":["bad","revision"]}`, self),
	}
	for _, kind := range []string{"revision", "old", "string ids", "same cursor", "fails at page 1", "fails at page 2", "ends at page 2"} {
		bad[kind] = fmt.Sprintf(`{"command":%q,"args":["bad",%q]}`, self, kind)
	}
	for kind, entry := range bad {
		t.Run(kind, func(t *testing.T) {
			if kind == "hanging" || kind == "no server" {
				testlong.Only(t, "a server may take fifteen seconds to start")
			}
			t.Parallel()
			testlong.Part(t)
			base := serveFile(t, fmt.Sprintf(`{"mcpServers":{"bad":%s,"good":{"command":%q,"args":["odd"]}},"holdfast":{"merge":true}}`, entry, self))
			c := connect(t, &program{URL: base + "/mcp"})
			wantOdd(t, c.ask(oddCall(7, "good_even", "")), 7, "even")
			names, last := toolNames(t, c)
			if all := strings.Join(names, " "); !strings.Contains(all, "good_even") || !strings.Contains(all, "good_odd") {
				t.Errorf("the tools are %q, at last %s", names, last)
			}
			for i, name := range names {
				for _, other := range names[:i] {
					if name == other && kind != "same cursor" { // its second page has the same tools
						t.Errorf("%s is listed twice", name)
					}
				}
			}
			// A call of the bad server is answered too.
			if got := c.ask(oddCall(8, "bad_even", "")); !strings.Contains(got, `"id":8`) {
				t.Errorf("a call of the bad server is answered with %s", got)
			}
			r := post(t, base+"/mcp", "", "", callsModern("good_even"))
			if r.Status != http.StatusOK || !strings.Contains(r.Body, `"even"`) {
				t.Errorf("a modern client gets %d %s", r.Status, r.Body)
			}
			// The bad server does not change the revision.
			init := post(t, base+"/mcp", "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
			if !strings.Contains(init.Body, `"protocolVersion":"2025-11-25"`) && kind != "old" {
				t.Errorf("initialize is answered with %s", init.Body)
			}
		})
	}
}

// FAILURES 22: if no server returns a part of a list, the request for the list gets an error, and not an empty list.
func TestFailure22NoList(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	for name, entries := range map[string]string{
		"both fail":  fmt.Sprintf(`"a":{"command":%q,"args":["bad","fails at page 1"]},"b":{"command":%q,"args":["bad","fails at page 1"]}`, self, self),
		"fail, down": fmt.Sprintf(`"a":{"command":%q,"args":["bad","fails at page 1"]},"b":{"command":"false"}`, self),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, &program{URL: serveFile(t, fmt.Sprintf(`{"mcpServers":{%s},"holdfast":{"merge":true}}`, entries)) + "/mcp"})
			if got := c.ask(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); !strings.Contains(got, `"error"`) {
				t.Errorf("tools/list is answered with %s", got)
			}
		})
	}
}

// FAILURES 22: when a server that was down at first comes up, the client gets a notification, and the server's tools are listed and work.
func TestFailure22ComesLater(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	for name, begin := range map[string]func(t *testing.T) (entry string, up func()){
		"process": func(t *testing.T) (string, func()) {
			file := filepath.Join(t.TempDir(), "up")
			return fmt.Sprintf(`{"command":%q,"args":["bad","late",%q]}`, self, file), func() {
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		},
		"upstream": func(t *testing.T) (string, func()) {
			var is atomic.Bool
			f := &forgetful{}
			url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !is.Load() {
					http.Error(w, "not yet", http.StatusServiceUnavailable)
					return
				}
				f.ServeHTTP(w, r)
			}))
			return fmt.Sprintf(`{"url":%q}`, url), func() { is.Store(true) }
		},
	} {
		for _, by := range []string{"itself", "a call"} {
			t.Run(name+", by "+by, func(t *testing.T) {
				t.Parallel()
				entry, up := begin(t)
				base := serveFile(t, fmt.Sprintf(`{"mcpServers":{"late":%s,"good":{"command":%q,"args":["odd"]}},"holdfast":{"merge":true}}`, entry, self))
				c := connect(t, &program{URL: base + "/mcp"})
				listening := c.listen("GET", "", "")
				if names, _ := toolNames(t, c); strings.Contains(strings.Join(names, " "), "late_even") {
					t.Fatalf("it is up already: %q", names)
				}
				up()
				if by == "a call" {
					c.ask(oddCall(7, "late_even", ""))
				}
				told := make(chan struct{})
				go func() {
					defer close(told)
					for listening.next() {
						if strings.Contains(strings.Join(listening.received, " "), "notifications/tools/list_changed") {
							return
						}
					}
				}()
				select {
				case <-told:
				case <-time.After(time.Minute):
					t.Fatal("the client is told nothing")
				}
				names, _ := toolNames(t, c)
				if !strings.Contains(strings.Join(names, " "), "late_even") {
					t.Errorf("then the tools are %q", names)
				}
				wantOdd(t, c.ask(oddCall(8, "late_even", "")), 8, "even")
			})
		}
	}
}
