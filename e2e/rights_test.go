package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/auth"
	"holdfast/internal/auth/authtest"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A rightsClient has connections of each kind open at a server, with one key.
type rightsClient struct {
	t       *testing.T
	ctx     context.Context
	p       *program
	key     string
	streams map[string]<-chan string // receives the data of the last event at the end of the stream, and is closed then
	sockets map[string]*openSocket
	last    string // id of the last event that was read of the last POST
	session string // the session of that POST
}

// An openSocket is a WebSocket that is open.
type openSocket struct {
	ws      *websocket.Conn
	session string
	said    chan string // messages other than progress
	over    chan error
}

// stream opens a stream of events, and waits for its first event.
func (c *rightsClient) stream(name, method, at, session, body string, head ...string) (first sse.Event) {
	c.t.Helper()
	events := c.client(at, session).Stream(c.t, method, body, head...)
	if method != http.MethodGet || head != nil || strings.HasSuffix(at, "/sse") { // other streams have no event before the first message
		first = mcptest.Must(events.Next())(c.t)
	}
	over := make(chan string, 1)
	c.streams[name] = over
	go func() {
		defer close(over)
		text := string(first.Data)
		for ev, err := events.Next(); err == nil; ev, err = events.Next() {
			if len(ev.Data) > 0 {
				text = string(ev.Data)
			}
		}
		over <- text
	}()
	return first
}

// client returns a client with the key.
func (c *rightsClient) client(at, session string) *mcptest.Client {
	return &mcptest.Client{URL: at, Session: session, Header: []string{"Authorization", bearer(c.key)}}
}

// dial opens a WebSocket in a session; "": in a new one.
func (c *rightsClient) dial(name, session string) {
	c.t.Helper()
	ws := mcptest.MustDial(c.t, c.ctx, c.p.URL, "Authorization", "Bearer "+c.key, "Mcp-Session-Id", session)
	s := &openSocket{ws: ws.Conn, session: ws.Session, said: make(chan string, 100), over: make(chan error, 1)}
	c.sockets[name] = s
	go func() {
		for {
			_, text, err := ws.Read(c.ctx)
			if err != nil {
				s.over <- err
				return
			}
			if !strings.Contains(string(text), "notifications/progress") {
				s.said <- string(text)
			}
		}
	}()
	if session == "" {
		c.ask(name, begins)
	}
}

// ask sends a request over a WebSocket, and returns the answer, or why the connection was closed.
func (c *rightsClient) ask(name, message string) string {
	c.t.Helper()
	id := string(jsonrpc.Field([]byte(message), "id"))
	s := c.sockets[name]
	_ = s.ws.Write(c.ctx, websocket.MessageText, []byte(message)) // the connection may be closed
	for {
		select {
		case text := <-s.said:
			if strings.Contains(text, `"id":`+id) {
				return text
			}
		case err := <-s.over:
			s.over <- err
			return err.Error()
		case <-c.ctx.Done():
			c.t.Fatalf("%s: no answer to %s", name, message)
		}
	}
}

const listens = `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` +
	`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

func counts(id string, to int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"count","arguments":{"to":%d,"delay_ms":20},"_meta":{"progressToken":%q}}}`, id, to, id)
}

