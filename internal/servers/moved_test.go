package servers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// A mover is a client of a revision with sessions at one path, which it does not leave.
type mover struct {
	*mcptest.Client
	f    *farm
	last string // the last event id of its call
}

// newMover begins a session and a call of the tool "slow", and cuts the call's connection.
func newMover(t *testing.T, f *farm, path string) *mover {
	t.Helper()
	m := &mover{Client: f.session(path), f: f}
	call := m.Stream(t, http.MethodPost, mcptest.Call("c", "slow", `{"Message":"hi"}`))
	defer call.Close()
	for call.LastID == "" {
		if _, err := call.Next(); err != nil {
			t.Fatalf("the call has no event id: %v", err)
		}
	}
	m.last = call.LastID
	<-f.began
	return m
}

// resume resumes the stream of the call.
func (m *mover) resume(t *testing.T) *mcptest.Stream {
	t.Helper()
	return m.Stream(t, http.MethodGet, "", "Last-Event-ID", m.last)
}

// goesOn checks that the session and its call go on at the path where they began, and end there.
func (m *mover) goesOn(t *testing.T, server string) {
	t.Helper()
	if r := m.Post(t, mcptest.Call(1, "echo", `{"Message":"hi"}`)); !strings.Contains(r.Body, server+":echo:hi") {
		t.Errorf("another call at %s: %s", m.URL, r.Body)
	}
	call := m.resume(t)
	m.f.release()
	call.Until(t, server+":slow:hi")
	if end, err := m.Exchange(t.Context(), http.MethodDelete, ""); err != nil || end.Status/100 != 2 {
		t.Errorf("the session is ended at %s: %d, %v", m.URL, end.Status, err)
	}
}

