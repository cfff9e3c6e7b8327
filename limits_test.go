package holdfast_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/metrics"
)

// limited is a server with limits. The header X-User names the principal.
type limited struct {
	t       *testing.T
	handler *holdfast.Handler
	url     string
}

func newLimited(t *testing.T, b message.Handler, set func(*holdfast.Options)) *limited {
	t.Helper()
	l := &limited{t: t}
	o := &holdfast.Options{Logger: slog.New(slog.DiscardHandler), UpgradeAfter: time.Minute, Eras: holdfast.ErasBoth,
		Principal: func(r *http.Request) string { return r.Header.Get("X-User") }}
	set(o)
	l.handler = holdfast.NewBackendHandler(message.New(b), o)
	mcptest.ShutDownAtEnd(t, l.handler, 10*time.Second) // calls of a failed test would run for ever
	l.url = mcptest.Serve(t, l.handler)
	return l
}

// post POSTs a message of a user, with more headers: names and values.
func (l *limited) post(user, session, body string, more ...string) (int, http.Header, string) {
	l.t.Helper()
	return l.postFor(l.t.Context(), user, session, body, more...)
}

// postFor is post, until ctx ends.
func (l *limited) postFor(ctx context.Context, user, session, body string, more ...string) (int, http.Header, string) {
	l.t.Helper()
	c := &mcptest.Client{URL: l.url, Session: session, Header: []string{"X-User", user}}
	r, err := c.Exchange(ctx, http.MethodPost, body, more...)
	if r.Status == 0 {
		return 0, nil, err.Error()
	}
	return r.Status, r.Header, r.Body
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`

// begin begins a session.
func (l *limited) begin(user string) string {
	l.t.Helper()
	status, head, text := l.post(user, "", initialize)
	if status != http.StatusOK {
		l.t.Fatalf("initialize: %d %s", status, text)
	}
	return head.Get("Mcp-Session-Id")
}

// refused fails the test unless an answer refuses the request with an id by a limit, for a legacy client.
func refused(t *testing.T, status int, head http.Header, text, id string) {
	t.Helper()
	refusedAs(t, -32000, status, head, text, id)
}

// refusedAs is refused with the code of the error.
func refusedAs(t *testing.T, code, status int, head http.Header, text, id string) {
	t.Helper()
	var answer struct {
		ID    json.RawMessage
		Error struct {
			Code    int
			Message string
			Data    struct{ RetryAfter int }
		}
	}
	after, _ := strconv.Atoi(head.Get("Retry-After"))
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusTooManyRequests || after < 1 ||
		answer.Error.Code != code || answer.Error.Data.RetryAfter != after || string(answer.ID) != id || !strings.Contains(answer.Error.Message, "nothing was begun") {
		t.Errorf("%d, Retry-After %d: %s", status, after, text)
	}
}

// When a client's rate is used up, none of its calls begins. All its other requests go on: those that
// resume, ask, are made again under their key, or end something. Other clients are not affected.
func TestRate(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &exact{}, func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst = 0.01, 2 })
	ann, bob := l.begin("ann"), l.begin("bob")
	const keyed = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{}}}`
	status, _, first := l.post("ann", ann, keyed, "Idempotency-Key", `"once"`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, first)
	}
	if status, _, text := l.post("ann", ann, toolCall(1, "echo")); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	status, head, text := l.post("ann", ann, toolCall(2, "echo"))
	refused(t, status, head, text, "2")
	if status, _, text := l.post("ann", ann, `{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"x:y"}}`); status != http.StatusTooManyRequests {
		t.Errorf("another method: %d %s", status, text)
	}
	status, _, text = l.post("ann", ann, `[`+toolCall(4, "echo")+`,`+toolCall(5, "echo")+`]`)
	if status != http.StatusBadRequest { // that revision has no batches
		t.Errorf("a batch: %d %s", status, text)
	}
	for what, body := range map[string]string{
		"a task's status":    `{"jsonrpc":"2.0","id":9,"method":"tasks/get","params":{"taskId":"x"}}`,
		"a cancellation":     `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
		"a client's answer":  `{"jsonrpc":"2.0","id":1,"result":{}}`,
		"a resume":           `{"jsonrpc":"2.0","id":10,"method":"requests/getStatus","params":{"resumeToken":"x","requestId":1}}`,
		"another initialize": initialize,
	} {
		session := ann
		if strings.HasPrefix(what, "another") {
			session = ""
		}
		if status, _, text := l.post("ann", session, body); status == http.StatusTooManyRequests {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if status, _, again := l.post("ann", ann, keyed, "Idempotency-Key", `"once"`); status != http.StatusOK || !strings.Contains(again, `"id":7`) {
		t.Errorf("again under its key: %d %s", status, again)
	}
	_, id, _ := strings.Cut(first, "id: ")
	id, _, _ = strings.Cut(id, "\n")
	resumed, err := (&mcptest.Client{URL: l.url, Session: ann, Header: []string{"X-User", "ann"}}).Exchange(t.Context(), http.MethodGet, "", "Last-Event-Id", id)
	if resumed.Status != http.StatusOK {
		t.Errorf("resumed: %d, %v", resumed.Status, err)
	}
	if status, _, text := l.post("bob", bob, toolCall(1, "echo")); status != http.StatusOK {
		t.Errorf("another client: %d %s", status, text)
	}
}

// A request that looks for all calls or tasks of a client counts, over each transport, as it is work.
func TestListsCount(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"requests/getStatus/all", "tasks/list"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			l := newLimited(t, &exact{}, func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst, o.TaskAfter = 0.01, 3, time.Hour })
			ann, bob := l.begin("ann"), l.begin("bob")
			list := func(user, session string, id int) (int, http.Header, string) {
				return l.post(user, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{}}`, id, method))
			}
			for id := range 3 {
				if status, _, text := list("ann", ann, id); status != http.StatusOK || strings.Contains(text, "nothing was begun") {
					t.Errorf("within the rate: %d %s", status, text)
				}
			}
			status, head, text := list("ann", ann, 3)
			refused(t, status, head, text, "3")
			if status, _, text := list("bob", bob, 1); status != http.StatusOK {
				t.Errorf("another client: %d %s", status, text)
			}
		})
	}
}

