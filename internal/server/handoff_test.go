package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/feature/handofftext"
	known "holdfast/internal/feature/hosts"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// handOffs returns a config in which calls are handed off soon, except those of the tool steps.
func handOffs() config {
	return handOffsOf(func(tool string) bool { return tool == "steps" })
}

// handOffsOf returns a config in which calls are handed off soon, except those that take long, for which Holdfast waits an hour.
func handOffsOf(long func(tool string) bool) config {
	return config{session: session.Options{
		Keep: 10 * time.Minute,
		Addition: handoff.New(func(_, tool string, _ known.Host) time.Duration {
			if long(tool) {
				return time.Hour
			}
			return 100 * time.Millisecond
		}),
	}}
}

// A host is a client that makes requests, and waits for the answers.
type host interface {
	// ask makes a request, and returns the response and the messages before it.
	ask(method, params string) (jsonrpc.Message, []jsonrpc.Message)
}

// A posting host is a legacy client over HTTP.
type posting struct {
	*peer
	ids  int
	head []string
}

func (p *posting) ask(method, params string) (jsonrpc.Message, []jsonrpc.Message) {
	p.n.t.Helper()
	p.ids++
	return said(p.n.t, p.post(requestOf(p.ids, method, params), p.head...))
}

// until returns the response to a request, and the messages before it.
func until(id int, next func() jsonrpc.Message) (response jsonrpc.Message, before []jsonrpc.Message) {
	for {
		m := next()
		if m.Kind == jsonrpc.Response && string(m.ID) == fmt.Sprint(id) {
			return m, before
		}
		before = append(before, m)
	}
}

func requestOf(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
}

// said returns the response in a reply, and the messages before it.
func said(t testing.TB, r reply) (response jsonrpc.Message, before []jsonrpc.Message) {
	t.Helper()
	responses, others := r.parts()
	if len(responses) == 0 {
		t.Fatalf("no response: %d %q", r.status, r.body)
	}
	for _, text := range others {
		before = append(before, mcptest.Parse(text))
	}
	return mcptest.Parse(responses[0]), before
}

// A modernHost is a client of revision 2026-07-28 without tasks.
type modernHost struct {
	*peer
	capabilities string
}

func (p *modernHost) ask(method, params string) (jsonrpc.Message, []jsonrpc.Message) {
	p.n.t.Helper()
	name := jsonrpc.String(jsonrpc.Field([]byte(params), "name"))
	return said(p.n.t, p.modern(method, name, params, cmp.Or(p.capabilities, "{}")))
}

// A talking host is a client on a connection that goes both ways.
type talking struct {
	*talker
	ids int
}

func (c *talking) ask(method, params string) (jsonrpc.Message, []jsonrpc.Message) {
	c.t.Helper()
	c.ids++
	c.say(requestOf(c.ids, method, params))
	return until(c.ids, c.message)
}

// A pairHost is a client of revision 2024-11-05.
type pairHost struct {
	*pair
	ids int
}

func (c *pairHost) ask(method, params string) (jsonrpc.Message, []jsonrpc.Message) {
	c.p.n.t.Helper()
	c.ids++
	c.send(requestOf(c.ids, method, params))
	return until(c.ids, func() jsonrpc.Message { return mcptest.Parse(string(c.next().Data)) })
}

// hosts begin a session of a client at a node, for each transport.
var hosts = map[string]func(n *node) host{
	"post":   func(n *node) host { return &posting{peer: n.connect("2025-11-25", nil)} },
	"keyed":  func(n *node) host { return &posting{peer: n.connect("2025-06-18", nil)} },
	"modern": func(n *node) host { return &modernHost{peer: &peer{n: n}} },
	"pair": func(n *node) host {
		c := &pairHost{pair: n.pair(nil)}
		c.send(initialize)
		c.next()
		c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		return c
	},
	"websocket": func(n *node) host { return talk(n, openSocket, "") },
	"stdio":     func(n *node) host { return talk(n, openPipes, "") },
	"resumable": func(n *node) host {
		return talk(n, openSocket, `{"resumableRequests":{}}`)
	},
}

func talk(n *node, open dialer, capabilities string) host {
	c := open(n, 0)
	c.begin("2025-11-25", capabilities)
	return &talking{talker: c}
}

// A handedOff is an answer to a host about a call that was handed off.
type handedOff struct {
	handofftext.State
	text  string
	error bool
	raw   jsonrpc.Message
	more  []jsonrpc.Message // messages before the response
}

func tellOf(t testing.TB, m jsonrpc.Message) (is handedOff) {
	t.Helper()
	about := jsonrpc.Field(m.Raw, "result", "_meta", handofftext.Meta)
	if about == nil {
		t.Fatalf("not about a call: %s", m.Raw)
	}
	mcptest.Check(t, json.Unmarshal(about, &is.State))
	var r struct {
		Content []struct{ Text string }
		IsError bool
	}
	_ = json.Unmarshal(jsonrpc.Field(m.Raw, "result"), &r)
	if len(r.Content) > 0 {
		is.text = r.Content[0].Text
	}
	is.error, is.raw = r.IsError, m
	return is
}

