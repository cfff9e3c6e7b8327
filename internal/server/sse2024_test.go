package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// pair is a client of revision 2024-11-05, with a stream for all messages from the server, and a
// URL to which it posts.
type pair struct {
	p        *peer // has no session id: it is in the URL
	w        *wire // the stream
	endpoint string
	last     string // the last event id
}

// pair begins a session.
func (n *node) pair(header http.Header) *pair {
	n.t.Helper()
	c := &pair{p: &peer{n: n, version: "2024-11-05", header: header}}
	c.open()
	return c
}

// open opens the stream, or resumes it by its last event id alone. The stream begins with the
// endpoint event.
func (c *pair) open() {
	t := c.p.n.t
	t.Helper()
	var extra []string
	if c.last != "" {
		extra = []string{"Last-Event-ID: " + c.last}
	}
	c.w = c.p.open("GET", "/sse", "", extra...)
	if s := c.w.head().StatusCode; s != 200 || c.w.head().Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("GET /sse: %d", s)
	}
	ev, err := c.w.next()
	if err != nil || ev.Name != "endpoint" || ev.ID == "" || !strings.HasPrefix(string(ev.Data), "messages?sessionId=") {
		t.Fatalf("the stream begins with %+v (%v)", ev, err)
	}
	if c.endpoint != "" && c.endpoint != "/"+string(ev.Data) {
		t.Fatalf("the endpoint was %s, is %s", c.endpoint, ev.Data)
	}
	c.endpoint, c.last = "/"+string(ev.Data), ev.ID
}

// send posts messages.
func (c *pair) send(body string) {
	c.p.n.t.Helper()
	if r := c.p.open("POST", c.endpoint, body).all(); r.status != 202 || r.header.Get("Mcp-Session-Id") != "" {
		c.p.n.t.Fatalf("POST of %s: %d %s", body, r.status, r.body)
	}
}

// next returns the next message of the stream.
func (c *pair) next() sse.Event {
	c.p.n.t.Helper()
	ev := c.w.message()
	if ev.ID == "" || ev.ID == c.last {
		c.p.n.t.Errorf("the event after %q has the id %q", c.last, ev.ID)
	}
	c.last = ev.ID
	return ev
}

// wants checks that the next message contains a text.
func (c *pair) wants(text string) {
	c.p.n.t.Helper()
	if ev := c.next(); !strings.Contains(string(ev.Data), text) {
		c.p.n.t.Errorf("got %s, want %s", ev.Data, text)
	}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`

func (c *pair) initialize() {
	c.p.n.t.Helper()
	c.send(initialize)
	c.wants(`"protocolVersion":"2024-11-05"`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// TestPair is a conversation over the pair of endpoints: all messages of the server come on the
// stream, in order.
func TestPair(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{KeepAlive: 5 * time.Millisecond}})
	c := n.pair(nil)
	c.initialize()
	for i := range 50 {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
	}
	for i := range 50 {
		c.wants(fmt.Sprintf(`"id":%d,`, i))
	}
	c.send(callAs("1", "steps", `{"n":3}`))
	for i := 1; i <= 3; i++ {
		c.wants(fmt.Sprintf(`"progress":%d,`, i))
	}
	c.wants("done")

	// The requests of a batch are answered one by one.
	c.send(`[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":"a","method":"ping"},` + callAs(`"b"`, "echo", `{"text":"B"}`) + `]`)
	c.wants(`"id":"a"`)
	c.wants(`"text":"B"`)
	c.send(`[{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"only"}}]`)
	c.wants("only")

	// The server sends a request in the middle of a call.
	c.send(callAs("2", "ask", `{}`))
	asked, err := jsonrpc.Parse(c.next().Data)
	if err != nil || asked.Method != "elicitation/create" {
		t.Fatal(asked, err)
	}
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, asked.ID))
	c.wants(`\"action\":\"accept\"`)

	// A cancelled call gets no answer.
	c.send(callAs("3", "hold", `{}`))
	held := n.release(1)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	held[0].Result(result("too late"))
	c.send(callAs("3", "echo", `{"text":"the id is free"}`))
	c.wants("the id is free")

	// A silent stream gets comments, which are no messages.
	quiet := make([]byte, 60)
	if _, err := io.ReadFull(c.w.res.Body, quiet); err != nil || strings.Count(string(quiet), ": keep-alive") < 3 {
		t.Errorf("got %q, %v", quiet, err)
	}
}

