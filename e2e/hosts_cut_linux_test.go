package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
	"holdfast/jsonrpc"
)

// ledgerStdio makes the test binary a stdio MCP server with a tool that writes its beginning to a file,
// reports progress, and waits until there is a file with the name of its tag.
func ledgerStdio(args []string) {
	dir := args[0]
	server := mcp.NewServer(&mcp.Implementation{Name: "ledger", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, req *mcp.CallToolRequest, a struct {
		Tag    string `json:"tag"`
		Report bool   `json:"report,omitempty"`
	}) (*mcp.CallToolResult, any, error) {
		if err := trace(dir, "ran-"+a.Tag); err != nil {
			return nil, nil, err
		}
		if a.Report {
			_ = progress(ctx, req, 1) // if it fails, the call ends without progress
		}
		for {
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := os.Stat(filepath.Join(dir, a.Tag)); err == nil {
				return said("paid " + a.Tag), nil, nil
			}
		}
	})
	runStdio(server)
}

// A hostSeen describes a host as it was observed: its first messages, and its reactions to failures.
type hostSeen struct {
	name, version string
	discovers     bool // its first request is server/discover of 2026-07-28
	revision      string
	capabilities  string
	heals         bool // after 404 it begins a new session, and repeats its call
	resumes       bool // it resumes with Last-Event-ID
	repeats       bool // it repeats a POST that was cut before the response header
	noVersion     bool // it sends no MCP-Protocol-Version
	meta          string
}

var hostsSeen = map[string]hostSeen{
	"claude":   {name: "claude-code", version: "2.1.332", discovers: true, revision: "2025-11-25", capabilities: `{"roots":{"listChanged":true},"elicitation":{"form":{},"url":{}}}`, heals: true, resumes: true, meta: `"claudecode/toolUseId":"toolu_%[1]d","progressToken":%[1]d`},
	"copilot":  {name: "github-copilot-developer", version: "1.0.102", discovers: true, revision: "2025-11-25", capabilities: `{"sampling":{},"elicitation":{"form":{},"url":{}}}`, heals: true, resumes: true, meta: `"progressToken":%[1]d`},
	"gemini":   {name: "gemini-cli-mcp-client", version: "0.61.0", revision: "2025-06-18", capabilities: `{"roots":{"listChanged":true}}`, resumes: true, noVersion: true, meta: `"progressToken":"d-%[1]d"`},
	"opencode": {name: "opencode", version: "1.18.33", revision: "2025-11-25", capabilities: `{"roots":{}}`, heals: true, resumes: true, meta: `"progressToken":%[1]d`},
	"codex":    {name: "codex-mcp-client", version: "0.169.0", revision: "2025-06-18", capabilities: `{"elicitation":{"form":{},"url":{}}}`, heals: true, resumes: true, meta: `"callId":"call_%[1]d","itemId":"i%[1]d","threadId":"t","sessionId":"s","progressToken":%[1]d`},
	"goose":    {name: "goose", version: "1.37.0", revision: "2025-03-26", capabilities: `{"extensions":{},"roots":{},"sampling":{},"elicitation":{}}`, heals: true, meta: `"agent-session-id":"g1","agent-working-dir":"/srv/me","progressToken":%[1]d`},
	"qwen":     {name: "qwen-code-mcp-client", version: "0.24.4", revision: "2025-11-25", capabilities: `{"roots":{},"extensions":{"io.modelcontextprotocol/ui":{}}}`, resumes: true, meta: `"progressToken":%[1]d`},
	"cline":    {name: "@cline/core", version: "3.0.65", revision: "2025-11-25", capabilities: `{}`, resumes: true, repeats: true},
	"continue": {name: "continue-cli-client", version: "1.5.47", revision: "2025-11-25", capabilities: `{}`, resumes: true},
	"sdk":      {name: "my-client", version: "1.0.0", revision: "2025-11-25", capabilities: `{}`, resumes: true, meta: `"progressToken":%[1]d`},
	"sdk-auto": {name: "my-auto-client", version: "1.0.0", discovers: true, revision: "2025-11-25", capabilities: `{}`, resumes: true, meta: `"progressToken":%[1]d`},
}