func toolCall(name, arguments string) string {
	return fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, arguments)
}

// handOff makes a call that is handed off.
func handOff(t testing.TB, h host, tool, arguments string) handedOff {
	t.Helper()
	m, _ := h.ask("tools/call", toolCall(tool, arguments))
	is := tellOf(t, m)
	if is.Status != handofftext.Working || is.Handle == "" || is.Tool != tool || is.Next == nil || is.Next.Tool != handofftext.ToolWait ||
		is.Next.Arguments["handle"] != is.Handle || is.error || !strings.Contains(is.text, is.Handle) {
		t.Fatalf("handed off: %s", m.Raw)
	}
	if s := jsonrpc.Field(m.Raw, "result", "structuredContent", "handle"); jsonrpc.String(s) != is.Handle {
		t.Errorf("structuredContent of %s", m.Raw)
	}
	return is
}

// wait calls one of Holdfast's tools.
func wait(t testing.TB, h host, tool, handle, more string) handedOff {
	t.Helper()
	m, before := h.ask("tools/call", toolCall(tool, fmt.Sprintf(`{"handle":%q%s}`, handle, more)))
	is := tellOf(t, m)
	is.more = before
	return is
}

// waitFor waits until a call has a status.
func waitFor(t testing.TB, h host, handle, status string) (is handedOff) {
	t.Helper()
	mcptest.Eventually(t, "the call to be "+status, time.Minute, func() bool {
		is = wait(t, h, handofftext.ToolWait, handle, "")
		return is.Status == status || t.Failed()
	})
	return is
}

// A call that takes long is answered with a handle, on every transport, and the handle gives the result.
func TestHandOff(t *testing.T) {
	t.Parallel()
	for name, begin := range hosts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, handOffs())
			h := begin(n)
			if name == "keyed" {
				h.(*posting).head = []string{"Idempotency-Key: \"k1\""}
			}
			m, _ := h.ask("tools/list", "{}")
			if !strings.Contains(string(m.Raw), `"name":"holdfast_wait"`) || !strings.Contains(string(m.Raw), `"name":"holdfast_cancel"`) || !strings.Contains(string(m.Raw), `"name":"echo"`) {
				t.Errorf("tools: %s", m.Raw)
			}
			if p, ok := h.(*posting); ok && name == "keyed" {
				p.head = []string{keyed("k2")}
			}
			is := handOff(t, h, "hold", `{"key":"k"}`)
			if p, ok := h.(*posting); ok && name == "keyed" { // the same request again
				p.ids--
				if again := handOff(t, h, "hold", `{"key":"k"}`); string(again.raw.Raw) != string(is.raw.Raw) {
					t.Errorf("under the same key: %s", again.raw.Raw)
				}
				p.head = nil
			}
			held := n.release(1)[0]
			if now := wait(t, h, handofftext.ToolWait, is.Handle, `,"seconds":0`); now.Status != handofftext.Working || now.error {
				t.Errorf("at once: %s", now.raw.Raw)
			}
			held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1,"message":"half"}`))
			mcptest.Eventually(t, "the progress", time.Minute, func() bool {
				now := wait(t, h, handofftext.ToolWait, is.Handle, `,"seconds":0.01`)
				return now.Message == "half" && strings.Contains(now.text, "half")
			})
			held.Result([]byte(`{"content":[{"type":"text","text":"whole"}],"structuredContent":{"a":1},"isError":true}`))
			for range 2 {
				if end := waitFor(t, h, is.Handle, handofftext.Completed); end.text != "whole" || !end.error || end.Tool != "hold" ||
					string(jsonrpc.Field(end.raw.Raw, "result", "structuredContent")) != `{"a":1}` {
					t.Errorf("at the end: %s", end.raw.Raw)
				}
			}
			if end := wait(t, h, handofftext.ToolCancel, is.Handle, ""); end.Status != handofftext.Completed || end.error || !strings.Contains(end.text, "ended before") {
				t.Errorf("cancelled after its end: %s", end.raw.Raw)
			}
			if n.runs("k") != 1 {
				t.Errorf("%d runs", n.runs("k"))
			}

			other := handOff(t, h, "hold", `{"key":"other"}`)
			if end := wait(t, h, handofftext.ToolCancel, other.Handle, ""); end.Status != handofftext.Cancelled || end.error {
				t.Errorf("cancelled: %s", end.raw.Raw)
			}
			if end := wait(t, h, handofftext.ToolWait, other.Handle, ""); end.Status != handofftext.Cancelled || !end.error {
				t.Errorf("after that: %s", end.raw.Raw)
			}
			fails := handOff(t, h, "hold", `{"key":"fails"}`)
			n.release(2)[1].Error(jsonrpc.Errorf(-32055, "no luck"))
			if end := waitFor(t, h, fails.Handle, handofftext.Failed); !end.error || end.Error.Code != -32055 || !strings.Contains(end.text, "no luck") {
				t.Errorf("failed: %s", end.raw.Raw)
			}
		})
	}
}

// Invalid handles, and those of another principal, are refused with the same text.
func TestHandOffOfAnother(t *testing.T) {
	t.Parallel()
	c := handOffs()
	c.server.Principal = func(r *http.Request) string { return r.Header.Get("Who") }
	n := newNode(t, c)
	me := &posting{peer: n.connect("2025-11-25", http.Header{"Who": {"me"}})}
	you := &posting{peer: n.connect("2025-11-25", http.Header{"Who": {"you"}})}
	is := handOff(t, me, "hold", `{"key":"k"}`)
	id, want := is.Handle, ""
	for what, x := range map[string]struct {
		h      host
		handle string
	}{
		"another principal": {you, id}, "another mark": {me, id[:20] + "AAAA" + id[24:]}, "another call": {me, id + "1"},
		"another name": {me, "AAAAAAAAAAAAAAAA" + id[16:]}, "no name": {me, "made-up"}, "none": {me, ""},
		"another principal's other": {&modernHost{peer: &peer{n: n, header: http.Header{"Who": {"you"}}}}, id},
	} {
		for _, tool := range []string{handofftext.ToolWait, handofftext.ToolCancel} {
			got := wait(t, x.h, tool, x.handle, "")
			if got.Status != handofftext.Unknown || !got.error || got.Handle != "" || got.Tool != "" || want != "" && got.text != want {
				t.Errorf("%s, %s: %s", tool, what, got.raw.Raw)
			}
			want = got.text
		}
	}
	for _, h := range []host{me, &posting{peer: n.connect("2025-06-18", me.header)}, &modernHost{peer: &peer{n: n, header: me.header}}} {
		if got := wait(t, h, handofftext.ToolWait, id, ""); got.Status != handofftext.Working {
			t.Errorf("its own: %s", got.raw.Raw)
		}
	}
}

// A handle of a call that is no longer kept gets the same answer as an invalid handle.
func TestHandOffNotKept(t *testing.T) {
	t.Parallel()
	c := handOffs()
	c.memory.Keep = time.Millisecond
	n := newNode(t, c)
	me := &posting{peer: n.connect("2025-11-25", nil)}
	is := handOff(t, me, "hold", `{"key":"k"}`)
	n.release(1)[0].Result([]byte(`{"content":[]}`))
	got := waitFor(t, me, is.Handle, handofftext.Unknown)
	if want := wait(t, me, handofftext.ToolWait, "made-up", ""); got.Tool != "" || got.text != want.text {
		t.Errorf("%s, want %s", got.raw.Raw, want.raw.Raw)
	}
}

// A cancellation of the request does nothing once its call was handed off, and later messages of
// the call do not reach the request's stream.
func TestHandOffCancelledRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	h := talk(n, openSocket, "").(*talking)
	is := handOff(t, h, "hold", `{"key":"k"}`)
	h.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, h.ids))
	held := n.release(1)[0]
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1,"message":"half"}`))
	held.Result(result("whole"))
	if end := waitFor(t, h, is.Handle, handofftext.Completed); end.text != "whole" || len(end.more) > 0 {
		t.Errorf("at the end: %s after %v", end.raw.Raw, end.more)
	}
}

