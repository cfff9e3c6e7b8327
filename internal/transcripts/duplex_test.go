package transcripts_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
)

// TestPair records the endpoints of revision 2024-11-05.
func TestPair(t *testing.T) {
	t.Parallel()
	record(t, []scenario{
		{name: "pair", talk: pair},
		{name: "pair-errors", stays: true, talk: pairRefused},
	})
}

// TestDuplex records WebSockets and pairs of pipes.
func TestDuplex(t *testing.T) {
	t.Parallel()
	record(t, []scenario{
		{name: "websocket", talk: socket},
		{name: "websocket-token", talk: func(c *client) { roam(c, dial) }},
		{name: "stdio", stays: true, talk: stdio},
		// A pair of pipes ends with its node.
		{name: "stdio-token", never: func(p *placement) bool { return p.at == 0 && p.moves != nil }, talk: func(c *client) { roam(c, pipe) }},
	})
}

// listener is a client of 2024-11-05: a stream on which all messages arrive, and a URL
// for its POSTs.
type listener struct {
	c        *client
	stream   *answer
	endpoint string
}

// listen opens the stream, or resumes it.
func (l *listener) listen() {
	l.c.t.Helper()
	var extra []string
	if l.stream != nil {
		extra = []string{"Last-Event-ID: " + l.stream.last}
	}
	l.stream = l.c.request("GET", "/sse", "", extra...)
	l.endpoint = l.stream.event()
}

func (l *listener) send(body string) {
	l.c.t.Helper()
	l.c.request("POST", "/"+l.endpoint, body).rest()
}

// hear records messages up to the response to a request. If the stream ends before,
// the client resumes it.
func (l *listener) hear(id string) {
	l.c.t.Helper()
	for {
		ev, err := l.stream.next()
		if err != nil {
			l.c.note("[%d] ends before the response", l.stream.number)
			l.listen()
		} else if strings.Contains(string(ev.Data), `"id":`+id+`,"result"`) || strings.Contains(string(ev.Data), `"id":`+id+`,"error"`) {
			return
		}
	}
}

func pair(c *client) {
	l := &listener{c: c}
	l.listen()
	l.send(initialize("2024-11-05", "{}"))
	l.hear("0")
	l.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.goOver()
	l.send(call("1", "echo", `{"text":"one"}`))
	l.hear("1")
	l.stream.cut()
	l.send(call("2", "count", `{"to":1}`))
	l.listen()
	l.hear("2")
	l.send(`[{"jsonrpc":"2.0","method":"notifications/x"},` + call("3", "echo", `{"text":"in a batch"}`) + `]`)
	l.hear("3")
	l.send(call("4", "ask", `{}`))
	l.send(accept(l.stream.event()))
	l.hear("4")
	l.send(call("5", "gated", `{"key":"a"}`))
	l.stream.event()
	l.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
	l.send(call("6", "safe_gated", `{"key":"g"}`))
	l.stream.event()
	c.move()
	c.open("g")
	l.hear("6")
	l.send(call("7", "echo", `{"text":"two"}`))
	l.hear("7")
	l.stream.cut()
}

func pairRefused(c *client) {
	l := &listener{c: c}
	l.listen()
	c.goOver()
	l.send(call("1", "echo", `{}`)) // before initialize
	l.send(`{`)
	c.request("POST", "/messages", call("1", "echo", `{}`)).rest()
	c.request("POST", "/messages?sessionId=made-up", call("1", "echo", `{}`)).rest()
	other := c.request("GET", "/messages", "")
	other.event()
	other.cut()
	c.request("POST", "/sse", call("1", "echo", `{}`)).rest()
	c.request("GET", "/sse", "", "Last-Event-ID: made-up").rest()
	c.request("GET", "/sse", "", "Last-Event-ID: made-up.0").rest()
	c.exactly("GET", "/sse", "", "Accept: text/html").rest()
	l.stream.cut()
}

// line is a connection that carries messages both ways.
type line struct {
	c     *client
	send  func(text string) error
	recv  func() (string, error)
	close func()
	lost  bool
}

// dial opens a WebSocket, which belongs to the client's session if it has one.
func dial(c *client) *line {
	c.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	c.t.Cleanup(stop)
	ws, _, err := mcptest.Dial(ctx, "http://"+c.node.addr+"/mcp", "Mcp-Session-Id", c.session)
	if err != nil {
		c.t.Fatal(err)
	}
	c.session = cmp.Or(c.session, ws.Session)
	c.note("a WebSocket of Mcp-Session-Id: %s with subprotocol %q", ws.Session, ws.Subprotocol())
	l := &line{
		c:    c,
		send: func(text string) error { return ws.Write(ctx, websocket.MessageText, []byte(text)) },
		recv: func() (string, error) {
			_, data, err := ws.Read(ctx)
			return string(data), err
		},
		close: func() { _ = ws.CloseNow() },
	}
	c.t.Cleanup(l.close)
	return l
}