// open opens connections of each kind.
func (c *rightsClient) open() {
	c.streams, c.sockets = make(map[string]<-chan string), make(map[string]*openSocket)
	c.stream("GET", http.MethodGet, c.p.URL, openSession(c.t, c.p.URL, c.key, "{}"), "")
	c.session = openSession(c.t, c.p.URL, c.key, "{}")
	ev := c.stream("POST", http.MethodPost, c.p.URL, c.session, counts("post", 100_000))
	c.last = ev.ID
	c.stream("GET of a call", http.MethodGet, c.p.URL, c.session, "", "Last-Event-ID", ev.ID)
	ev = c.stream("POST", http.MethodPost, c.p.URL, c.session, counts("again", 99_999)) // another argument, so that it is not taken for the same call again
	c.last = ev.ID
	c.stream("pair", http.MethodGet, strings.Replace(c.p.URL, "/mcp", "/sse", 1), "", "")
	c.stream("listen", http.MethodPost, c.p.URL, "", listens, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	c.dial("WebSocket", "")
	c.dial("WebSocket in a session", openSession(c.t, c.p.URL, c.key, "{}"))
}

// A rightsChange is a change while the connections of a client are open, and its effects.
type rightsChange struct {
	key, auth, tools string // the key's scopes and the server's settings after the change
	removed          bool   // the key is removed
	ends             string // which connections end
	call, ping       string // how a call over a WebSocket that stays open, and a ping, are answered
	bridged          bool   // at a door, which does not read the messages of a new WebSocket
}

var rightsChanges = map[string]rightsChange{
	"the key is removed":             {removed: true, auth: `"scopes": ["a"]`, ends: "all"},
	"the key's scopes change":        {key: "other", auth: `"scopes": ["a"]`, ends: "streams", call: "insufficient scope", ping: "insufficient scope"},
	"the server needs another scope": {key: "a", auth: `"scopes": ["a", "b"]`, ends: "streams", call: "insufficient scope", ping: "insufficient scope"},
	"a tool needs a scope":           {key: "a", auth: `"scopes": ["a"], "tools": {"count": ["c"]}`, call: "insufficient scope: the tool needs c", ping: `"result":{}`},
	"a tool is denied":               {key: "a", auth: `"scopes": ["a"]`, tools: `"deny": ["count"]`, call: "Unknown tool", ping: `"result":{}`},
	"another tool is denied":         {key: "a", auth: `"scopes": ["a"]`, tools: `"deny": ["other"]`, call: `"text":"2"`, ping: `"result":{}`},
}

// TestOpenRights changes the rights of clients while their connections are open, over each transport: requests that are not
// allowed any more are refused. If the key of a client is removed, its connections are closed, and its call goes on.
func TestOpenRights(t *testing.T) {
	t.Parallel()
	for name, change := range rightsChanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testOpenRights(t, change, func(args ...string) *program { return serve(t, args...) })
		})
	}
}

// TestOpenRightsDoor is TestOpenRights at a door, with the sessions at a worker.
func TestOpenRightsDoor(t *testing.T) {
	t.Parallel()
	e := func() (store string) {
		s := sharedNATS(t)
		return "nats://" + natstest.User + ":" + natstest.Password + "@" + s.Addr(0) + "?prefix="
	}()
	for name, change := range rightsChanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testlong.Part(t)
			store := e + rand.Text()
			change.bridged = true
			testOpenRights(t, change, func(args ...string) *program {
				args = append(args, "--store", store)
				if _, greeted := launch(t, exec.Command(built, append([]string{"serve", "--role", "worker"}, args...)...)); !greeted {
					t.Fatal("the worker does not work")
				}
				return serve(t, append(args, "--role", "door")...)
			})
		})
	}
}

// testOpenRights makes one change at a server.
func testOpenRights(t *testing.T, change rightsChange, start func(args ...string) *program) {
	key, line, err := auth.NewKey("ada")
	second, line2, err2 := auth.NewKey("ada", "a", "b", "c")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	settings := func(auth, tools string) string {
		return fmt.Sprintf(`{"mcpServers": {"a": {"command": %q, "args": ["stdio"], "holdfast": {"path": "/mcp", "auth": {%s}, "tools": {%s}}}}}`, os.Args[0], auth, tools)
	}
	files := authtest.Files(t, []byte(line+" a\n"+line2+"\n"), []byte(settings(`"scopes": ["a"]`, "")))
	mcptest.Check(t, build())
	p := start("--auth-keys", files[0], "--config", files[1], "--eras", "both", "--drain", "0.5s")
	c := &rightsClient{t: t, ctx: bounded(t, 2*time.Minute), p: p, key: key}
	c.open()
	if line += " " + change.key + "\n"; change.removed {
		line = ""
	}
	for i, text := range []string{line + line2 + "\n", settings(change.auth, change.tools)} {
		next := filepath.Join(t.TempDir(), "next")
		mcptest.Check(t, os.WriteFile(next, []byte(text), 0o600))
		mcptest.Check(t, os.Rename(next, files[i]))
	}
	p.signal(t, syscall.SIGHUP)
	mcptest.Eventually(t, "the files are read", time.Minute, func() bool {
		log := p.log.String()
		return strings.Contains(log, "configuration read") && (change.key == "a" || strings.Contains(log, "keys read"))
	})
	c.check(change)
	if change.ends != "" {
		c.key = second
		c.comeBack()
	}
}