// If the server has a tool with the name of one of Holdfast's tools, calls of it go to the server, and no call is handed off.
func TestHandOffOwnTool(t *testing.T) {
	t.Parallel()
	c := handOffs()
	c.backend = tooled(`{"tools":[{"name":"holdfast_wait"}]}`, nil)
	n := newNode(t, c)
	h := &posting{peer: n.connect("2025-11-25", nil)}
	if m, _ := h.ask("tools/list", "{}"); strings.Count(string(m.Raw), "holdfast_") != 1 {
		t.Errorf("tools: %s", m.Raw)
	}
	if m, _ := h.ask("tools/call", toolCall("holdfast_wait", `{"handle":"AAAAAAAAAAAAAAAA.BBBBBBBBBBBBBBBB1"}`)); !strings.Contains(string(m.Raw), "the server's") {
		t.Errorf("called: %s", m.Raw)
	}
	other := &posting{peer: n.connect("2025-11-25", nil)} // this session has not listed the tools
	if m, _ := other.ask("tools/call", toolCall("holdfast_wait", `{"handle":"x"}`)); !strings.Contains(string(m.Raw), "the server's") {
		t.Errorf("called first: %s", m.Raw)
	}
	if m, _ := h.ask("tools/call", toolCall("slow", `{}`)); !strings.Contains(string(m.Raw), "the server's") {
		t.Errorf("slow: %s", m.Raw)
	}
}