// A subscribed is a server with resources, which counts the requests to subscribe to one.
type subscribed struct{ requests atomic.Int32 }

// Serve implements [message.Handler].
func (s *subscribed) Serve(x *message.Exchange) {
	switch x.Method {
	case "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}`))
	case "resources/subscribe", "resources/unsubscribe":
		s.requests.Add(1)
		x.Result([]byte(`{}`))
	case "tools/list":
		x.Result([]byte(`{"tools":[]}`))
	}
}

// A listen counts as the requests that it makes, and a refused listen makes none.
func TestListenCounts(t *testing.T) {
	t.Parallel()
	s := &subscribed{}
	l := newLimited(t, s, func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst = 1.0/3600, 10 })
	listen := func(id int, filter string) (status int, head http.Header, text string) {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		res, err := mcptest.Send(ctx, http.MethodPost, l.url, mcptest.ModernRequest(id, "subscriptions/listen", "{}", `"notifications":`+filter), "X-User", "ann")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			all, _ := io.ReadAll(res.Body)
			return res.StatusCode, res.Header, string(all)
		}
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if text = lines.Text(); strings.Contains(text, "acknowledged") {
				break
			}
		}
		return res.StatusCode, res.Header, text
	}
	uris := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`"x:%d"`, i)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for id, member := range []string{"resourceSubscriptions", "ResourceSubscriptions"} { // the translation reads this spelling, too
		status, _, text := listen(id, fmt.Sprintf(`{%q:%s}`, member, uris(1000)))
		if status != http.StatusBadRequest || !strings.Contains(text, "counts as 1000 calls") {
			t.Errorf("more than the burst: %d %.300s", status, text)
		}
	}
	if n := s.requests.Load(); n != 0 {
		t.Errorf("what was refused has made %d requests", n)
	}
	if status, _, text := listen(2, `{"resourceSubscriptions":`+uris(6)+`}`); status != http.StatusOK {
		t.Errorf("within the burst: %d %.300s", status, text)
	}
	status, head, text := listen(3, `{"resourceSubscriptions":`+uris(5)+`}`)
	refusedAs(t, -32023, status, head, text, "3")
	if n := s.requests.Load(); n < 6 || n > 12 { // with the requests that end the subscriptions
		t.Errorf("%d requests", n)
	}
	for id := 4; id < 8; id++ {
		if status, _, text := listen(id, `{"toolsListChanged":true}`); status != http.StatusOK {
			t.Errorf("of lists: %d %.300s", status, text)
		}
	}
	status, head, text = listen(8, `{"toolsListChanged":true}`)
	refusedAs(t, -32023, status, head, text, "8")
}