// check checks the effects of a change on the connections.
func (c *rightsClient) check(change rightsChange) {
	t := c.t
	for name, s := range c.sockets {
		blind := change.bridged && name == "WebSocket"
		if change.removed || blind && (change.ends != "" || strings.Contains(change.call, "insufficient")) {
			err := <-s.over
			if websocket.CloseStatus(err) != websocket.StatusPolicyViolation ||
				change.removed && !strings.Contains(err.Error(), "connect again with a valid one") || !change.removed && !strings.Contains(err.Error(), "scope") {
				t.Errorf("%s ended with %v", name, err)
			}
			continue
		}
		for what, answer := range map[string]string{counts("ws", 2): change.call, `{"jsonrpc":"2.0","id":"p","method":"ping"}`: change.ping} {
			got := ""
			mcptest.Eventually(t, name+" is answered with "+answer, time.Minute, func() bool {
				got = c.ask(name, what)
				return strings.Contains(got, answer) // the change may take effect a moment after the log says that the files are read
			})
		}
	}
	for name, over := range c.streams {
		if change.ends != "" {
			select {
			case text, open := <-over:
				if open && strings.Contains(text, `"result"`) {
					t.Errorf("%s ended with %s", name, text)
				}
			case <-c.ctx.Done():
				t.Errorf("%s is open", name)
			}
			continue
		}
		select {
		case text := <-over:
			t.Errorf("%s ended, after %s", name, text)
		default:
		}
	}
}

// comeBack has the client resume its call with another key.
func (c *rightsClient) comeBack() {
	events := c.client(c.p.URL, c.session).Stream(c.t, http.MethodGet, "", "Last-Event-ID", c.last)
	for range 3 {
		if ev := mcptest.Must(events.Next())(c.t); len(ev.Data) > 0 && !strings.Contains(string(ev.Data), `"progressToken":"again"`) {
			c.t.Errorf("the call goes on with %s", ev.Data)
		}
	}
	events.Close()
}

// TestOpenTokenEnds has a token expire while its client has connections open: the connections stay open for --auth-grace.
func TestOpenTokenEnds(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	const grace = 2 * time.Second
	p := serve(t, "--demo", "--auth-issuer", as.URL, "--auth-audience", "here", "--auth-grace", grace.String(), "--eras", "both", "--drain", "0.5s")
	valid := as.Token(authtest.Claims{"aud": "here"})
	openSession(t, p.URL, valid, "{}") // the server asks for the keys
	began := time.Now()
	openSession(t, p.URL, valid, "{}")
	// All connections are open before the token ends, on a slow machine too: that takes as long as some five sessions.
	ends := time.Unix(time.Now().Add(min(max(3*time.Second, 50*time.Since(began)), 12*time.Second)).Unix(), 0)
	c := &rightsClient{t: t, ctx: bounded(t, time.Minute), p: p, key: as.Token(authtest.Claims{"aud": "here", "exp": ends.Unix()})}
	c.open()
	mcptest.Eventually(t, "a new request is refused", time.Minute, func() bool {
		return c.client(p.URL, "").Post(t, begins).Status == http.StatusUnauthorized
	})
	for name := range c.sockets {
		if got := c.ask(name, `{"jsonrpc":"2.0","id":"g","method":"ping"}`); !strings.Contains(got, `"result"`) && time.Since(ends) < grace {
			t.Errorf("%s, in the grace: %s", name, got)
		}
	}
	c.check(rightsChange{removed: true, ends: "all"})
	if early := time.Until(ends.Add(grace)); early > 0 {
		t.Errorf("the connections ended %v before the grace was over", early)
	}
	c.key = as.Token(authtest.Claims{"aud": "here"})
	c.comeBack()
}