// begins begins a session in each way at a path. It returns the name of the server that is there, or the path that an error names.
func (f *farm) begins(t *testing.T, path string) string {
	t.Helper()
	pair := strings.TrimSuffix(path, "mcp") + "sse"
	var said []string
	status, text, head := f.post(path, "", hello)
	found := fmt.Sprint(status, " ", text)
	if id := head.Get("Mcp-Session-Id"); id != "" {
		f.post(path, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		_, found, _ = f.post(path, id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"Message":"hi"}}}`)
	}
	said = append(said, found)
	_, text, _ = f.post(path, "", mcptest.ModernRequest(1, "tools/call", "{}", `"name":"echo","arguments":{"Message":"hi"}`))
	said = append(said, text)
	ctx, cut := context.WithTimeout(t.Context(), patience)
	defer cut()
	ws, refused, _ := mcptest.Dial(ctx, f.base+path)
	if ws != nil {
		_ = ws.CloseNow()
		said = append(said, found)
	} else {
		said = append(said, fmt.Sprint(refused.Status, " ", refused.Body))
	}
	res, err := (&mcptest.Client{URL: f.base + pair, HTTP: mcptest.Unpooled}).Send(ctx, http.MethodGet, "")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		said = append(said, found)
	} else {
		text, _ := io.ReadAll(res.Body)
		said = append(said, strings.Replace(fmt.Sprint(res.StatusCode, " ", string(text)), "/sse", "/mcp", 1))
	}
	is := ""
	for i, text := range said {
		one := "nothing"
		switch {
		case strings.Contains(text, ":echo:hi"):
			one, _, _ = strings.Cut(text[strings.Index(text, ":echo:hi")-1:], ":")
		case strings.Contains(text, "moved to "):
			_, one, _ = strings.Cut(text, "moved to ")
			one, _, _ = strings.Cut(one, ";")
		}
		if i > 0 && one != is {
			t.Errorf("%s: begins with %q, and by another way (%d) with %q: %s", path, is, i, one, text)
		}
		is = one
	}
	return is
}

// A session and a call go on at their path when their server moves to another path, or their path becomes another server's. New sessions
// begin at the paths in the file, and an error at the old path names the new one.
func TestPathMoves(t *testing.T) {
	t.Parallel()
	at := func(servers ...string) string { // each has the form NAME URL PATH
		var entries []string
		for _, s := range servers {
			f := strings.Fields(s)
			entries = append(entries, fmt.Sprintf(`%q: {"$url_%s", "holdfast": {"path": %q}}`, f[0], f[1], f[2]))
		}
		return `{"mcpServers": {` + strings.Join(entries, ", ") + `}}`
	}
	for name, c := range map[string]struct {
		steps  []string          // the files, one after the other: the session begins with the first
		begins map[string]string // the server, or the path in an error, at each path after the last step
	}{
		"moved":             {[]string{at("s a /x/mcp"), at("s a /y/mcp")}, map[string]string{"/x/mcp": "/y/mcp", "/y/mcp": "a"}},
		"moved twice":       {[]string{at("s a /x/mcp"), at("s a /y/mcp"), at("s a /z/mcp")}, map[string]string{"/x/mcp": "/z/mcp", "/y/mcp": "/z/mcp", "/z/mcp": "a"}},
		"moved and back":    {[]string{at("s a /x/mcp"), at("s a /y/mcp"), at("s a /x/mcp")}, map[string]string{"/y/mcp": "/x/mcp", "/x/mcp": "a"}},
		"swapped":           {[]string{at("s a /x/mcp", "r b /y/mcp"), at("s a /y/mcp", "r b /x/mcp")}, map[string]string{"/x/mcp": "b", "/y/mcp": "a"}},
		"swapped and back":  {[]string{at("s a /x/mcp", "r b /y/mcp"), at("s a /y/mcp", "r b /x/mcp"), at("s a /x/mcp", "r b /y/mcp")}, map[string]string{"/x/mcp": "a", "/y/mcp": "b"}},
		"moved by another":  {[]string{at("s a /x/mcp"), at("r b /x/mcp", "s a /y/mcp")}, map[string]string{"/x/mcp": "b", "/y/mcp": "a"}},
		"moved in a circle": {[]string{at("s a /x/mcp", "r b /y/mcp", "q c /z/mcp"), at("s a /y/mcp", "r b /z/mcp", "q c /x/mcp")}, map[string]string{"/x/mcp": "c", "/y/mcp": "a", "/z/mcp": "b"}},
		"a file that is refused": {[]string{at("s a /x/mcp"), at("s a /y/mcp"), `{"mcpServers": {"s": {"url": "x", "holdfast": {"path": "/z/mcp"}}, "r": {"$url_b", "holdfast": {"path": "/r/mcp"}}}}`},
			map[string]string{"/x/mcp": "/y/mcp", "/y/mcp": "a", "/z/mcp": "nothing", "/r/mcp": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, c.steps[0], "a", "b", "c")
			m := newMover(t, f, "/x/mcp")
			for _, step := range c.steps[1:] {
				f.set.Apply(f.parse(step))
			}
			for path, want := range c.begins {
				if got := f.begins(t, path); got != want {
					t.Errorf("at %s begins %q, want %q", path, got, want)
				}
			}
			m.goesOn(t, "a")
		})
	}
}

// The calls of a server that was removed or renamed end at its path, also where another server has that path now.
func TestPathTaken(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]string{
		"removed": `{"mcpServers": {"r": {"$url_b", "holdfast": {"path": "/y/mcp"}}}}`,
		"renamed": `{"mcpServers": {"r": {"$url_a", "holdfast": {"path": "/x/mcp"}}}}`,
		"another": `{"mcpServers": {"r": {"$url_b", "holdfast": {"path": "/x/mcp"}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, `{"mcpServers": {"s": {"$url_a", "holdfast": {"path": "/x/mcp"}}}}`, "a", "b")
			m := newMover(t, f, "/x/mcp")
			f.set.Apply(f.parse(next))
			call := m.resume(t)
			f.release()
			call.Until(t, "a:slow:hi")
			mcptest.Eventually(t, "the session ends", patience, func() bool {
				status, _, _ := f.post("/x/mcp", m.Session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
				return status == http.StatusNotFound
			})
		})
	}
}

// A tool is denied from the change of the file on, also in sessions with calls that still run at the old conversation.
func TestDeniedWhileItEnds(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a"}}`, "a")
	conf := func(run, tools string) string {
		return fmt.Sprintf(`{"mcpServers": {"a": {"type": "http", "url": %q, "headers": {"X-Run": %q}, "holdfast": {"tools": %s}}}}`, f.up["a"], run, tools)
	}
	f.set.Apply(f.parse(conf("1", `{}`)))
	session := f.session("/a/mcp").Session
	echo := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"Message":"m"}}}`
	slow := make(chan string, 1)
	go func() {
		_, text, _ := f.post("/a/mcp", session, `{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"slow","arguments":{"Message":"m"}}}`)
		slow <- text
	}()
	select {
	case <-f.began:
	case text := <-slow:
		t.Fatalf("the call has ended: %s", text)
	}
	for i, tools := range []string{`{"deny": ["echo"]}`, `{"allow": ["slow"]}`, `{}`} {
		f.set.Apply(f.parse(conf(fmt.Sprint("then ", i), tools)))
		_, text, _ := f.post("/a/mcp", session, echo)
		if denied := strings.Contains(text, "Unknown tool"); denied != (tools != `{}`) {
			t.Errorf("with %s: %s", tools, text)
		}
	}
	f.release()
	if text := <-slow; !strings.Contains(text, "a:slow:m") {
		t.Errorf("the call in flight: %s", text)
	}
}
