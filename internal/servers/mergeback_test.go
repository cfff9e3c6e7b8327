package servers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A moody server is a server over HTTP with answers that the test sets.
type moody struct {
	name       string
	url        string
	down       atomic.Bool                // each request has status 503
	revision   atomic.Pointer[string]     // the revision in its answer to initialize; nil: the revision in the request
	ill        atomic.Pointer[string]     // methods with this prefix get an error
	hangs      atomic.Pointer[string]     // methods with this prefix get no answer
	token      atomic.Pointer[string]     // the Authorization that it accepts; nil: any
	thinks     time.Duration              // how long it waits before it refuses a token
	heard      func(http.Header)          // called with the headers of each request; may be nil
	initialize func(result string) string // changes the result of initialize; may be nil
}

const challenge = `Bearer resource_metadata="https://up.example.com/.well-known/oauth-protected-resource"`

func newMoody(t *testing.T, name string) *moody {
	t.Helper()
	m := &moody{name: name}
	m.url = mcptest.Serve(t, m)
	return m
}

func is(p *atomic.Pointer[string], text string) bool {
	prefix := p.Load()
	return prefix != nil && strings.HasPrefix(text, *prefix)
}

func set(p *atomic.Pointer[string], text string) { p.Store(&text) }

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.heard != nil {
		m.heard(r.Header)
	}
	if token := m.token.Load(); token != nil && r.Header.Get("Authorization") != *token {
		time.Sleep(m.thinks)
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if m.down.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, _ := io.ReadAll(r.Body)
	in, err := jsonrpc.Parse(body)
	if err != nil || in.Kind != jsonrpc.Request {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if is(&m.hangs, in.Method) {
		<-r.Context().Done()
		return
	}
	if is(&m.ill, in.Method) {
		mcptest.JSON(w, mcptest.Error(in, -32603, m.name+" is ill"))
		return
	}
	if in.Method == "initialize" {
		w.Header().Set("Mcp-Session-Id", "s-"+m.name)
	}
	mcptest.JSON(w, mcptest.Answers{
		"initialize": func(in jsonrpc.Message, _ func(string)) string {
			revision := jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion"))
			if v := m.revision.Load(); v != nil {
				revision = *v
			}
			result := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":%q,"version":"1"}}`, revision, m.name)
			if m.initialize != nil {
				result = m.initialize(result)
			}
			return mcptest.Result(in, result)
		},
		"prompts/list":             mcptest.Fixed(`{"prompts":[{"name":"greet"}]}`),
		"resources/list":           mcptest.Fixed(fmt.Sprintf(`{"resources":[{"name":"r","uri":"test://%s/1"}]}`, m.name)),
		"resources/templates/list": mcptest.Fixed(fmt.Sprintf(`{"resourceTemplates":[{"name":"r","uriTemplate":"test://%s/{x}"}]}`, m.name)),
		"tools/call echo":          func(in jsonrpc.Message, _ func(string)) string { return mcptest.Text(in, m.name+":echo") },
	}.Script(in, nil))
}

// mergeMoody serves moody servers as one.
func mergeMoody(t *testing.T, all ...*moody) *farm {
	t.Helper()
	var entries []string
	for _, m := range all {
		entries = append(entries, fmt.Sprintf(`%q: {"type": "http", "url": %q}`, m.name, m.url))
	}
	return newFarm(t, `{"mcpServers": {`+strings.Join(entries, ", ")+`}, "holdfast": {"merge": true}}`)
}

// A watcher is a client of some transport that notices when the list of tools has changed.
type watcher struct {
	changed func() // waits for the notification
	tools   func() string
}

// listens are the params of a listen for changes of the list of tools.
const listens = `"notifications":{"toolsListChanged":true}`

// watchers begin a watcher over each transport.
var watchers = map[string]func(t *testing.T, f *farm) watcher{
	"GET stream": func(t *testing.T, f *farm) watcher {
		return watchWith(t, &mcp.StreamableClientTransport{Endpoint: f.base + "/mcp"}, "2025-11-25")
	},
	"2025-03-26": func(t *testing.T, f *farm) watcher {
		return watchWith(t, &mcp.StreamableClientTransport{Endpoint: f.base + "/mcp"}, "2025-03-26")
	},
	"HTTP+SSE": func(t *testing.T, f *farm) watcher {
		return watchWith(t, &mcp.SSEClientTransport{Endpoint: f.base + "/sse"}, "2024-11-05")
	},
	"WebSocket": func(t *testing.T, f *farm) watcher {
		ws := mcptest.MustDial(t, t.Context(), f.base+"/mcp")
		ws.Say(t, hello)
		ws.Hear(t, `"id":0`)
		ws.Say(t, mcptest.Initialized)
		return watcher{
			changed: func() { ws.Hear(t, protocol.MethodToolsListChanged) },
			tools: func() string {
				ws.Say(t, mcptest.Request(7, "tools/list", ""))
				return ws.Hear(t, `"id":7`)
			},
		}
	},
	"2026-07-28 WebSocket": func(t *testing.T, f *farm) watcher {
		ws := mcptest.MustDial(t, t.Context(), f.base+"/mcp")
		ws.Say(t, mcptest.ModernRequest("l", protocol.MethodSubscriptions, "{}", listens))
		ws.Hear(t, protocol.MethodAcknowledged)
		n := 0
		return watcher{
			changed: func() { ws.Hear(t, protocol.MethodToolsListChanged, `subscriptionId":"l"`) },
			tools: func() string {
				n++
				ws.Say(t, mcptest.ModernRequest(n, "tools/list", "{}"))
				return ws.Hear(t, fmt.Sprintf(`"id":%d`, n))
			},
		}
	},
	"2026-07-28": func(t *testing.T, f *farm) watcher {
		c := &mcptest.Client{URL: f.base + "/mcp", HTTP: mcptest.Unpooled}
		listen := c.Stream(t, http.MethodPost, mcptest.ModernRequest("l", protocol.MethodSubscriptions, "{}", listens))
		listen.Until(t, protocol.MethodAcknowledged)
		return watcher{
			changed: func() { listen.Until(t, protocol.MethodToolsListChanged) },
			tools:   func() string { return c.Post(t, mcptest.ModernRequest("q", "tools/list", "{}")).Body },
		}
	},
}

// watching returns an official client, and a channel that receives a value each time that the client is told of another
// list of tools.
func watching() (c *mcp.Client, changed chan struct{}) {
	changed = make(chan struct{}, 100)
	return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	}), changed
}