// A server that hands calls off itself is asked not to do so for a call that may become a task:
// the task would end with a handle.
func TestTaskNotHandedOff(t *testing.T) {
	t.Parallel()
	c := tasksConfig()
	c.session.Polls = true
	ends := make(chan struct{}) // closed once the first call is a task
	end := sync.OnceFunc(func() { close(ends) })
	defer end()
	c.backend = message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch x.Method {
		case "tools/list":
			x.Result([]byte(`{"tools":[{"name":"slow"},{"name":"holdfast_wait"},{"name":"holdfast_cancel"}]}`))
		case "tools/call":
			meta := jsonrpc.Field(x.Params, "_meta", "holdfast/handoff")
			go func() {
				<-ends
				x.Result(result("handoff: " + string(meta) + "."))
			}()
		default:
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"rear","version":"1"}}`))
		}
	}))
	n := newNode(t, c)
	p := &peer{n: n}
	p.modern("tools/list", "", `{}`, aware)
	made := p.task("slow", `{}`)
	end()
	if is := p.until(made.TaskID, "completed"); !strings.Contains(string(is.Result), "handoff: false.") {
		t.Errorf("a task: %s", is.Result)
	}
	p.modern("tools/list", "", `{}`, `{}`)
	if r := p.modern("tools/call", "slow", `{"name":"slow"}`, `{}`); !strings.Contains(string(r.body), "handoff: .") {
		t.Errorf("of a client that knows no tasks: %s", r.body)
	}
	h := &posting{peer: n.connect("2025-11-25", nil)}
	h.ask("tools/list", "{}")
	m, _ := h.ask("tools/call", `{"name":"slow","task":{}}`)
	id := jsonrpc.String(jsonrpc.Field(m.Result, "task", "taskId"))
	if m, _ := h.ask("tasks/result", fmt.Sprintf(`{"taskId":%q}`, id)); !strings.Contains(string(m.Raw), "handoff: false.") {
		t.Errorf("a task of 2025-11-25: %s", m.Raw)
	}
}

// tooled is a server with a list of tools. A tool takes longer than the time to a hand-off: until
// end is closed, or for 400 ms if end is nil.
func tooled(list string, end <-chan struct{}) backend.Backend {
	return message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch x.Method {
		case "initialize":
			v := jsonrpc.Field(x.Params, "protocolVersion")
			x.Result(fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":{"tools":{}},"serverInfo":{"name":"tooled","version":"1"}}`, v))
		case "tools/list":
			x.Result([]byte(list))
		case "tools/call":
			if jsonrpc.String(jsonrpc.Field(x.Params, "name")) == "holdfast_wait" {
				x.Result(result("the server's"))
				return
			}
			if end == nil {
				time.AfterFunc(400*time.Millisecond, func() { x.Result(result("the server's")) })
				return
			}
			go func() {
				<-end
				x.Result(result("the server's"))
			}()
		}
	}))
}

// A question of the backend in a call that was handed off reaches the client: with a waiting
// holdfast_wait, else on the standalone stream if there is one, else with the next holdfast_wait.
func TestHandOffAsks(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	t.Run("post", func(t *testing.T) { // without a standalone stream
		h := &posting{peer: n.connect("2025-11-25", nil)}
		is := handOff(t, h, "hold", `{}`)
		n.ask(n.release(1)[0], "?")
		asked := h.asked(t, is.Handle)
		if got := wait(t, h, handofftext.ToolWait, is.Handle, ""); got.Status != handofftext.InputRequired || len(got.more) > 0 {
			t.Errorf("asks: %s after %v", got.raw.Raw, got.more)
		}
		other := &posting{peer: n.connect("2025-11-25", nil)}
		if got := wait(t, other, handofftext.ToolWait, is.Handle, ""); got.Status != handofftext.InputRequired || len(got.more) > 0 {
			t.Errorf("in another session: %s after %v", got.raw.Raw, got.more)
		}
		if r := h.post(asked.answer()); r.status != http.StatusAccepted {
			t.Errorf("answered: %d %s", r.status, r.body)
		}
		if end := waitFor(t, other, is.Handle, handofftext.Completed); !strings.Contains(end.text, "accept") {
			t.Errorf("at the end: %s", end.raw.Raw)
		}
	})
	t.Run("websocket", func(t *testing.T) { // reads the standalone stream
		h := talk(n, openSocket, "").(*talking)
		is := handOff(t, h, "hold", `{}`)
		n.ask(n.release(1)[0], "?")
		asked := h.message()
		if asked.Method != "elicitation/create" {
			t.Fatalf("got %s", asked.Raw)
		}
		h.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, asked.ID))
		if end := waitFor(t, h, is.Handle, handofftext.Completed); !strings.Contains(end.text, "accept") || len(end.more) > 0 {
			t.Errorf("at the end: %s", end.raw.Raw)
		}
	})
	t.Run("modern", func(t *testing.T) {
		h := &modernHost{peer: &peer{n: n}, capabilities: `{"elicitation":{}}`}
		is := handOff(t, h, "hold", `{}`)
		n.ask(n.release(1)[0], "?")
		m, _ := h.ask("tools/call", h.answering(is.Handle, h.asked(t, is.Handle)))
		if tellOf(t, m).Handle != is.Handle {
			t.Errorf("answered: %s", m.Raw)
		}
		if end := waitFor(t, h, is.Handle, handofftext.Completed); !strings.Contains(end.text, "accept") {
			t.Errorf("at the end: %s", end.raw.Raw)
		}
	})
}