// An address has a rate of its own, for sessions too, whatever clients it has.
func TestAddressRate(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &exact{}, func(o *holdfast.Options) { o.Limits.AddressRate, o.Limits.AddressBurst = 0.01, 3 })
	ann := l.begin("ann")
	l.begin("bob")
	if status, _, text := l.post("ann", ann, toolCall(1, "echo")); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	status, head, text := l.post("ann", ann, toolCall(2, "echo"))
	refused(t, status, head, text, "2")
	status, head, text = l.post("cat", "", initialize)
	refused(t, status, head, text, "0")
	const revision = "2026-07-28"
	modern := func(id int, method, params string) (int, http.Header, string) {
		return l.post("dan", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{}}}}`, id, method, params, revision),
			"Mcp-Protocol-Version", revision, "Mcp-Method", method, "Mcp-Name", "echo")
	}
	status, head, text = modern(5, "tools/call", `"name":"echo","arguments":{},`)
	refusedAs(t, -32023, status, head, text, "5")
}

// A client of the go-sdk gets the refusal, and can call again later.
func TestRateOfSDKClient(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &exact{}, func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst = 2, 2 })
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
	session := mcptest.Must(client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: l.url, DisableStandaloneSSE: true}, nil))(t)
	defer session.Close()
	var began, told atomic.Int32
	call := func() {
		if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"}); err == nil {
			began.Add(1)
		} else if told.Add(1); !strings.Contains(err.Error(), "Too Many Requests") && !strings.Contains(err.Error(), "nothing was begun") {
			t.Error(err)
		}
	}
	var work sync.WaitGroup
	for range 12 { // at once: on a slow machine they would begin one after the other
		work.Go(call)
	}
	work.Wait()
	for end := time.Now().Add(time.Minute); began.Load() < 3 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		call()
	}
	if began.Load() < 3 || told.Load() == 0 {
		t.Errorf("%d calls began, and %d were refused", began.Load(), told.Load())
	}
}

// Holdfast's own client waits, and its caller notices only the delay.
func TestRateOfOwnClient(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &exact{}, func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst = 1, 1 })
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
	session := mcptest.Must(client.Connect(t.Context(), holdfast.NewClientTransport(l.url, nil), nil))(t)
	defer session.Close()
	began := time.Now()
	calls := 2
	if testlong.All() {
		calls = 3
	}
	for range calls {
		mcptest.Must(session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"}))(t)
	}
	if took := time.Since(began); took < time.Duration(calls-1)*time.Second*3/4 {
		t.Errorf("%d calls at 1 a second took %v", calls, took)
	}
}

// A shift is a backend with a tool "held" that runs until the test releases it.
type shift struct {
	exact
	running chan string // the ids of running calls
	release chan struct{}
}

// Serve implements [message.Handler].
func (s *shift) Serve(x *message.Exchange) {
	if x.Method != "tools/call" || !strings.Contains(string(x.Params), `"held"`) {
		s.exact.Serve(x)
		return
	}
	go func() {
		s.running <- string(x.ID)
		<-s.release
		x.Result([]byte(`{"content":[]}`))
	}()
}

// Calls beyond a number wait for others to end, as long as there is room. A client that
// leaves leaves no call behind.
func TestQueue(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.Metrics, o.MaxShare = 1, 2, time.Minute, metrics.New(figures), 1
	})
	ann, bob := l.begin("ann"), l.begin("bob")
	answers := make(chan string, 3)
	call := func(ctx context.Context, user, session string, id int) {
		status, _, text := l.postFor(ctx, user, session, toolCall(id, "held"))
		answers <- fmt.Sprint(status, strings.Contains(text, fmt.Sprintf(`"id":%d`, id)))
	}
	wait := func(n float64) {
		t.Helper()
		mcptest.Eventually(t, fmt.Sprint(n, " wait"), 30*time.Second, func() bool { return waiting(t, figures) == n })
	}
	go call(t.Context(), "ann", ann, 1)
	if id := <-s.running; id != "1" {
		t.Fatalf("%s runs", id)
	}
	ctx, leave := context.WithCancel(t.Context())
	go call(ctx, "ann", ann, 2)
	wait(1)
	go call(t.Context(), "bob", bob, 3)
	wait(2)
	status, head, text := l.post("bob", bob, toolCall(4, "held"))
	refused(t, status, head, text, "4")
	if status, _, text = l.post("bob", bob, toolCall(5, "echo")); status != http.StatusOK {
		t.Errorf("another tool: %d %s", status, text)
	}
	leave()
	<-answers
	wait(1)
	s.release <- struct{}{}
	if id := <-s.running; id != "3" {
		t.Fatalf("%s runs", id)
	}
	wait(0)
	s.release <- struct{}{}
	for range 2 {
		if got := <-answers; got != "200 true" {
			t.Errorf("answered %s", got)
		}
	}
	for _, want := range []string{
		`holdfast_refusals_total{reason="queue_full",status="429"} 1`,
		`holdfast_queue_wait_seconds_count{result="began"} 1`,
		`holdfast_queue_wait_seconds_count{result="refused"} 2`,
	} { // a client that leaves is counted after its call has left the queue
		mcptest.Eventually(t, want+" in the figures", 30*time.Second, func() bool { return strings.Contains(figureText(t, figures), want) })
	}
}

// On a connection that carries many calls, a waiting call does not hold up the others, and can be cancelled.
func TestQueueOfPipe(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait = 1, 2, time.Minute
	})
	in, send := io.Pipe()
	receive, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- l.handler.ServeConn(t.Context(), in, out); out.Close() }()
	lines := bufio.NewScanner(receive)
	say := func(text string) { _, _ = io.WriteString(send, text+"\n") }
	hears := func(parts ...string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), "progress") {
				continue
			}
			for _, part := range parts {
				if !strings.Contains(lines.Text(), part) {
					t.Errorf("%s: want %s", lines.Text(), part)
				}
			}
			return
		}
		t.Errorf("the connection has ended: want %s", parts)
	}
	say(initialize)
	hears(`"id":0`)
	say(toolCall(1, "held"))
	<-s.running
	say(toolCall(2, "held"))
	say(toolCall(3, "held"))
	say(toolCall(4, "held"))
	hears(`"id":4`, `"retryAfter":1`, `"code":-32000`)
	say(`{"jsonrpc":"2.0","id":40,"method":"tools/call","params":{"name":"held","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	hears(`"id":40`, `"retryAfter":1`, `"code":-32023`)
	say(toolCall(5, "echo"))
	hears(`"id":5`, `"result"`)
	say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	say(toolCall(6, "echo")) // its answer shows that the cancellation was taken
	hears(`"id":6`, `"result"`)
	s.release <- struct{}{}
	hears(`"id":1`, `"result"`)
	if id := <-s.running; id != "3" {
		t.Errorf("%s runs", id)
	}
	send.Close() // the connection ends when all calls are answered
	s.release <- struct{}{}
	hears(`"id":3`, `"result"`)
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Over HTTP, a client may cancel a waiting call, and stay connected. The call does not wait any
// more and never begins, and its request has no response, as that of any cancelled call.
func TestQueueCancelled(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.Metrics, o.MaxShare = 1, 3, time.Minute, metrics.New(figures), 1
	})
	ann, bob := l.begin("ann"), l.begin("bob")
	answers := make(chan string, 3)
	call := func(user, session string, id int) {
		status, _, text := l.post(user, session, toolCall(id, "held"))
		answers <- fmt.Sprint(id, status, len(text) > 0)
	}
	go call("ann", ann, 1)
	<-s.running
	go call("ann", ann, 2)
	mcptest.Eventually(t, "one waits", 30*time.Second, func() bool { return waiting(t, figures) == 1 })
	go call("bob", bob, 2)
	mcptest.Eventually(t, "two wait", 30*time.Second, func() bool { return waiting(t, figures) == 2 })
	if status, _, text := l.post("ann", ann, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`); status != http.StatusAccepted {
		t.Errorf("%d %s", status, text)
	}
	if got := <-answers; got != "2 202 false" {
		t.Errorf("cancelled: %s", got)
	}
	mcptest.Eventually(t, "bob's waits", 30*time.Second, func() bool { return waiting(t, figures) == 1 })
	s.release <- struct{}{}
	<-s.running
	s.release <- struct{}{}
	got := []string{<-answers, <-answers}
	slices.Sort(got)
	if want := []string{"1 200 true", "2 200 true"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A client may make a waiting call again under its key: the call runs once. A server cannot tell this
// client from one that alone noticed a break of its connection.
func TestQueueRepeated(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.Metrics, o.MaxShare = 1, 3, time.Minute, metrics.New(figures), 1
	})
	ann := l.begin("ann")
	answers := make(chan string, 4)
	call := func(id int, more ...string) {
		status, _, text := l.post("ann", ann, toolCall(id, "held"), more...)
		answers <- fmt.Sprint(status, strings.Contains(text, fmt.Sprintf(`"id":%d,"result"`, id)))
	}
	go call(1)
	<-s.running
	for n := range 2 {
		go call(2, "Idempotency-Key", `"k"`)
		mcptest.Eventually(t, "it waits", 30*time.Second, func() bool { return waiting(t, figures) == float64(n+1) })
	}
	for want := range 2 {
		s.release <- struct{}{}
		if want == 0 {
			if id := <-s.running; id != "2" {
				t.Errorf("%s runs", id)
			}
		}
	}
	// There is room for one call: the next one would wait for a second run of that call.
	go call(3)
	if id := <-s.running; id != "3" {
		t.Fatalf("%s runs again", id)
	}
	s.release <- struct{}{}
	superseded := 0
	for range 4 {
		switch got := <-answers; got {
		case "200 true":
		case "200 false": // the other request under the key has taken the stream, as a client that comes back does
			superseded++
		default:
			t.Errorf("answered %s", got)
		}
	}
	if superseded > 1 {
		t.Errorf("%d requests got no result", superseded)
	}
}

// A modern client cancels a waiting call by its key.
func TestQueueCancelledByKey(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.Metrics, o.MaxShare = 1, 3, time.Minute, metrics.New(figures), 1
	})
	ann := l.begin("ann")
	first := make(chan int, 1)
	go func() {
		status, _, _ := l.post("ann", ann, toolCall(1, "held"))
		first <- status
	}()
	<-s.running
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	modern := func(body, method string, more ...string) (int, string) {
		status, _, text := l.post("ann", "", body, append(more, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Idempotency-Key", `"k"`)...)
		return status, text
	}
	second := make(chan string, 1)
	go func() {
		_, text := modern(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"held","arguments":{},`+meta+`}}`, "tools/call", "Mcp-Name", "held")
		second <- text
	}()
	mcptest.Eventually(t, "it waits", 30*time.Second, func() bool { return waiting(t, figures) == 1 })
	if status, text := modern(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,`+meta+`}}`, "notifications/cancelled"); status != http.StatusAccepted {
		t.Errorf("%d %s", status, text)
	}
	if text := <-second; !strings.Contains(text, "the request was cancelled") {
		t.Errorf("answered %s", text)
	}
	mcptest.Eventually(t, "nothing waits", 30*time.Second, func() bool { return waiting(t, figures) == 0 })
	s.release <- struct{}{}
	if status := <-first; status != http.StatusOK {
		t.Errorf("%d", status)
	}
}

// A waiting call keeps its session from expiring, and leaves the queue when its client ends the session.
func TestQueueOfSession(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	ttl := time.Second // longer than a machine takes from a session to its call
	if testlong.All() {
		ttl = 3 * time.Second // on a busy machine
	}
	l := newLimited(t, s, func(o *holdfast.Options) {
		o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.Metrics, o.MaxShare, o.SessionTTL = 1, 3, time.Minute, metrics.New(figures), 1, ttl
	})
	answers := make(chan string, 3)
	call := func(user, session string, id int) {
		status, _, _ := l.post(user, session, toolCall(id, "held"))
		answers <- fmt.Sprint(user, status)
	}
	go call("ann", l.begin("ann"), 1)
	<-s.running
	bob := l.begin("bob")
	go call("bob", bob, 2)
	mcptest.Eventually(t, "bob's waits", 30*time.Second, func() bool { return waiting(t, figures) == 1 })
	time.Sleep(ttl * 3 / 2)
	go call("cat", l.begin("cat"), 3)
	mcptest.Eventually(t, "two wait", 30*time.Second, func() bool { return waiting(t, figures) == 2 })
	ended, err := mcptest.Exchange(t.Context(), http.MethodDelete, l.url, "", "Mcp-Session-Id", bob, "X-User", "bob")
	if err != nil || ended.Status != http.StatusNoContent {
		t.Errorf("the session of a call that waits: %d, %v", ended.Status, err)
	}
	if got := <-answers; got != "bob404" {
		t.Errorf("answered %s", got)
	}
	mcptest.Eventually(t, "one waits", 30*time.Second, func() bool { return waiting(t, figures) == 1 })
	s.release <- struct{}{}
	<-s.running
	s.release <- struct{}{}
	got := []string{<-answers, <-answers}
	slices.Sort(got)
	if want := []string{"ann200", "cat200"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A batch does not wait, even if only one of its requests is limited. A batch that is larger than a
// limit gets an error that does not ask to make it again.
func TestQueueOfBatch(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	l := newLimited(t, message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			x.Result([]byte(`{"protocolVersion":"2025-03-26","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`))
			return
		}
		s.Serve(x)
	}), func(o *holdfast.Options) { o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait = 1, 3, time.Minute })
	ann := l.begin("ann")
	first := make(chan int, 1)
	go func() {
		status, _, _ := l.post("ann", ann, toolCall(1, "held"))
		first <- status
	}()
	<-s.running
	if status, _, text := l.post("ann", ann, `[{"jsonrpc":"2.0","id":2,"method":"ping"},`+toolCall(3, "held")+`]`); status != http.StatusTooManyRequests {
		t.Errorf("%d %s", status, text)
	}
	s.release <- struct{}{}
	<-first
	if status, _, text := l.post("ann", ann, `[`+toolCall(4, "held")+`,`+toolCall(5, "held")+`]`); status != http.StatusBadRequest || !strings.Contains(text, "a batch of 2 calls, of which only 1") {
		t.Errorf("%d %s", status, text)
	}
}