// A hostPlayed plays a host. Its inbox has every message that it gets.
type hostPlayed struct {
	t       *testing.T
	is      hostSeen
	at      string
	session string
	calls   int
	mu      sync.Mutex
	inbox   []string
	lastID  string // of the newest event with an id, on the streams of the last call
}

// A cutKey is the key of the *atomic.Pointer[net.TCPConn] in a context to which resets stores the connection of the request.
type cutKey struct{}

// resets is an HTTP client with a connection for each request. A connection that is closed before its response has ended is cut with RST.
var resets = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		err = c.(*net.TCPConn).SetLinger(0)
		if conn, ok := ctx.Value(cutKey{}).(*atomic.Pointer[net.TCPConn]); ok {
			conn.Store(c.(*net.TCPConn))
		}
	}
	return c, err
}}}

// send sends a request to the server, or to a relay of it. To cut its connection is to cancel ctx.
func (h *hostPlayed) send(ctx context.Context, at, method, body, lastID string) (*http.Response, error) {
	c := &mcptest.Client{URL: at, Session: h.session, HTTP: resets, Header: []string{"Last-Event-ID", lastID}}
	if method == http.MethodGet {
		c.Header = append(c.Header, "Accept", "text/event-stream")
	}
	if !h.is.noVersion {
		c.Revision = h.is.revision
	}
	return c.Send(ctx, method, body)
}

// read reads a response to its end. ids says that the events are of a call, so that their ids are kept in lastID.
func (h *hostPlayed) read(ids bool) func(res *http.Response, err error) (status int, _ error) {
	return func(res *http.Response, err error) (int, error) {
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		if id := res.Header.Get("Mcp-Session-Id"); id != "" && h.session == "" {
			h.session = id
		}
		if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			data, err := io.ReadAll(res.Body)
			if len(data) > 0 && res.StatusCode < 300 {
				h.take(string(data))
			}
			return res.StatusCode, err
		}
		for events := sse.NewReader(res.Body, 1<<20); ; {
			ev, err := events.Next()
			if errors.Is(err, io.EOF) {
				return res.StatusCode, nil
			}
			if err != nil {
				return res.StatusCode, err
			}
			if ev.ID != "" && ids {
				h.mu.Lock()
				h.lastID = ev.ID
				h.mu.Unlock()
			}
			if len(ev.Data) > 0 {
				h.take(string(ev.Data))
			}
		}
	}
}

func (h *hostPlayed) take(data string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inbox = append(h.inbox, data)
}

// responses returns the responses to a request.
func (h *hostPlayed) responses(id int) (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.inbox {
		if m, err := jsonrpc.Parse([]byte(data)); err == nil && m.Kind == jsonrpc.Response && string(m.ID) == fmt.Sprint(id) {
			all = append(all, data)
		}
	}
	return all
}

// heard reports whether text is in a message that the host got.
func (h *hostPlayed) heard(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.inbox {
		if strings.Contains(data, text) {
			return true
		}
	}
	return false
}