// TestPairCut cuts the stream after each number of bytes after its endpoint event (each cut with
// a stride of 3, or 21 without -long). The client resumes it by the last event id, and each
// message comes once and in order. (Before that event the client has no session.)
func TestPairCut(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	stride := 3 // each way to cut begins at another byte
	if !testlong.Wanted() {
		stride = 21
	}
	for i, how := range []cut{fin, rst, ghost} {
		var end atomic.Bool
		for at := i; !end.Load() && at < 4000; at += stride {
			wg.Add(1)
			slots <- struct{}{}
			go func() {
				defer func() { <-slots; wg.Done() }()
				pause := at / stride % 2
				all, err := n.cutPair(fmt.Sprintf("pair%d", at), at, how, pause)
				if err != nil {
					t.Errorf("%v after %d bytes, pause %d: %v", how, at, pause, err)
				}
				if all && pause == 1 { // with a pause the stream is longer, as it is written in more pieces
					end.Store(true)
				}
			}()
		}
		wg.Wait()
		if !end.Load() {
			t.Errorf("%v: the cuts did not reach the end", how)
		}
	}
}

// cutPair has a conversation with a stream that is cut after at bytes, and resumed. It reports
// whether all messages had arrived before.
func (n *node) cutPair(key string, at int, how cut, pause int) (all bool, err error) {
	p := &peer{n: n}
	w := p.open("GET", "/sse", "")
	_ = w.c.SetReadDeadline(time.Now().Add(time.Minute))
	var raw bytes.Buffer
	c := &pair{p: p}
	read := func(most int, until string) {
		buf := make([]byte, 4096)
		for start := raw.Len(); most > 0 && !bytes.Contains(raw.Bytes()[start:], []byte(until)); {
			got, e := w.c.Read(buf[:min(most, len(buf))])
			raw.Write(buf[:got])
			if err = e; err != nil {
				return
			}
			most -= got
		}
	}
	read(4096, "\n\n\r\n") // the chunk with the endpoint event
	events := func() []sse.Event {
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw.Bytes())), nil)
		if err != nil {
			return nil
		}
		body, _ := io.ReadAll(res.Body) // an error means that the body was cut
		res.Body.Close()
		return reply{body: body}.events()
	}
	first := events()
	if err != nil || len(first) != 1 {
		return false, fmt.Errorf("the stream begins with %q (%w)", raw.Bytes(), err)
	}
	c.endpoint, c.last = "/"+string(first[0].Data), first[0].ID
	c.send(initialize)
	c.send(callAs(`"c"`, "steps", fmt.Sprintf(`{"key":%q,"n":2,"pause":%d}`, key, pause)))
	read(at, `done"}]}}`+"\n\n")
	if err != nil {
		return false, err
	}
	w.cut(how)
	var got []string
	for _, ev := range events()[1:] {
		got = append(got, string(ev.Data))
		c.last = ev.ID
	}
	all = len(got) == 4
	c.open()
	c.send(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	for i := len(got); i < 5; i++ {
		got = append(got, string(c.next().Data))
	}
	c.w.c.Close()
	pinged := false
	for i, want := range []string{`"id":0,"result"`, `"progress":1,`, `"progress":2,`, "done", `"id":"p"`} {
		if pause > 0 && !pinged && strings.Contains(got[i], `"id":"p"`) { // the ping may overtake a slow call
			pinged = true
			got = append(got[:i:i], append(got[i+1:], got[i])...)
		}
		if !strings.Contains(got[i], want) {
			return all, fmt.Errorf("message %d is %s, want %s", i, got[i], want)
		}
	}
	if runs := n.runs(key); runs != 1 {
		return all, fmt.Errorf("the tool ran %d times", runs)
	}
	return all, nil
}