// isTold waits until a client is told of another list of tools.
func isTold(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(patience):
		t.Fatal("the client is not told")
	}
}

func watchWith(t *testing.T, transport mcp.Transport, revision string) watcher {
	c, changed := watching()
	s := mcptest.Must(c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return watcher{
		changed: func() { isTold(t, changed) },
		tools:   func() string { return fmt.Sprint(tools(t, s)) },
	}
}

// A server that could not be opened when a client began works later. The client is told, over each transport, without a request of its own.
func TestMergeComesBack(t *testing.T) {
	t.Parallel()
	for name, watch := range watchers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newMoody(t, "a"), newMoody(t, "b")
			set(&b.ill, "initialize")
			f := mergeMoody(t, a, b)
			w := watch(t, f)
			if got := w.tools(); !strings.Contains(got, "a_echo") || strings.Contains(got, "b_echo") {
				t.Fatalf("tools: %s", got)
			}
			b.ill.Store(nil)
			w.changed()
			if got := w.tools(); !strings.Contains(got, "a_echo") || !strings.Contains(got, "b_echo") {
				t.Errorf("tools: %s", got)
			}
		})
	}
}

// A client is told when a missing part of a server's lists is there, whichever part was missing, and whatever led to the next try.
func TestMergeTold(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]struct {
		fails, works func(f *farm, a, b *moody, s *mcp.ClientSession)
	}{
		"a call": {
			func(_ *farm, _, b *moody, _ *mcp.ClientSession) { set(&b.ill, "initialize") },
			func(_ *farm, _, b *moody, s *mcp.ClientSession) {
				b.ill.Store(nil)
				if got := call(t, s, "b_echo"); got != "b:echo" {
					t.Error(got)
				}
			},
		},
		"a page": {
			func(_ *farm, _, b *moody, _ *mcp.ClientSession) { set(&b.ill, "tools/list") },
			func(_ *farm, _, b *moody, _ *mcp.ClientSession) { b.ill.Store(nil) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newMoody(t, "a"), newMoody(t, "b")
			f := mergeMoody(t, a, b)
			play.fails(f, a, b, nil)
			c, changed := watching()
			s := f.at(c, "/mcp", "2025-11-25")
			if got := tools(t, s); !slices.Equal(got, []string{"a_echo"}) {
				t.Fatalf("tools: %v", got)
			}
			play.works(f, a, b, s)
			isTold(t, changed)
			if got := tools(t, s); !slices.Equal(got, []string{"a_echo", "b_echo"}) {
				t.Errorf("tools: %v", got)
			}
		})
	}
}