// A client that cancels a holdfast_wait after it got a question gets the same question from the next one.
func TestHandOffAskedAgain(t *testing.T) {
	t.Parallel()
	var waits atomic.Bool // so that holdfast_wait waits for long
	n := newNode(t, handOffsOf(func(string) bool { return waits.Load() }))
	h := &posting{peer: n.connect("2025-11-25", nil)}
	is := handOff(t, h, "hold", `{}`)
	waits.Store(true)
	n.ask(n.release(1)[0], "?")
	var ids []string
	for range 3 { // the client cancels each
		h.ids++
		w := h.open("POST", "/mcp", requestOf(h.ids, "tools/call", toolCall(handofftext.ToolWait, fmt.Sprintf(`{"handle":%q}`, is.Handle))))
		m := mcptest.Parse(string(w.message().Data))
		if m.Method != "elicitation/create" {
			t.Fatalf("got %s", m.Raw)
		}
		ids = append(ids, string(m.ID))
		h.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, h.ids))
		w.rest()
	}
	if ids[1] != ids[0] || ids[2] != ids[0] {
		t.Errorf("asked as %v", ids)
	}
	if r := h.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, ids[0])); r.status != http.StatusAccepted {
		t.Errorf("answered: %d %s", r.status, r.body)
	}
	if end := waitFor(t, h, is.Handle, handofftext.Completed); !strings.Contains(end.text, "accept") || len(end.more) > 0 {
		t.Errorf("at the end: %s after %v", end.raw.Raw, end.more)
	}
}

// A question that the client got before its call was handed off can still be answered.
func TestHandOffAsked(t *testing.T) {
	t.Parallel()
	for name, begin := range hosts {
		if name == "modern" { // a modern call is not handed off while it waits for an answer
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, handOffs())
			h := begin(n)
			m, before := h.ask("tools/call", toolCall("ask", `{}`))
			is := tellOf(t, m)
			var asked jsonrpc.Message
			for _, b := range before {
				if b.Method == "elicitation/create" {
					asked = b
				}
			}
			if asked.ID == nil {
				t.Fatalf("not asked before %s: %v", m.Raw, before)
			}
			answer := question{asked}.answer()
			switch h := h.(type) {
			case *posting:
				h.post(answer)
			case *talking:
				h.say(answer)
			case *pairHost:
				h.send(answer)
			}
			if end := waitFor(t, h, is.Handle, handofftext.Completed); !strings.Contains(end.text, "accept") {
				t.Errorf("at the end: %s", end.raw.Raw)
			}
		})
	}
}

// A client that sends "holdfast/handoff": false gets no handle, however long the call takes.
func TestHandOffUnwanted(t *testing.T) {
	t.Parallel()
	for _, era := range []string{"post", "pair", "websocket"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, handOffs())
			patient, other := hosts[era](n), hosts[era](n)
			answer := make(chan jsonrpc.Message, 1)
			go func() {
				m, _ := patient.ask("tools/call", `{"name":"hold","arguments":{},"_meta":{"holdfast/handoff":false}}`)
				answer <- m
			}()
			held := n.release(1)
			handOff(t, other, "hold", `{}`) // a later call
			held[0].Result(result("the end"))
			if m := <-answer; !strings.Contains(string(m.Raw), "the end") {
				t.Errorf("the call ended with %s", m.Raw)
			}
			n.release(1)[0].Result(result("the other's end"))
		})
	}
}