// pipe serves a pair of pipes at the client's node.
func pipe(c *client) *line {
	ctx, stop := context.WithCancel(context.Background())
	node := c.node
	in, out := mcptest.Duplex(c.t, func(toServer io.Reader, toClient io.Writer) error {
		_ = node.ServeConn(ctx, toServer, toClient)
		return toServer.(io.Closer).Close()
	})
	c.note("a pair of pipes")
	lines := bufio.NewReader(out)
	l := &line{
		c:    c,
		send: func(text string) error { _, err := io.WriteString(in, text+"\n"); return err },
		recv: func() (string, error) {
			text, err := lines.ReadString('\n')
			return strings.TrimSuffix(text, "\n"), err
		},
		close: func() {
			_ = out.Close()
			stop()
		},
	}
	c.t.Cleanup(l.close)
	return l
}

func (l *line) say(text string) {
	l.c.t.Helper()
	l.c.note("> %s", text)
	if err := l.send(text); err != nil && !l.c.moved {
		l.c.t.Fatal(err)
	}
}

// hear records the next message, and returns it. At the connection's end it returns "".
func (l *line) hear() string {
	l.c.t.Helper()
	late := time.AfterFunc(2*time.Minute, func() {
		l.c.t.Error("nothing is heard any more")
		l.close()
	})
	text, err := l.recv()
	late.Stop()
	if err != nil {
		var closed websocket.CloseError
		switch {
		case l.c.moved: // the result depends on which side first notices that the node is gone
			l.c.note("< it ends")
		case errors.As(err, &closed):
			l.c.note("< it is closed: %d %s", closed.Code, closed.Reason)
		default:
			l.c.note("< it is cut")
		}
		l.lost = true
		return ""
	}
	l.c.note("< %s", text)
	return text
}

// answer records messages up to the response to a request, or to the connection's end.
func (l *line) answer(id string) {
	l.c.t.Helper()
	for {
		text := l.hear()
		if text == "" || strings.Contains(text, `"id":`+id+`,"result"`) || strings.Contains(text, `"id":`+id+`,"error"`) {
			return
		}
	}
}

// chat is the part of a conversation in which a line stays connected.
func chat(l *line) {
	l.say(call("1", "echo", `{"text":"one"}`))
	l.answer("1")
	l.say(call("2", "count", `{"to":1}`))
	l.answer("2")
	l.say(call("3", "ask", `{}`))
	l.say(accept(l.hear()))
	l.answer("3")
	for _, bad := range []string{`{`, `{}`, `[]`, `[` + call("4", "echo", `{}`) + `]`, initialize("2025-11-25", "{}")} {
		l.say(bad)
		l.hear()
	}
	l.say(`{"jsonrpc":"2.0","id":5,"method":"no/such"}`)
	l.answer("5")
	l.say(call("6", "gated", `{"key":"a"}`))
	l.hear()
	l.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":6}}`)
	l.say(call("6", "echo", `{"text":"the id is free"}`))
	l.answer("6")
}

func socket(c *client) {
	l := dial(c)
	l.say(call("1", "echo", `{}`)) // before initialize
	l.hear()
	l.say(initialize("2025-11-25", "{}"))
	l.answer("0")
	l.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	l.say(`{"jsonrpc":"2.0","id":"tools","method":"tools/list"}`)
	l.answer(`"tools"`)
	l.close()
	c.goOver()
	l = dial(c)
	chat(l)
	l.say(call("7", "safe_gated", `{"key":"g"}`))
	l.hear()
	c.move()
	c.open("g")
	l.answer("7")
	if l.lost {
		l = dial(c)
	}
	l.say(call("8", "echo", `{"text":"two"}`))
	l.answer("8")
}

func stdio(c *client) {
	l := pipe(c)
	l.say(call("1", "echo", `{}`)) // before initialize
	l.hear()
	l.say(initialize("2025-11-25", "{}"))
	l.answer("0")
	l.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	chat(l)
	l.say(`{"jsonrpc":"2.0","method":"notifications/say","params":{"data":"of no call"}}`)
	l.hear()
}

// roam resumes the calls of a session of node 0, on a line with another session.
func roam(c *client, open func(c *client) *line) {
	c.begin("2025-11-25", `{"resumableRequests":{}}`)
	start := func(id, tool, gate string) (token string) {
		a := c.request("POST", "/mcp", call(id, tool, fmt.Sprintf(`{"key":%q}`, gate)))
		token = tokenOf.FindStringSubmatch(a.event())[1]
		a.event()
		a.cut()
		return token
	}
	one, two := start("1", "safe_gated", "a"), start("2", "gated", "b")
	c.session = ""
	begin := func() *line {
		l := open(c)
		l.say(initialize("2025-11-25", `{"resumableRequests":{}}`))
		l.answer("0")
		return l
	}
	resume := func(l *line, id, token string) {
		l.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"requests/resume","params":{"resumeToken":%q}}`, id, token))
		l.hear() // the policy
		l.hear() // progress
	}
	l := begin()
	resume(l, "1", one)
	c.open("a")
	l.answer("1")
	resume(l, "2", two)
	c.move()
	c.open("b")
	if l.answer("2"); l.lost {
		c.session = ""
		l = begin()
		resume(l, "2", two)
		l.answer("2")
	}
	l.say(`{"jsonrpc":"2.0","id":"s","method":"requests/getStatus","params":{"requestId":2,"resumeToken":"made-up"}}`)
	l.answer(`"s"`)
}