// A process fails when it is started, works, crashes, fails again, and works at last: the client is told each time when it works.
func TestMergeCrash(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	flag := filepath.Join(t.TempDir(), "works")
	f := newFarm(t, fmt.Sprintf(`{"mcpServers": {"a": "$a", "b": {"command": "sh", "args": ["-c", "test -e \"$0\" && exec \"$1\"", %q, %q], "env": {%q: "1"}}}, "holdfast": {"merge": true}}`, flag, exe, standIn), "a")
	c, changed := watching()
	s := f.at(c, "/mcp", "2025-11-25")
	const others = 6
	for _, life := range []string{"started", "crashed"} {
		if got := tools(t, s); len(got) != others {
			t.Fatalf("%s: tools: %v", life, got)
		}
		mcptest.Check(t, os.WriteFile(flag, nil, 0o600))
		isTold(t, changed)
		if got := tools(t, s); !slices.Contains(got, "b_pid") || len(got) != others+3 {
			t.Errorf("%s: tools: %v", life, got)
		}
		mcptest.Check(t, os.Remove(flag))
		if got := call(t, s, "b_end"); !strings.Contains(got, "unknown") {
			t.Errorf("%s: the call that ends the server: %s", life, got)
		}
		if got := call(t, s, "b_pid"); !strings.Contains(got, "did not take the request") {
			t.Errorf("%s: a call while it cannot be started: %s", life, got)
		}
		for len(changed) > 0 {
			<-changed
		}
	}
}

// A server with an unknown revision is left out. A server with an old revision takes no features from the other servers.
func TestMergeRevisions(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		asks, speaks, want string
		tools              string
	}{
		{"2025-11-25", "2024-11-05", "2025-11-25", "[a_echo b_echo]"},
		{"2025-11-25", "2025-06-18", "2025-11-25", "[a_echo b_echo]"},
		{"2025-06-18", "2025-11-25", "2025-06-18", "[a_echo b_echo]"},
		{"2024-11-05", "2025-11-25", "2024-11-05", "[a_echo b_echo]"},
		{"2025-11-25", "1999-01-01", "2025-11-25", "[a_echo]"},
		{"2025-11-25", "2099-01-01", "2025-11-25", "[a_echo]"},
		{"2025-11-25", "2026-07-28", "2025-11-25", "[a_echo]"},
		{"2025-11-25", "", "2025-11-25", "[a_echo]"},
		{"2099-01-01", "2025-06-18", "2025-11-25", "[a_echo b_echo]"},
	} {
		t.Run(one.asks+" "+one.speaks, func(t *testing.T) {
			t.Parallel()
			a, b := newMoody(t, "a"), newMoody(t, "b")
			set(&b.revision, one.speaks)
			f := mergeMoody(t, b, a)
			status, text, h := f.post("/mcp", "", strings.Replace(hello, "2025-11-25", one.asks, 1))
			if status != http.StatusOK || !strings.Contains(text, `"protocolVersion":"`+one.want+`"`) {
				t.Fatalf("%d %s", status, text)
			}
			if tasks := strings.Contains(text, `"tasks":{`); tasks != (one.want == "2025-11-25") {
				t.Errorf("tasks are offered: %v: %s", tasks, text)
			}
			session := h.Get("Mcp-Session-Id")
			_, text, _ = f.post("/mcp", session, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "Mcp-Protocol-Version", one.want)
			for _, tool := range []string{"a_echo", "b_echo"} {
				if strings.Contains(text, tool) != strings.Contains(one.tools, tool) {
					t.Errorf("tools: %s, want %s", text, one.tools)
				}
			}
		})
	}
}