// begin begins a session as the host does.
func (h *hostPlayed) begin() {
	h.t.Helper()
	h.session = ""
	ctx := h.t.Context()
	about := fmt.Sprintf(`{"name":%q,"version":%q}`, h.is.name, h.is.version)
	if h.is.discovers {
		meta := fmt.Sprintf(`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":%s,"io.modelcontextprotocol/clientCapabilities":%s}`, about, h.is.capabilities)
		r := (&mcptest.Client{URL: h.at, HTTP: resets}).Post(h.t, `{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":`+meta+`}}`)
		if strings.Contains(r.Body, `"result"`) && strings.Contains(r.Body, "2026-07-28") {
			h.t.Fatalf("the host is offered the era in which a cut ends a call: %s", r.Body)
		}
	}
	h.calls++
	status, err := h.read(false)(h.send(ctx, h.at, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}}`, h.calls, h.is.revision, h.is.capabilities, about), "")) //nolint:bodyclose // read closes it
	if err != nil || status != http.StatusOK || h.session == "" {
		h.t.Fatalf("initialize: %d, %v", status, err)
	}
	if status, err := h.read(false)(h.send(ctx, h.at, http.MethodPost, mcptest.Initialized, "")); err != nil || status != http.StatusAccepted { //nolint:bodyclose // read closes it
		h.t.Fatalf("initialized: %d, %v", status, err)
	}
}

// listen opens the host's GET stream, and returns a function that cuts it. If mute is set, the host does not notice the cut: a
// relay keeps the host's side of the connection open.
func (h *hostPlayed) listen(mute bool) (cut func()) {
	h.t.Helper()
	ctx, cut := context.WithCancel(h.t.Context())
	at := h.at
	if mute {
		at, cut = h.relay()
	}
	res, err := h.send(ctx, at, http.MethodGet, "", "") //nolint:bodyclose // read closes it
	go func() { _, _ = h.read(false)(res, err) }()      //nolint:bodyclose // the same
	return cut
}

// relay carries one connection to the server. cut closes the server's side of the connection only.
func (h *hostPlayed) relay() (at string, cut func()) {
	h.t.Helper()
	server := make(chan *net.TCPConn, 1)
	r := &testport.Relay{Target: strings.TrimSuffix(strings.TrimPrefix(h.at, "http://"), "/mcp")}
	r.Carry = func(_ uint64, c *net.TCPConn) {
		up := r.Dial()
		server <- up
		r.Go(func() { _, _ = io.Copy(c, up) })
		_, _ = io.Copy(up, c)
	}
	mcptest.Check(h.t, r.Start())
	h.t.Cleanup(r.Close)
	return "http://" + r.Addr() + "/mcp", func() { _ = (<-server).Close() }
}

// A callPlayed is a call of a host. Its connection can be cut.
type callPlayed struct {
	h     *hostPlayed
	id    int
	tag   string
	body  string
	cut   func()
	ended chan struct{} // closed when its connection has ended
	err   error         // of its POST
}

// call begins a call of the tool.
func (h *hostPlayed) call(tag string, report bool) *callPlayed {
	h.mu.Lock()
	h.lastID = ""
	h.mu.Unlock()
	h.calls++
	meta := ""
	if h.is.meta != "" {
		meta = `"_meta":{` + fmt.Sprintf(h.is.meta, h.calls) + `},`
	}
	return h.make(&callPlayed{h: h, id: h.calls, tag: tag, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s"name":"pay","arguments":{"tag":%q,"report":%v}}}`, h.calls, meta, tag, report)})
}

// make makes the call, for the first time or again.
func (h *hostPlayed) make(c *callPlayed) *callPlayed {
	ctx, cancel := context.WithCancel(h.t.Context())
	conn := new(atomic.Pointer[net.TCPConn])
	ctx = context.WithValue(ctx, cutKey{}, conn)
	c.cut = func() { // at once: the end of the context closes the connection a little later
		if opened := conn.Load(); opened != nil {
			_ = opened.Close()
		}
		cancel()
	}
	ended := make(chan struct{})
	c.ended = ended
	go func() {
		defer close(ended)
		_, c.err = h.read(true)(h.send(ctx, h.at, http.MethodPost, c.body, "")) //nolint:bodyclose // read closes it
	}()
	return c
}

// comeBack does as the host does after the connection of a call was cut, until the call has its response or ctx is
// done.
func (c *callPlayed) comeBack(ctx context.Context) {
	h := c.h
	<-c.ended
	h.mu.Lock()
	lastID := h.lastID
	h.mu.Unlock()
	if lastID == "" && h.is.repeats {
		h.make(c)
		return
	}
	if lastID == "" || !h.is.resumes {
		return
	}
	go func() {
		for ctx.Err() == nil && len(h.responses(c.id)) == 0 {
			h.mu.Lock()
			lastID := h.lastID
			h.mu.Unlock()
			status, err := h.read(true)(h.send(ctx, h.at, http.MethodGet, "", lastID)) //nolint:bodyclose // read closes it
			if err == nil && status != http.StatusOK {
				return // the SDK stops here too
			}
			time.Sleep(100 * time.Millisecond) // the host waits before it comes back
		}
	}()
}

