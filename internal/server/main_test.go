package server_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/cluster"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe/observetest"
	"holdfast/internal/revival"
	"holdfast/internal/server"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/task"
	"holdfast/internal/session"
	"holdfast/internal/sessionid"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(testlong.Either(64, 8)) // with -long some tests keep both processors busy
	goleak.VerifyTestMain(m)
}

// node is a handler on a real socket, with a scripted server behind it.
type node struct {
	*server.Handler
	t        testing.TB
	sessions *session.Manager
	store    *memory.Store
	script   *script
	addr     string
	lists    bool // the backend answers tools/list
}

type config struct {
	server  server.Options
	session session.Options
	memory  memory.Options
	backend backend.Backend // instead of the script
	http    func(*http.Server)
	store   func(stream.Store) stream.Store // wraps the node's store
	listen  func(net.Listener) net.Listener // wraps the listener
	bus     func(cluster.Bus) cluster.Bus   // wraps the bus of a farm's nodes
	// How long a farm's stores wait for their engine; 0: as long as a busy machine may stand
	// still.
	patience time.Duration
	silence  time.Duration // after which a farm's node counts as lost; 0: the default of cluster
	dir      string        // where a single node keeps the list of sessions that were ended
	life     time.Duration // how long sessions can be revived; 0: not at all
	tasks    time.Duration // the age at which a modern client's call becomes a task; 0: never
}

// manage sets the server options that depend on the session manager.
func (c *config) manage(sessions *session.Manager) {
	after := c.tasks
	if c.server.Stateless {
		after = 0
	}
	c.server.Manager = sessions
	c.server.Features, c.server.Offers = []modern.Feature{task.New(sessions, after, c.server.Logger)}, after > 0
}