// When no server answers a list, the client gets an error with the reason, and never an empty list.
func TestMergeNoPart(t *testing.T) {
	t.Parallel()
	lists := []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
	for name, one := range map[string]struct {
		both, errs bool
		fails      func(m *moody)
	}{
		"one is ill":    {false, false, func(m *moody) { set(&m.ill, "") }},
		"all are ill":   {true, true, func(m *moody) { set(&m.ill, "") }},
		"all are down":  {true, true, func(m *moody) { m.down.Store(true) }},
		"one is down":   {false, false, func(m *moody) { m.down.Store(true) }},
		"all want more": {true, true, func(m *moody) { set(&m.token, "Bearer more") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newMoody(t, "a"), newMoody(t, "b")
			f := mergeMoody(t, a, b)
			if strings.HasSuffix(name, "down") {
				testlong.Only(t, "a server that is out of reach is waited for")
			}
			c := f.session("/mcp")
			one.fails(b)
			if one.both {
				one.fails(a)
			}
			for i, method := range lists {
				text := c.Post(t, mcptest.Request(i+1, method, "")).Body
				switch {
				case one.errs && (!strings.Contains(text, `"error"`) || !strings.Contains(text, `\"a\"`) || !strings.Contains(text, `\"b\"`)):
					t.Errorf("%s: %s, want an error that names both servers", method, text)
				case !one.errs && (strings.Contains(text, `"error"`) || strings.Contains(text, `[]`)):
					t.Errorf("%s: %s, want what the other server has", method, text)
				}
			}
		})
	}
	t.Run("none has any", func(t *testing.T) { // a list is empty if no server has the feature
		t.Parallel()
		a := newMoody(t, "a")
		a.initialize = func(result string) string { return strings.Replace(result, `"prompts":{},`, "", 1) }
		f := mergeMoody(t, a)
		if r := f.session("/mcp").Post(t, mcptest.Request(1, "prompts/list", "")); !strings.Contains(r.Body, `"prompts":[]`) {
			t.Error(r.Body)
		}
	})
}

// When the server answers 401, the client gets that status, so that it gets a new token: also if the server looks at
// the old token for longer than a request waits for JSON. The server has its own path, or all servers are one.
func TestSlowRefusal(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/slow/mcp", "/mcp"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			slow := newMoody(t, "slow")
			slow.thinks = 200 * time.Millisecond
			set(&slow.token, "Bearer new")
			f := newFarm(t, fmt.Sprintf(`{"mcpServers": {"slow": {"type": "http", "url": %q, "holdfast": {"auth": "passthrough"}}},
				"holdfast": {"merge": true}}`, slow.url))
			session, tool, prompt := "", "echo", "greet"
			if path == "/mcp" {
				tool, prompt = "slow_echo", "slow_greet"
			}
			refused := func(body string) {
				t.Helper()
				status, text, h := f.post(path, session, body, "Authorization", "Bearer old")
				if status != http.StatusUnauthorized || h.Get("WWW-Authenticate") != challenge {
					t.Errorf("%s: %d %q %s; want the server's 401 and challenge", body, status, h.Get("WWW-Authenticate"), text)
				}
			}
			refused(hello)
			session = f.session(path, "Authorization", "Bearer new").Session
			for _, one := range []string{
				`"ping"`, `"tools/list"`, `"prompts/list"`, `"resources/list"`,
				fmt.Sprintf(`"tools/call","params":{"name":%q}`, tool), fmt.Sprintf(`"prompts/get","params":{"name":%q}`, prompt),
			} {
				if one != `"ping"` || path != "/mcp" { // the servers get no pings
					refused(`{"jsonrpc":"2.0","id":1,"method":` + one + `}`)
				}
			}
		})
	}
}