// A hostRun is a server, and a host that uses it.
type hostRun struct {
	*hostPlayed
	dir    string
	start  func() *program
	p      *program
	cutGET func() // cuts the host's GET stream
}

func startHostRun(t *testing.T, is hostSeen, mute bool, flags ...string) *hostRun {
	t.Helper()
	dir, at := t.TempDir(), testport.Addr(t)
	self := mcptest.Must(os.Executable())(t)
	r := &hostRun{dir: dir}
	r.start = func() *program {
		args := append([]string{"serve", "--listen", at, "--state-dir", filepath.Join(dir, "state"), "--drain", "1s"}, flags...)
		return serveBy(t, exec.Command(built, append(args, "--", self, "ledger", dir)...))
	}
	r.p = r.start()
	r.hostPlayed = &hostPlayed{t: t, is: is, at: r.p.URL}
	r.begin()
	r.cutGET = r.listen(mute)
	return r
}

// restart ends the server, with SIGTERM or SIGKILL, and starts it again.
func (r *hostRun) restart(kill bool) {
	r.down(kill)
	r.p = r.start()
}

func (r *hostRun) down(kill bool) {
	if kill {
		_ = r.p.cmd.Process.Kill()
		_ = r.p.wait(r.t, time.Minute)
	} else if err := r.p.stop(r.t); err != nil {
		r.t.Error(err)
	}
}

// ran returns how often the tool was begun with a tag.
func (r *hostRun) ran(tag string) int { return (&fleet{t: r.t, traces: r.dir}).runs("ran-" + tag) }

// runs waits until the tool of a call runs.
func (r *hostRun) runs(c *callPlayed) {
	r.t.Helper()
	mcptest.Eventually(r.t, "the tool runs", time.Minute, func() bool { return r.ran(c.tag) > 0 })
}

// forgotten waits until the session's process has ended.
func (r *hostRun) forgotten() {
	r.t.Helper()
	mcptest.Eventually(r.t, "the end of the session's process", time.Minute, func() bool {
		n := 0
		mcptest.Processes("cmdline", func(_ int, line []byte) {
			if bytes.Contains(line, []byte("\x00ledger\x00"+r.dir)) && !bytes.Contains(line, []byte("\x00serve\x00")) {
				n++
			}
		})
		return n == 0
	})
}

// finish lets the tool end.
func (r *hostRun) finish(tag string) {
	r.t.Helper()
	mcptest.Check(r.t, os.WriteFile(filepath.Join(r.dir, tag), nil, 0o600))
}

// wants waits for the response to a call, and checks that it came once, contains text, and that the tool ran once.
func (r *hostRun) wants(c *callPlayed, text string) {
	r.t.Helper()
	mcptest.Eventually(r.t, "the call has a response", time.Minute, func() bool { return len(r.responses(c.id)) > 0 })
	if got := r.responses(c.id); len(got) != 1 || !strings.Contains(got[0], text) {
		r.t.Errorf("responses %q, want one with %q", got, text)
	}
	if n := r.ran(c.tag); n != 1 {
		r.t.Errorf("the tool ran %d times", n)
	}
}

// works makes a call, and checks that it gets its result in the same session.
func (r *hostRun) works(tag string) {
	r.t.Helper()
	r.finish(tag)
	session := r.session
	c := r.call(tag, false)
	r.wants(c, "paid "+tag)
	if r.session != session {
		r.t.Error("the host is in another session")
	}
}

// cut makes a call, and resets its connection after its stream has begun, while the call is silent.
func (r *hostRun) cut(tag string) {
	r.t.Helper()
	c := r.call(tag, false)
	r.runs(c)
	r.begun()
	c.cut()
	c.comeBack(r.t.Context())
	r.finish(tag)
	r.wants(c, "paid "+tag)
}