// The state of a call from a batch has that call's last progress, and not another's.
func TestHandOffBatchProgress(t *testing.T) {
	t.Parallel()
	c := handOffs()
	c.session.Addition = handoff.New(func(string, string, known.Host) time.Duration { return time.Second })
	n := newNode(t, c)
	h := &posting{peer: n.connect("2025-03-26", nil), ids: 10}
	w := h.open("POST", "/mcp", `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{},"_meta":{"progressToken":"p"}}},
		{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"hold","arguments":{}}}]`)
	held := n.release(2)
	held[0].Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1,"message":"half"}`))
	for range 3 {
		m := mcptest.Parse(string(w.message().Data))
		if m.Kind != jsonrpc.Response {
			continue
		}
		is, want := tellOf(t, m), map[string]string{"1": "half"}[string(m.ID)]
		if got := wait(t, h, handofftext.ToolWait, is.Handle, `,"seconds":0`); got.Message != want {
			t.Errorf("the last progress of %s is %q, and not %q", m.ID, got.Message, want)
		}
	}
	for _, x := range held {
		x.Result(result("the end"))
	}
}

// A batch is answered when each of its requests has ended or was handed off.
func TestHandOffBatch(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	h := &posting{peer: n.connect("2025-03-26", nil)}
	r := h.post("[" + callAs("1", "hold", `{"key":"a"}`) + "," + callAs("2", "echo", `{"text":"quick"}`) + "," + callAs("3", "hold", `{"key":"b"}`) + "]")
	var handles []string
	for _, ev := range r.events() {
		if len(ev.Data) == 0 {
			continue
		}
		m := mcptest.Parse(string(ev.Data))
		switch string(m.ID) {
		case "1", "3":
			handles = append(handles, tellOf(t, m).Handle)
		case "2":
			if !strings.Contains(string(m.Raw), "quick") {
				t.Errorf("got %s", m.Raw)
			}
		}
	}
	if len(handles) != 2 {
		t.Fatalf("%d handed off: %s", len(handles), r.body)
	}
	for _, held := range n.release(2) {
		held.Result(result(fmt.Sprint("end ", jsonrpc.String(jsonrpc.Field(held.Params, "arguments", "key")))))
	}
	a, b := waitFor(t, h, handles[0], handofftext.Completed), waitFor(t, h, handles[1], handofftext.Completed)
	if a.text+b.text != "end aend b" && a.text+b.text != "end bend a" {
		t.Errorf("%q and %q", a.text, b.text)
	}
}

// The hand-off of a tool with an outputSchema, or of one that the client has not listed, is an error without
// structuredContent, so that hosts which check results accept it.
func TestHandOffShaped(t *testing.T) {
	t.Parallel()
	c := handOffs()
	ends := make(chan struct{})
	end := sync.OnceFunc(func() { close(ends) })
	defer end()
	c.backend = tooled(`{"tools":[{"name":"slow","outputSchema":{"type":"object"}}]}`, ends)
	n := newNode(t, c)
	h := &posting{peer: n.connect("2025-11-25", nil)}
	handles := map[string]string{}
	for _, when := range []string{"before it is listed", "listed"} {
		m, _ := h.ask("tools/call", toolCall("slow", `{}`))
		is := tellOf(t, m)
		if jsonrpc.Field(m.Raw, "result", "structuredContent") != nil || !is.error || !strings.Contains(is.text, "not a failure") {
			t.Errorf("%s: %s", when, m.Raw)
		}
		handles[when] = is.Handle
		h.ask("tools/list", "{}")
	}
	end()
	for when, handle := range handles {
		if end := waitFor(t, h, handle, handofftext.Completed); end.text != "the server's" || end.error {
			t.Errorf("%s: at the end: %s", when, end.raw.Raw)
		}
	}
}

// Holdfast's tools are on the last page of the list alone, and only clients without tasks get them.
func TestHandOffList(t *testing.T) {
	t.Parallel()
	c := handOffs()
	c.session.Polls, c.tasks = true, 20*time.Millisecond
	list := `{"tools":[{"name":"slow"}],"nextCursor":"more"}`
	c.backend = tooled(list, nil)
	n := newNode(t, c)
	h := &posting{peer: n.connect("2025-11-25", nil)}
	if m, _ := h.ask("tools/list", "{}"); strings.Contains(string(m.Raw), "holdfast_") {
		t.Errorf("first page: %s", m.Raw)
	}
	end := make(chan struct{})
	defer close(end)
	c.backend = tooled(`{"tools":[]}`, end)
	n = newNode(t, c)
	for _, x := range []struct {
		h    host
		want bool
	}{{&posting{peer: n.connect("2025-11-25", nil)}, true}, {&modernHost{peer: &peer{n: n}}, true}, {&modernHost{peer: &peer{n: n}, capabilities: aware}, false}} {
		m, _ := x.h.ask("tools/list", "{}")
		var got struct {
			Result struct {
				Tools []struct {
					Name        string
					Annotations map[string]bool
				}
			}
		}
		if err := json.Unmarshal(m.Raw, &got); err != nil || (len(got.Result.Tools) == 2) != x.want {
			t.Errorf("tools: %s (%v)", m.Raw, err)
		}
	}
	tasks := &modernHost{peer: &peer{n: n}, capabilities: aware}
	if m, _ := tasks.ask("tools/call", toolCall("slow", "{}")); !strings.Contains(string(m.Raw), `"taskId"`) {
		t.Errorf("no task: %s", m.Raw)
	}
}

// A call that was handed off goes on after its session was ended.
func TestHandOffAfterSession(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	h := &posting{peer: n.connect("2025-11-25", nil)}
	is := handOff(t, h, "hold", `{}`)
	w := h.open("POST", "/mcp", requestOf(90, "tools/call", toolCall("steps", `{"key":"k","n":1000000,"pause":50}`)))
	w.message()
	if r := h.open("DELETE", "/mcp", "").all(); r.status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", r.status, r.body)
	}
	if r := h.post(call("echo", `{}`)); r.status != http.StatusNotFound {
		t.Errorf("POST after DELETE: %d %s", r.status, r.body)
	}
	if r := w.all(); !strings.Contains(string(r.body), "the session ended") {
		t.Errorf("its other call: %s", r.body)
	}
	other := &posting{peer: n.connect("2025-11-25", nil)}
	if now := wait(t, other, handofftext.ToolWait, is.Handle, ""); now.Status != handofftext.Working {
		t.Errorf("after DELETE: %s", now.raw.Raw)
	}
	n.release(1)[0].Result(result("whole"))
	if end := waitFor(t, other, is.Handle, handofftext.Completed); end.text != "whole" {
		t.Errorf("at the end: %s", end.raw.Raw)
	}
}

// A question of a server that does not name its call, such as a server over stdio, belongs to the call
// that was handed off, and not to the holdfast_wait beside it, which the server does not know.
func TestHandOffAskedBesideWait(t *testing.T) {
	t.Parallel()
	var long atomic.Bool
	n := newNode(t, handOffsOf(func(string) bool { return long.Load() }))
	h := &posting{peer: n.connect("2025-11-25", nil)}
	is := handOff(t, h, "hold", `{}`)
	long.Store(true) // else holdfast_wait would end before the test has seen it wait
	held := n.release(1)[0]
	listens := h.open("GET", "/mcp", "")
	listens.head()
	waits := h.open("POST", "/mcp", requestOf(90, "tools/call", toolCall(handofftext.ToolWait, fmt.Sprintf(`{"handle":%q,"seconds":50}`, is.Handle))))
	mcptest.Eventually(t, "it waits", time.Minute, func() bool { return n.sessions.Calls() == 2 })
	held.Sink.Emit(nil, mcptest.Parse(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`))
	other := &posting{peer: n.connect("2025-11-25", nil)}
	mcptest.Eventually(t, "the call to be known to ask", time.Minute, func() bool {
		return wait(t, other, handofftext.ToolWait, is.Handle, `,"seconds":0`).Status == handofftext.InputRequired
	})
	waits.c.Close()
	listens.c.Close()
	held.Result(result("the end"))
}