// When the servers refuse a client's token, the client gets their status and challenge where all servers are one, as it does at the path of one server.
func TestMergePassthrough(t *testing.T) {
	t.Parallel()
	const passthrough = `"auth": "passthrough"`
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			a, b, open := newMoody(t, "a"), newMoody(t, "b"), newMoody(t, "open")
			set(&a.token, "Bearer new")
			set(&b.token, "Bearer new")
			f := newFarm(t, fmt.Sprintf(`{"mcpServers": {"a": {"type": "http", "url": %q, "holdfast": {%s}}, "b": {"type": "http", "url": %q, "holdfast": {%s}}, "open": {"type": "http", "url": %q}},
				"holdfast": {"merge": true}}`, a.url, passthrough, b.url, passthrough, open.url))
			session := ""
			ask := func(token, method, params string) (int, string, http.Header) {
				last := `"x":0`
				if era == "modern" {
					last = `"_meta":{` + modernMeta + `}`
				}
				return f.post("/mcp", session, mcptest.Request(1, method, `{`+params+last+`}`), "Authorization", token)
			}
			begin := func(token string) (int, string, http.Header) {
				if era == "modern" {
					return ask(token, "server/discover", "")
				}
				return f.post("/mcp", "", hello, "Authorization", token)
			}
			refused := func(what string, status int, text string, h http.Header) {
				t.Helper()
				if status != http.StatusUnauthorized || h.Get("WWW-Authenticate") != challenge {
					t.Errorf("%s: %d %q %s; want the server's 401 and challenge", what, status, h.Get("WWW-Authenticate"), text)
				}
			}
			status, text, h := begin("Bearer old")
			refused("beginning", status, text, h)
			status, text, h = begin("Bearer new")
			if status != http.StatusOK {
				t.Fatalf("beginning: %d %s", status, text)
			}
			if session = h.Get("Mcp-Session-Id"); session != "" {
				_, _, _ = f.post("/mcp", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Authorization", "Bearer new")
			}
			for _, one := range [][2]string{
				{"tools/list", ""}, {"prompts/list", ""}, {"resources/list", ""}, {"resources/templates/list", ""},
				{"tools/call", `"name":"a_echo",`}, {"tools/call", `"name":"b_echo",`}, {"prompts/get", `"name":"a_greet",`},
			} {
				status, text, h := ask("Bearer old", one[0], one[1])
				refused(fmt.Sprint(one), status, text, h)
				if status, text, _ := ask("Bearer new", one[0], one[1]); status != http.StatusOK && one[0] != "prompts/get" || !strings.Contains(text, "a_") && strings.HasSuffix(one[0], "ls/list") {
					t.Errorf("%v with the right token: %d %s", one, status, text)
				}
			}
			if status, text, _ := ask("Bearer new", "tools/call", `"name":"open_echo",`); status != http.StatusOK || !strings.Contains(text, "open:echo") {
				t.Errorf("the server that gets no token: %d %s", status, text)
			}
			// A server that refuses a token which another server takes is left out.
			set(&b.token, "Bearer other")
			status, text, h = begin("Bearer new")
			if status != http.StatusOK {
				t.Fatalf("beginning with a token that one server takes: %d %s", status, text)
			}
			session = h.Get("Mcp-Session-Id")
			if status, text, _ := ask("Bearer new", "tools/list", ""); status != http.StatusOK || !strings.Contains(text, "a_echo") || !strings.Contains(text, "open_echo") || strings.Contains(text, "b_echo") {
				t.Errorf("the list of two servers of three: %d %s", status, text)
			}
			status, text, h = ask("Bearer new", "tools/call", `"name":"b_echo",`)
			refused("a call of the one that refuses", status, text, h)
		})
	}
}

// Headers Mcp-* of a client that no revision defines reach the server over HTTP. Headers about the connection to Holdfast do not.
func TestMcpHeaders(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/mcp", "/a/mcp"} {
		for _, era := range []string{"legacy", "modern"} {
			t.Run(path+" "+era, func(t *testing.T) {
				t.Parallel()
				a := newMoody(t, "a")
				var mu sync.Mutex
				var heard []http.Header
				a.heard = func(h http.Header) {
					mu.Lock()
					defer mu.Unlock()
					heard = append(heard, h.Clone())
				}
				f := mergeMoody(t, a)
				session, params := "", `"name":"a_echo"`
				if path != "/mcp" {
					params = `"name":"echo"`
				}
				header := []string{"Mcp-Tenant", "t1", "Mcp-Param-Region", "eu"}
				if era == "legacy" {
					session = f.session(path, header...).Session
				} else {
					params += `,"_meta":{` + modernMeta + `}`
				}
				status, text, _ := f.post(path, session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`}}`, header...)
				if status != http.StatusOK || !strings.Contains(text, "a:echo") {
					t.Fatalf("%d %s", status, text)
				}
				mu.Lock()
				defer mu.Unlock()
				last := heard[len(heard)-1]
				if last.Get("Mcp-Tenant") != "t1" || last.Get("Mcp-Param-Region") != "eu" {
					t.Errorf("the server gets %v", last)
				}
				for _, h := range heard {
					if id := h.Get("Mcp-Session-Id"); id != "" && id != "s-a" || h.Get("Mcp-Name") == "a_echo" || len(h.Values("Mcp-Protocol-Version")) > 1 {
						t.Errorf("the server gets what is said of the connection to Holdfast: %v", h)
					}
				}
			})
		}
	}
}