func newNode(t testing.TB, c config) *node {
	t.Helper()
	if c.server.Logger == nil {
		c.server.Logger = slog.New(slog.DiscardHandler)
	}
	n := &node{t: t, script: newScript(), store: memory.New(c.memory), lists: c.backend == nil}
	if c.life > 0 {
		c.session.Revival = revival.New(revival.Options{Life: c.life, Keys: []sessionid.Key{{1}}, Dir: c.dir})
	}
	ts := n.serve(&c, n.store)
	t.Cleanup(func() {
		n.sessions.Close()
		ts.CloseClientConnections()
		ts.Close()
		http.DefaultClient.CloseIdleConnections()
		if err := n.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// serve makes the handler of a node with a store, and starts an HTTP server for it.
func (n *node) serve(c *config, store stream.Store) *httptest.Server {
	c.server.UpgradeAfter = cmp.Or(c.server.UpgradeAfter, unhurried)
	c.server.InputGrace = cmp.Or(c.server.InputGrace, unhurried)
	c.server.PingAfter = cmp.Or(c.server.PingAfter, unhurried)
	c.server.KeepAlive = cmp.Or(c.server.KeepAlive, unhurried)
	c.session.Logger, c.session.Stateless, c.session.Services = c.server.Logger, c.server.Stateless, services
	c.session.Observers = append(c.session.Observers, observetest.New(n.t))
	c.server.Observers = c.session.Observers
	if c.session.Addition == nil {
		c.session.Addition = handoff.New(nil)
	}
	if c.backend == nil {
		c.backend = message.New(n.script)
	}
	if c.store != nil {
		store = c.store(store)
	}
	n.sessions = session.NewManager(store, c.backend, c.session)
	c.manage(n.sessions)
	n.Handler = server.New(c.server)
	ts := httptest.NewUnstartedServer(mcptest.Endpoints(n))
	if c.http != nil {
		c.http(ts.Config)
	}
	ts.Listener = n.Listener(ts.Listener)
	if c.listen != nil {
		ts.Listener = c.listen(ts.Listener)
	}
	ts.Start()
	n.addr = ts.Listener.Addr().String()
	return ts
}

// unhurried is the server's time limit for light calls, clients' input, pings and keep-alives, unless a test sets another: it is
// so long that a busy machine does not change a test's result.
const unhurried = time.Minute

// script is a server with tools that do as their arguments say.
type script struct {
	mu   sync.Mutex
	runs map[string]int // number of runs by the argument "key"
	held []*message.Exchange
	asks int

	refused   int      // errors in answer to the script's questions
	cancelled []string // ids of the requests that were cancelled
}

type steps struct {
	Key   string `json:"key"`
	N     int    `json:"n"`
	Size  int    `json:"size"`
	Pause int    `json:"pause"` // milliseconds before each step
	// Jitter is the upper bound of a random pause before each step, in microseconds, so that
	// steps meet readers at any point.
	Jitter int `json:"jitter"`
}

func newScript() *script { return &script{runs: map[string]int{}} }

func (s *script) Serve(x *message.Exchange) {
	switch {
	case x.Kind == jsonrpc.Response:
		s.answered(x)
	case x.Method == "initialize":
		v := jsonrpc.Field(x.Params, "protocolVersion")
		x.Result(fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":{"tools":{}},"serverInfo":{"name":"script","version":"1"}}`, v))
	case x.Method == "ping":
		x.Result([]byte(`{}`))
	case x.Method == "notifications/cancelled":
		s.mu.Lock()
		s.cancelled = append(s.cancelled, string(jsonrpc.Field(x.Params, "requestId")))
		s.mu.Unlock()
	case x.Method == "tools/list":
		x.Result([]byte(`{"tools":[{"name":"echo","annotations":{"readOnlyHint":true}},{"name":"steps"},{"name":"hold"},{"name":"ask"},{"name":"safe_steps","annotations":{"idempotentHint":true}},{"name":"safe_hold","annotations":{"idempotentHint":true}}]}`))
	case x.Method == "notifications/unrelated":
		x.Sink.EmitUnrelated(mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/message","params":` + string(x.Params) + `}`))
	case x.Method == "subscriptions/listen":
		x.Notify("notifications/subscriptions/acknowledged", []byte(`{"notifications":{"toolsListChanged":true}}`))
	case x.Method == "tools/call", x.Method == "vendor/call":
		s.call(x)
	case x.Kind == jsonrpc.Request:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no %s", x.Method))
	}
}

func (s *script) call(x *message.Exchange) {
	args := jsonrpc.Field(x.Params, "arguments")
	switch jsonrpc.String(jsonrpc.Field(x.Params, "name")) {
	case "echo":
		x.Result(result(jsonrpc.String(jsonrpc.Field(args, "text"))))
	case "steps", "safe_steps":
		var a steps
		_ = json.Unmarshal(args, &a)
		s.mu.Lock()
		s.runs[a.Key]++
		s.mu.Unlock()
		if a.Jitter > 0 {
			go func() {
				for i := 1; i <= a.N; i++ {
					time.Sleep(time.Duration(rand.N(a.Jitter)) * time.Microsecond)
					progress(x, i, a.Size)
				}
				x.Result(result("done"))
			}()
			return
		}
		if a.Pause == 0 {
			for i := 1; i <= a.N; i++ {
				progress(x, i, a.Size)
			}
			x.Result(result("done"))
			return
		}
		s.step(x, &a, 1)
	case "hold", "safe_hold":
		s.mu.Lock()
		s.runs[jsonrpc.String(jsonrpc.Field(args, "key"))]++
		s.held = append(s.held, x)
		s.mu.Unlock()
	case "ask":
		s.mu.Lock()
		s.asks++
		id := s.asks
		s.held = append(s.held, x)
		s.mu.Unlock()
		x.Request(fmt.Appendf(nil, `"q%d"`, id), "elicitation/create", []byte(`{"message":"?"}`))
	}
}

func (s *script) step(x *message.Exchange, a *steps, i int) {
	time.AfterFunc(time.Duration(a.Pause)*time.Millisecond, func() {
		if i > a.N {
			x.Result(result("done"))
			return
		}
		progress(x, i, a.Size)
		s.step(x, a, i+1)
	})
}

// answered ends the oldest held call with the client's answer.
func (s *script) answered(x *message.Exchange) {
	s.mu.Lock()
	if x.Message.Error != nil { // the call is over, or no client can answer
		s.refused++
		s.mu.Unlock()
		return
	}
	held := s.held[0]
	s.held = s.held[1:]
	s.mu.Unlock()
	held.Result(result(string(x.Message.Result)))
}

// release waits until count calls are held, and returns the held calls.
func (n *node) release(count int) []*message.Exchange {
	n.t.Helper()
	var held []*message.Exchange
	mcptest.Eventually(n.t, "calls to be held", time.Minute, func() bool {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		if len(n.script.held) < count {
			return false
		}
		held, n.script.held = n.script.held, nil
		return true
	})
	return held
}

// letGo returns the held calls without waiting.
func (n *node) letGo() (held []*message.Exchange) {
	n.script.mu.Lock()
	defer n.script.mu.Unlock()
	held, n.script.held = n.script.held, nil
	return held
}

// holds waits until count calls are held. The answer to a call may begin before the server has the call.
func (n *node) holds(count int) {
	n.t.Helper()
	mcptest.Eventually(n.t, "calls to be held", time.Minute, func() bool {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		return len(n.script.held) >= count
	})
}

func (n *node) runs(key string) int {
	n.script.mu.Lock()
	defer n.script.mu.Unlock()
	return n.script.runs[key]
}

func progress(x *message.Exchange, i, size int) {
	token := jsonrpc.Field(x.Params, "_meta", "progressToken")
	if token == nil {
		token = []byte("null")
	}
	x.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"message":%q}`, token, i, strings.Repeat("x", size)))
}

func result(text string) []byte {
	quoted, _ := json.Marshal(text)
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}]}`, quoted)
}

// peer is a client's knowledge of its session.
type peer struct {
	n       *node
	id      string
	version string
	header  http.Header // sent with every request
	via     string      // the address to connect to, if not the node's own
}

// connect initializes a session; it ends the test on an error.
func (n *node) connect(version string, header http.Header) *peer {
	n.t.Helper()
	return mcptest.Must(n.begin(version, header))(n.t)
}

// begin initializes a session.
func (n *node) begin(version string, header http.Header) (*peer, error) {
	n.t.Helper()
	p := &peer{n: n, version: version, header: header}
	res := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`, version))
	p.id = res.header.Get("Mcp-Session-Id")
	if res.status != 200 || p.id == "" {
		return nil, fmt.Errorf("initialize: %d %s", res.status, res.body)
	}
	if res := p.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.status != 202 || len(res.body) > 0 {
		return nil, fmt.Errorf("initialized: %d %s", res.status, res.body)
	}
	if n.lists {
		if res := p.post(listTools); res.status != 200 {
			return nil, fmt.Errorf("tools/list: %d %s", res.status, res.body)
		}
	}
	return p, nil
}

// listTools lists the tools of a session before the first call. On a busy machine, the first call
// might else be answered before the server knows that its tool is retry-safe.
const listTools = `{"jsonrpc":"2.0","id":"tools","method":"tools/list"}`

// reply is the part of an HTTP response that was read.
type reply struct {
	status int // 0 if not even the header arrived
	header http.Header
	body   []byte
	whole  bool
}

// events returns the whole events of a reply's body.
func (r reply) events() []sse.Event {
	var all []sse.Event
	for rd := sse.NewReader(bytes.NewReader(r.body), 1<<20); ; {
		ev, err := rd.Next()
		if err != nil {
			return all
		}
		all = append(all, ev)
	}
}

// parts returns the messages of an answer of either form: the responses, and the others.
func (r reply) parts() (responses, others []string) {
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		return []string{string(r.body)}, nil
	}
	for _, ev := range r.events() {
		switch {
		case len(ev.Data) == 0:
		case jsonrpc.Field(ev.Data, "method") == nil:
			responses = append(responses, string(ev.Data))
		default:
			others = append(others, string(ev.Data))
		}
	}
	return responses, others
}

// response returns the responses in an answer.
func (r reply) response() string {
	responses, _ := r.parts()
	return strings.Join(responses, "")
}

func (p *peer) headers(extra ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Host: %s\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n", p.n.addr)
	if p.id != "" {
		fmt.Fprintf(&b, "Mcp-Session-Id: %s\r\n", p.id)
		if p.version >= "2025-06-18" {
			fmt.Fprintf(&b, "MCP-Protocol-Version: %s\r\n", p.version)
		}
	}
	_ = p.header.Write(&b)
	for _, h := range extra {
		b.WriteString(h + "\r\n")
	}
	return b.String()
}

func (p *peer) post(body string, extra ...string) reply {
	p.n.t.Helper()
	return p.open("POST", "/mcp", body, extra...).all()
}

// open sends a request and returns the connection on which its answer comes.
func (p *peer) open(method, target, body string, extra ...string) *wire {
	p.n.t.Helper()
	return p.send(p.request(method, target, body, extra...))
}

// request returns the text of a request.
func (p *peer) request(method, target, body string, extra ...string) string {
	length := ""
	if body != "" {
		length = "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	return fmt.Sprintf("%s %s HTTP/1.1\r\n%s%s\r\n%s", method, target, p.headers(extra...), length, body)
}

// send sends a text on a connection of its own.
func (p *peer) send(text string) *wire {
	p.n.t.Helper()
	c := mcptest.Must(net.Dial("tcp", cmp.Or(p.via, p.n.addr)))(p.n.t)
	p.n.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		p.n.t.Fatal(err)
	}
	return &wire{t: p.n.t, c: c.(*net.TCPConn)}
}

// wire is a connection with one answer.
type wire struct {
	t   testing.TB
	c   *net.TCPConn
	r   *bufio.Reader
	res *http.Response
	rd  *sse.Reader
}

// all reads the answer to its end.
func (w *wire) all() reply {
	w.t.Helper()
	res := w.head()
	body, err := io.ReadAll(res.Body)
	w.c.Close()
	return reply{status: res.StatusCode, header: res.Header, body: body, whole: err == nil}
}

// wait sets a time limit for the next reads: longer than a node takes to find that another is
// lost, on a machine that stands still now and then.
func (w *wire) wait() { _ = w.c.SetReadDeadline(time.Now().Add(2 * time.Minute)) }

// head reads the answer's header.
func (w *wire) head() *http.Response {
	w.t.Helper()
	if w.res == nil {
		w.wait()
		w.r = bufio.NewReaderSize(w.c, 64<<10) // a client that leaves with bytes unread in its system resets the connection
		res, err := http.ReadResponse(w.r, nil)
		if err != nil {
			w.t.Fatalf("response: %v", err)
		}
		w.res = res
	}
	return w.res
}

// next returns the next event of the answer, and io.EOF at its end.
func (w *wire) next() (sse.Event, error) {
	w.t.Helper()
	if w.rd == nil {
		w.rd = sse.NewReader(w.head().Body, 1<<20)
	}
	w.wait()
	return w.rd.Next()
}

// message returns the next event that has data.
func (w *wire) message() sse.Event {
	w.t.Helper()
	for {
		ev, err := w.next()
		if err != nil {
			w.t.Fatalf("event: %v", err)
		}
		if len(ev.Data) > 0 {
			return ev
		}
	}
}

// atMost reads n bytes of the answer, or the whole answer if it is shorter, and then cuts the
// connection in the way how.
func (w *wire) atMost(n int, how cut) (r reply) {
	w.wait()
	res, err := http.ReadResponse(bufio.NewReader(io.LimitReader(w.c, int64(n))), nil)
	if err == nil {
		r.status, r.header = res.StatusCode, res.Header
		r.body, err = io.ReadAll(res.Body)
		r.whole = err == nil
	}
	w.cut(how)
	return r
}

// cut ends the connection, or stops to read it.
func (w *wire) cut(how cut) {
	switch how {
	case rst:
		_ = w.c.SetLinger(0)
		fallthrough
	case fin:
		_ = w.c.Close()
	case ghost: // the connection stays open, and is not read
	}
}

type cut int

const (
	fin cut = iota
	rst
	ghost
)

func (c cut) String() string { return [...]string{"fin", "rst", "ghost"}[c] }