// When a session with a call that was handed off ends, the server gets an error for its open question, and a
// cancellation of the session's other call.
func TestHandOffTellsOfEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	h := &posting{peer: n.connect("2025-11-25", nil)}
	m, _ := h.ask("tools/call", toolCall("ask", `{}`))
	is := tellOf(t, m)
	w := h.open("POST", "/mcp", requestOf(90, "tools/call", `{"name":"hold","arguments":{},"_meta":{"holdfast/handoff":false}}`))
	w.head()
	held := n.release(2)
	if r := h.open("DELETE", "/mcp", "").all(); r.status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", r.status, r.body)
	}
	mcptest.Eventually(t, "the server to be told", time.Minute, func() bool {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		return n.script.refused == 1 && slices.Equal(n.script.cancelled, []string{"90"})
	})
	other := &posting{peer: n.connect("2025-11-25", nil)}
	if now := wait(t, other, handofftext.ToolWait, is.Handle, ""); now.Status != handofftext.Working {
		t.Errorf("after DELETE: %s", now.raw.Raw)
	}
	for _, x := range held {
		x.Result(result("without an answer"))
	}
	if end := waitFor(t, other, is.Handle, handofftext.Completed); end.text != "without an answer" {
		t.Errorf("at the end: %s", end.raw.Raw)
	}
}

// The webhook of a request that was handed off gets one message, at the call's end, and none for
// the handle.
func TestHandOffWebhook(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, handOffs())
	h := &posting{peer: n.connect("2025-11-25", nil)}
	first := tellOf(t, mcptest.Parse(h.post(k.call(`"a"`, "hold", `{"key":"a"}`)).response()))
	second := tellOf(t, mcptest.Parse(h.post(k.call(`"b"`, "hold", `{"key":"b"}`)).response()))
	if first.Status != handofftext.Working || second.Status != handofftext.Working {
		t.Fatalf("%s and %s", first.raw.Raw, second.raw.Raw)
	}
	held := n.release(2)
	held[0].Result(result("whole"))
	k.want(`"a" completed`) // no message came for the handle before
	if r := h.open("DELETE", "/mcp", "").all(); r.status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", r.status, r.body)
	}
	held[1].Result(result("whole"))
	k.want(`"b" completed`)
	other := &posting{peer: n.connect("2025-11-25", nil)}
	for _, is := range []handedOff{first, second} {
		if end := waitFor(t, other, is.Handle, handofftext.Completed); end.text != "whole" {
			t.Errorf("at the end: %s", end.raw.Raw)
		}
	}
	select {
	case got := <-k.got:
		t.Errorf("got the webhook %q too", got)
	default:
	}
}