// TestPairSameIDs is failure 9: two clients use the same request ids, and each gets its own messages.
func TestPairSameIDs(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	a, b := n.pair(nil), n.pair(nil)
	if a.endpoint == b.endpoint {
		t.Fatal("two clients have one endpoint")
	}
	a.initialize()
	b.initialize()
	a.send(callAs("0", "hold", `{}`))
	held := n.release(1)
	b.send(callAs("0", "hold", `{}`))
	held = append(held, n.release(1)...)
	progress(held[1], 2, 1)
	progress(held[0], 1, 1)
	held[1].Result(result("for b"))
	held[0].Result(result("for a"))
	b.wants(`"progress":2`)
	b.wants("for b")
	a.wants(`"progress":1`)
	a.wants("for a")
	for _, c := range []*pair{a, b} { // no other message came
		c.send(`{"jsonrpc":"2.0","id":"end","method":"ping"}`)
		c.wants(`"id":"end"`)
	}
}

// TestPairTakeover is a second connection to the same stream: it supersedes the first.
func TestPairTakeover(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	c := n.pair(nil)
	c.initialize()
	old := c.w
	c.open()
	if _, err := old.next(); err != io.EOF { //nolint:errorlint // the reader's own
		t.Errorf("the old connection: %v", err)
	}
	c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	c.wants(`"id":1`)
}

// TestPairRevision is a client that falls back to the pair of endpoints, with a newer revision:
// its stream stays one of 2024-11-05, also when it is resumed.
func TestPairRevision(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{InputGrace: time.Millisecond}})
	c := n.pair(nil)
	c.send(strings.Replace(initialize, "2024-11-05", "2025-11-25", 1))
	c.wants(`"protocolVersion":"2025-11-25"`)
	c.w.c.Close()
	c.open()
	c.send(callAs("1", "ask", `{}`))
	asked, err := c.w.next()
	if err != nil || !strings.Contains(string(asked.Data), "elicitation/create") {
		t.Fatalf("%+v, %v", asked, err)
	}
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, jsonrpc.Field(asked.Data, "id")))
	if ev, err := c.w.next(); err != nil || !strings.Contains(string(ev.Data), "accept") {
		t.Errorf("%+v, %v", ev, err)
	}
}