// A refused modern call opens no conversation, however its client describes itself.
func TestRateOpensNothing(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	l := newLimited(t, message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			opened.Add(1)
		}
		new(exact).Serve(x)
	}), func(o *holdfast.Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 2 })
	for i := range 6 {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{},"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c%[1]d","version":"1"}}}}`, i)
		status, head, text := l.post("ann", "", body, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo")
		if i >= 2 {
			refusedAs(t, -32023, status, head, text, fmt.Sprint(i))
		} else if status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	if n := opened.Load(); n != 2 {
		t.Errorf("%d conversations were opened for 2 calls", n)
	}
}

// figureText returns all figures as Prometheus reads them.
func figureText(t *testing.T, from *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(from, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// waiting returns the number of waiting calls in the figures.
func waiting(t *testing.T, from *prometheus.Registry) (n float64) {
	t.Helper()
	for line := range strings.Lines(figureText(t, from)) {
		if rest, ok := strings.CutPrefix(line, "holdfast_queue_calls "); ok {
			n, _ = strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return n
}

// Nodes tell each other their counts: the calls that a client has begun, or has in flight, at one node count at all nodes.
func TestLimitsOfNodes(t *testing.T) {
	t.Parallel()
	engine := logtest.New(logtest.Options{})
	s := &shift{running: make(chan string), release: make(chan struct{})}
	var nodes []*limited
	for range 2 {
		store := durable.New(engine.Open(), durable.Options{Logger: slog.New(slog.DiscardHandler)})
		t.Cleanup(func() { _ = store.Close() })
		nodes = append(nodes, newLimited(t, s, func(o *holdfast.Options) {
			o.Store, o.Limits.Calls, o.Limits.Rate, o.Limits.Burst = store, 1, 0.001, 40
		}))
	}
	a, b := nodes[0], nodes[1]
	const keyed = `{"jsonrpc":"2.0","id":"k","method":"tools/call","params":{"name":"echo","arguments":{}}}`
	annA, annB := a.begin("ann"), b.begin("ann")
	if status, _, text := a.post("ann", annA, keyed, "Idempotency-Key", `"once"`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for i := range 39 {
		if status, _, text := a.post("ann", annA, toolCall(i+1, "echo")); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	danA, danB := a.begin("dan"), b.begin("dan")
	held := make(chan int, 1)
	go func() {
		status, _, _ := a.postFor(t.Context(), "dan", danA, toolCall(1, "held"))
		held <- status
	}()
	<-s.running
	id := 0
	mcptest.Eventually(t, "the other node knows of the call", 30*time.Second, func() bool {
		id++
		status, _, text := b.post("dan", danB, toolCall(id, "echo"))
		time.Sleep(100 * time.Millisecond)
		return status == http.StatusTooManyRequests && strings.Contains(text, "in flight")
	})
	status, head, text := b.post("ann", annB, toolCall(1, "echo"))
	refused(t, status, head, text, "1")
	if status, _, text := b.post("ann", annB, keyed, "Idempotency-Key", `"once"`); status != http.StatusOK {
		t.Errorf("a call of another node under its key: %d %s", status, text)
	}
	if status, _, text := b.post("bob", b.begin("bob"), toolCall(1, "echo")); status != http.StatusOK {
		t.Errorf("another client: %d %s", status, text)
	}
	s.release <- struct{}{}
	if status := <-held; status != http.StatusOK {
		t.Errorf("the call that was held: %d", status)
	}
	mcptest.Eventually(t, "the other node knows of its end", 30*time.Second, func() bool {
		id++
		status, _, _ := b.post("dan", danB, toolCall(id, "echo"))
		return status == http.StatusOK
	})
}

// Behind a trusted proxy, clients are told apart.
func TestRateBehindProxy(t *testing.T) {
	t.Parallel()
	l := newLimited(t, &exact{}, func(o *holdfast.Options) {
		o.Limits.AddressRate, o.Limits.AddressBurst = 0.001, 2
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
		status, head, text := l.post("", "", initialize, "X-Forwarded-For", from)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", from, status, text)
		}
		id := head.Get("Mcp-Session-Id")
		if status, _, text := l.post("", id, toolCall(1, "echo"), "X-Forwarded-For", from); status != http.StatusOK {
			t.Errorf("%s: %d %s", from, status, text)
		}
		status, head, text = l.post("", id, toolCall(2, "echo"), "X-Forwarded-For", "198.51.100.7, "+from)
		refused(t, status, head, text, "2")
	}
}

// A modern call waits as others do. A call of a session on another node waits in the queue there. Its client may leave.
func TestQueueElsewhere(t *testing.T) {
	t.Parallel()
	engine := logtest.New(logtest.Options{})
	s := &shift{running: make(chan string), release: make(chan struct{})}
	figures := prometheus.NewRegistry()
	var nodes []*limited
	for i := range 2 {
		store := durable.New(engine.Open(), durable.Options{Logger: slog.New(slog.DiscardHandler)})
		t.Cleanup(func() { _ = store.Close() })
		nodes = append(nodes, newLimited(t, s, func(o *holdfast.Options) {
			o.Store, o.Limits.ToolCalls, o.Limits.Queue, o.Limits.QueueWait, o.MaxShare = store, 1, 5, time.Minute, 1
			if i == 0 {
				o.Metrics = metrics.New(figures)
			}
		}))
	}
	a, b := nodes[0], nodes[1]
	ann := a.begin("ann")
	answers := make(chan string, 5)
	call := func(ctx context.Context, at *limited, id int, more ...string) {
		body := toolCall(id, "held")
		session := ann
		if len(more) > 0 {
			session = ""
			body = strings.Replace(body, `"progressToken":1`, `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`, 1)
		}
		status, _, text := at.postFor(ctx, "ann", session, body, more...)
		answers <- fmt.Sprint(status, " ", id, " ", strings.Contains(text, fmt.Sprintf(`"id":%d,"result"`, id)))
	}
	wait := func(n float64) {
		t.Helper()
		mcptest.Eventually(t, fmt.Sprint(n, " wait"), 30*time.Second, func() bool { return waiting(t, figures) == n })
	}
	modern := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "held"}
	go call(t.Context(), a, 1)
	<-s.running
	ctx, leave := context.WithCancel(t.Context())
	go call(ctx, b, 2) // forwarded
	wait(1)
	go call(t.Context(), b, 3)
	wait(2)
	go call(t.Context(), a, 4, modern...)
	wait(3)
	leave()
	wait(2)
	<-answers
	for _, want := range []string{"200 1 true", "200 3 true", "200 4 true"} {
		s.release <- struct{}{}
		if got := <-answers; got != want {
			t.Errorf("answered %s, want %s", got, want)
		}
		if !strings.Contains(want, " 4") {
			<-s.running
		}
	}
	wait(0)
	select {
	case id := <-s.running:
		t.Errorf("%s runs, whose client has left", id)
	default:
	}
}

// Without sessions a refused call opens no conversation.
func TestRateStateless(t *testing.T) {
	t.Parallel()
	s := &shift{running: make(chan string), release: make(chan struct{})}
	var opened atomic.Int32
	l := newLimited(t, message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			opened.Add(1)
		}
		s.Serve(x)
	}), func(o *holdfast.Options) {
		o.Stateless, o.Limits.Rate, o.Limits.Burst, o.Limits.Calls, o.Limits.Queue = true, 0.001, 4, 1, 3
	})
	for i := range 2 {
		if status, _, text := l.post("ann", "", toolCall(i, "echo")); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	answers := make(chan int, 2)
	for i := range 2 { // one call waits for the other
		go func() {
			status, _, _ := l.postFor(t.Context(), "ann", "", toolCall(i, "held"))
			answers <- status
		}()
	}
	for range 2 {
		<-s.running
		s.release <- struct{}{}
		if status := <-answers; status != http.StatusOK {
			t.Errorf("%d", status)
		}
	}
	status, head, text := l.post("ann", "", toolCall(9, "echo"))
	refused(t, status, head, text, "9")
	if status, _, text := l.post("bob", "", toolCall(1, "echo")); status != http.StatusOK {
		t.Errorf("another client: %d %s", status, text)
	}
	if n := opened.Load(); n != 5 {
		t.Errorf("%d conversations were opened for 5 calls", n)
	}
}