// If a call that was handed off has ended, and its node is lost before the webhook's message was kept, the next node sends the message
// under the same key.
func TestHandOffWebhookLost(t *testing.T) {
	testlong.Only(t, "the next node waits whether the client comes back")
	t.Parallel()
	c := handOffs()
	var lost atomic.Bool
	keys := make(chan string, 10)
	c.session.OnEnded = func(e webhook.Ended) bool {
		keys <- e.Key
		return lost.Load()
	}
	f := newFarm(t, 2, c)
	h := &posting{peer: f.nodes[0].connect("2025-11-25", nil)}
	is := tellOf(t, mcptest.Parse(h.post((&hooks{url: "https://h"}).call(`"a"`, "hold", `{"key":"a"}`)).response()))
	if is.Status != handofftext.Working {
		t.Fatalf("%s", is.raw.Raw)
	}
	f.nodes[0].release(1)[0].Result(result("whole"))
	first := <-keys
	lost.Store(true)
	f.nodes[0].kill()
	select {
	case again := <-keys:
		if again != first {
			t.Errorf("told under the key %q, and then %q", first, again)
		}
	case <-time.After(time.Minute):
		t.Error("the next node has not told it")
	}
}

// The answer to a cancellation comes only once the store has the call's end, also while another append is under way.
func TestHandOffCancelStored(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, handOffs())
	n := f.nodes[0]
	h := &posting{peer: n.connect("2025-11-25", nil)}
	cancelled, talks := handOff(t, h, "hold", `{"key":"cancelled"}`), handOff(t, h, "hold", `{"key":"talks"}`)
	held := n.release(2)
	n.handle.Cut(true)
	talking := make(chan struct{})
	go func() {
		defer close(talking)
		progress(held[1], 7, 1) // the append lasts until the store is back
	}()
	time.Sleep(50 * time.Millisecond) // the append begins: if it has not, the end of the other call waits for its own append
	told := make(chan handedOff, 1)
	go func() {
		told <- wait(t, &posting{peer: h.peer, ids: 100}, handofftext.ToolCancel, cancelled.Handle, "")
	}()
	select {
	case end := <-told:
		t.Errorf("told before the store has it: %s", end.raw.Raw)
	case <-time.After(300 * time.Millisecond):
		n.handle.Cut(false)
		if end := <-told; end.Status != handofftext.Cancelled {
			t.Errorf("cancelled: %s", end.raw.Raw)
		}
	}
	n.handle.Cut(false)
	<-talking
	held[1].Result(result("done"))
	waitFor(t, h, talks.Handle, handofftext.Completed)
}

// A handle is good at any node, also after the call's own node is lost.
func TestHandOffOnAnyNode(t *testing.T) {
	t.Parallel()
	for name, begin := range hosts {
		if name == "stdio" || name != "post" && name != "modern" && !testlong.Wanted() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 3, handOffs())
			h := begin(f.nodes[0].node)
			safe, unsafe := handOff(t, h, "safe_hold", `{"key":"safe"}`), handOff(t, h, "hold", `{"key":"unsafe"}`)
			ended := handOff(t, h, "hold", `{"key":"ended"}`)
			held := f.nodes[0].release(3)
			held[2].Result(result("ended"))
			legacy, modern := &posting{peer: f.nodes[1].connect("2025-11-25", nil)}, &modernHost{peer: &peer{n: f.nodes[2].node}}
			for _, at := range []host{legacy, modern} {
				if end := waitFor(t, at, ended.Handle, handofftext.Completed); end.text != "ended" {
					t.Errorf("at another node: %s", end.raw.Raw)
				}
				if now := wait(t, at, handofftext.ToolWait, safe.Handle, `,"seconds":0`); now.Status != handofftext.Working || now.Tool != "safe_hold" {
					t.Errorf("at another node: %s", now.raw.Raw)
				}
			}
			cancelled := handOff(t, h, "hold", `{"key":"cancelled"}`)
			if end := wait(t, legacy, handofftext.ToolCancel, cancelled.Handle, ""); end.Status != handofftext.Cancelled {
				t.Errorf("cancelled at another node: %s", end.raw.Raw)
			}
			f.nodes[0].kill()
			for _, at := range []host{modern, legacy} {
				if end := waitFor(t, at, ended.Handle, handofftext.Completed); end.text != "ended" {
					t.Errorf("that had ended: %s", end.raw.Raw)
				}
				if end := waitFor(t, at, unsafe.Handle, handofftext.Failed); end.Error.Code != codeUnknown || !strings.Contains(end.text, "unknown") || end.Tool != "hold" {
					t.Errorf("that may have run: %s", end.raw.Raw)
				}
				if end := waitFor(t, at, cancelled.Handle, handofftext.Cancelled); !end.error {
					t.Errorf("that was cancelled: %s", end.raw.Raw)
				}
			}
			var again *farmNode
			mcptest.Eventually(t, "the call to be made again", time.Minute, func() bool {
				for _, n := range f.nodes[1:] {
					if n.runs("safe") > 0 {
						again = n
					}
				}
				return again != nil
			})
			again.release(1)[0].Result(result("again"))
			if end := waitFor(t, legacy, safe.Handle, handofftext.Completed); end.text != "again" {
				t.Errorf("that is safe: %s", end.raw.Raw)
			}
			for _, id := range []string{"unsafe", "ended", "cancelled"} {
				if n := f.runs(id); n != 1 {
					t.Errorf("%s ran %d times", id, n)
				}
			}
		})
	}
}