// TestPairBadInput sends invalid requests to the pair of endpoints: each is refused, and the session goes on.
func TestPairBadInput(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{MaxBody: 1 << 10}})
	modern := n.connect("2025-11-25", nil)
	c, other := n.pair(nil), n.pair(nil)
	c.initialize()
	other.initialize()
	_, id, _ := strings.Cut(c.endpoint, "sessionId=")
	mark := c.last[strings.Index(c.last, ".")+1:]
	theirs := other.last[:strings.Index(other.last, ".")+1]
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	c.send(callAs(`"c"`, "hold", `{}`))
	held := n.release(1)
	last := func(id string) map[string]string {
		return map[string]string{"Last-Event-ID": "Last-Event-ID: " + id}
	}
	modernEvent := modern.open("POST", "/mcp", callAs("7", "steps", `{"n":1}`)).message().ID
	for what, tc := range map[string]struct {
		crafted
		status, code int
		says         string
	}{
		"no session":            {crafted{target: "/messages", body: ping}, 400, codeInvalid, "missing sessionId"},
		"no session at /sse":    {crafted{target: "/sse", body: initialize}, 400, codeInvalid, "endpoint event"},
		"an unknown session":    {crafted{target: "/messages?sessionId=AAAAAAAAAAAAAAAAAAAAAAAAAA", body: ping}, 404, codeServer, "session not found"},
		"a modern session":      {crafted{target: "/messages?sessionId=" + modern.id, body: ping}, 404, codeServer, "session not found"},
		"the session's name":    {crafted{target: "/messages?sessionId=" + c.last[:16], body: ping}, 404, codeServer, "session not found"},
		"malformed":             {crafted{target: c.endpoint, body: "{"}, 400, codeParse, "malformed"},
		"no message":            {crafted{target: c.endpoint, body: "{}"}, 400, codeInvalid, "not a JSON-RPC"},
		"an empty batch":        {crafted{target: c.endpoint, body: "[]"}, 400, codeInvalid, "empty batch"},
		"too much":              {crafted{target: c.endpoint, body: ping + strings.Repeat(" ", 1<<10)}, 413, codeInvalid, "larger than"},
		"no JSON":               {crafted{target: c.endpoint, body: ping, head: map[string]string{"Content-Type": "Content-Type: text/plain"}}, 415, codeInvalid, "Content-Type must be"},
		"an id in flight":       {crafted{target: c.endpoint, body: callAs(`"c"`, "steps", `{"key":"bad"}`)}, 400, codeInvalid, "use an id once"},
		"an id in flight again": {crafted{target: c.endpoint, body: "[" + callAs(`"d"`, "steps", `{"key":"bad"}`) + "," + callAs(`"c"`, "steps", `{"key":"bad"}`) + "]"}, 400, codeInvalid, "use an id once"},
		"an opening in a batch": {crafted{target: c.endpoint, body: "[" + initialize + "," + ping + "]"}, 400, codeInvalid, "part of a batch"},
		"no event stream":       {crafted{method: "GET", target: "/sse", head: map[string]string{"Accept": "Accept: application/json"}}, 406, codeInvalid, "Accept must"},
		"an unknown name":       {crafted{method: "GET", target: "/sse", head: last("AAAAAAAAAAAAAAAA." + mark)}, 404, codeServer, "session not found"},
		"garbage":               {crafted{method: "GET", target: "/sse", head: last("x")}, 404, codeServer, "session not found"},
		"a cut id":              {crafted{method: "GET", target: "/sse", head: last(c.last[:len(c.last)-1])}, 400, codeParams, "resume with"},
		"another's name":        {crafted{method: "GET", target: "/sse", head: last(theirs + mark)}, 400, codeParams, "resume with"},
		"a place ahead":         {crafted{method: "GET", target: "/sse", head: last(c.last[:len(c.last)-1] + "zz")}, 410, codeUnknown, "outcome unknown"},
		"a modern event id":     {crafted{method: "GET", target: "/sse", head: last(modernEvent)}, 404, codeServer, "session not found"},
		"a POST":                {crafted{head: map[string]string{"Mcp-Session-Id": "Mcp-Session-Id: " + id}, body: ping}, 404, codeServer, "session not found"},
		"a GET":                 {crafted{method: "GET", head: map[string]string{"Mcp-Session-Id": "Mcp-Session-Id: " + id}}, 404, codeServer, "session not found"},
		"its stream's URL":      {crafted{method: "GET", target: "/mcp?stream=" + c.last}, 404, codeServer, "session not found"},
		"a POST to that":        {crafted{target: "/mcp?stream=" + c.last, body: `{"jsonrpc":"2.0","id":1,"result":{}}`}, 404, codeServer, "session not found"},
		"a DELETE":              {crafted{method: "DELETE", head: map[string]string{"Mcp-Session-Id": "Mcp-Session-Id: " + id}}, 404, codeServer, "session not found"},
	} {
		refused(t, what, c.p.craft(tc.crafted).all(), tc.status, tc.code, tc.says)
		c.send(`{"jsonrpc":"2.0","id":"still","method":"ping"}`)
		c.wants(`"id":"still"`) // on the connection that was open before
	}
	// An error about a message in a session comes on the stream, as all answers do.
	c.send(initialize)
	c.wants("initialized already")
	if n.runs("bad") > 0 {
		t.Error("a call ran that was refused")
	}
	held[0].Result(result("unharmed"))
	c.wants("unharmed")
	modern.works("bad input at the other endpoint")
}

// TestPairEnds has a session with a reader, which does not end. It ends after the client has left.
func TestPairEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{
		server:  server.Options{KeepAlive: 200 * time.Millisecond},
		session: session.Options{TTL: 700 * time.Millisecond},
	})
	c := n.pair(nil)
	c.initialize()
	quiet := make([]byte, 10*len(": keep-alive\n\n")) // three times as long as an idle session lives
	if _, err := io.ReadFull(c.w.res.Body, quiet); err != nil {
		t.Fatalf("a session with a reader ended: %v", err)
	}
	c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	c.wants(`"id":1`)
	c.w.c.Close()
	mcptest.Eventually(t, "the session to end", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
	refused(t, "a message to what has ended", c.p.open("POST", c.endpoint, "{}").all(), 404, codeServer, "session not found")
	refused(t, "a return to what has ended", c.p.open("GET", "/sse", "", "Last-Event-ID: "+c.last).all(), 404, codeServer, "session not found")
	mcptest.Eventually(t, "what it kept to go", time.Minute, func() bool { return n.store.Bytes() == 0 })
}