// The table of hosts, by URL, with calls in memory: each host reacts to failures as it was observed, no call is lost, runs twice
// or stays without an answer, and no session is lost.
func TestHostsTable(t *testing.T) {
	testlong.Only(t, "it starts a process for each of many cases")
	t.Parallel()
	mcptest.Check(t, build())
	for situation, test := range map[string]struct {
		flags []string
		do    func(r *hostRun)
	}{
		// A restart between two calls.
		"r-mem": {nil, func(r *hostRun) {
			r.works("a")
			r.restart(false)
			r.works("b")
			r.restart(true)
			r.works("c")
		}},
		// A call while the server is down fails, and no other call does.
		"r-down": {nil, func(r *hostRun) {
			r.works("a")
			r.down(true)
			if c := r.call("b", false); true {
				<-c.ended
				if c.err == nil || r.ran("b") > 0 {
					r.t.Errorf("a call of a server that is down: %v", c.err)
				}
			}
			r.p = r.start()
			r.works("c")
		}},
		// RST after a progress event.
		"b-rst1": {nil, func(r *hostRun) {
			c := r.call("a", true)
			r.runs(c)
			if r.is.meta != "" {
				mcptest.Eventually(r.t, "progress", time.Minute, func() bool { return r.heard("notifications/progress") })
			} else {
				r.begun()
			}
			c.cut()
			c.comeBack(r.t.Context())
			r.finish("a")
			r.wants(c, "paid a")
			r.works("b")
		}},
		// RST into a silent call, once its stream has begun.
		"f-cut": {nil, func(r *hostRun) { r.cut("a") }},
		// RST before any byte. The host's HTTP client sends its POST again, or its model makes the call again.
		"c-rst+r": {[]string{"--upgrade-after", "10m"}, func(r *hostRun) {
			c := r.call("a", false)
			r.runs(c)
			c.cut()
			if c.comeBack(r.t.Context()); !r.is.repeats {
				if r.is.revision < "2025-11-25" { // without an event id the host does not come back by itself
					time.Sleep(time.Second) // the model takes a while to make the call again: by then the server has noticed the cut
				}
				c = r.call("a", false)
				// Else the host may get the answer on its standalone stream before it makes the call again.
				mcptest.Eventually(r.t, "the request to be attached", time.Minute, func() bool {
					return strings.Contains(strings.Join(r.p.log.Lines("time="), ""), "a request came again")
				})
			}
			r.finish("a")
			r.wants(c, "paid a")
		}},
		// SIGKILL in the middle of a call.
		"mem": {nil, func(r *hostRun) {
			c := r.call("a", false)
			r.runs(c)
			r.begun()
			r.restart(true)
			c.comeBack(r.t.Context())
			if r.is.resumes {
				r.wants(c, "outcome unknown")
			}
			r.works("b")
		}},
		// The session expires while the host believes that its GET stream is open.
		"ttl+g": {[]string{"--session-ttl", "300ms", "--unused-process", "0"}, func(r *hostRun) {
			r.works("a")
			r.cutGET()
			r.forgotten()
			r.works("b")
			r.cutGET = r.listen(false)
			r.cut("c")
		}},
		// The session sleeps, as its host has lost its GET stream, too. With --keep, a response that was not sent at once is kept.
		"sleep": {[]string{"--sleep-after", "300ms", "--keep", "5s", "--unused-process", "0"}, func(r *hostRun) {
			r.cutGET()
			r.forgotten()
			r.works("a")
			r.cutGET = r.listen(false)
			r.cut("b")
		}},
	} {
		for host, is := range hostsSeen {
			t.Run(situation+"/"+host, func(t *testing.T) {
				t.Parallel()
				test.do(startHostRun(t, is, situation == "ttl+g", test.flags...))
			})
		}
	}
}

// begun waits until the host has an event id of the call's stream.
func (r *hostRun) begun() {
	r.t.Helper()
	mcptest.Eventually(r.t, "an event id", time.Minute, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.lastID != ""
	})
}
