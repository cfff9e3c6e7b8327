package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A talker is a client on a connection that goes both ways.
type talker struct {
	t       testing.TB
	id      string // of the session, if the transport tells it
	version string
	lists   bool // the backend answers tools/list
	plain   bool // the client has begun a session, and cannot resume requests

	send func(text string) error
	recv func() ([]byte, error)
	// cut ends the connection without a close frame, in the way how.
	cut func(how cut)
	// over is closed when ServeConn has returned; err is then its error. nil for a WebSocket.
	over chan struct{}
	err  error
}

// A dialer opens a connection. most is the number of bytes from the server that arrive before the
// connection is cut; 0: no limit.
type dialer func(n *node, most int, extra ...string) *talker

// dialers are the transports that go both ways.
var dialers = map[string]dialer{"websocket": openSocket, "stdio": openPipes}

// bothWays runs a test over each of the dialers.
func bothWays(t *testing.T, test func(t *testing.T, open dialer)) {
	for name, open := range dialers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// openSocket opens a WebSocket, with extra headers in its handshake.
func openSocket(n *node, most int, extra ...string) *talker {
	n.t.Helper()
	c, _, err := n.dialSocket(most, extra...)
	if err != nil {
		n.t.Fatalf("websocket: %v", err)
	}
	return c
}

func (n *node) dialSocket(most int, extra ...string) (*talker, *http.Response, error) {
	header := make(http.Header)
	for _, line := range extra {
		name, value, _ := strings.Cut(line, ": ")
		header.Set(name, value)
	}
	var below *cutConn
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		below = &cutConn{Conn: c, reads: -1, writes: -1, reset: true}
		if most > 0 {
			below.reads = int64(most)
		}
		return below, nil
	}}
	ws, res, err := websocket.Dial(context.Background(), "ws://"+n.addr+"/mcp", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, HTTPHeader: header, Subprotocols: []string{"mcp"},
	})
	if err != nil {
		transport.CloseIdleConnections()
		if below != nil {
			below.Close()
		}
		return nil, res, err
	}
	ws.SetReadLimit(64 << 20)
	c := &talker{t: n.t, id: res.Header.Get("Mcp-Session-Id"), lists: n.lists && most == 0}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	c.send = func(text string) error { return ws.Write(ctx, websocket.MessageText, []byte(text)) }
	c.recv = func() ([]byte, error) {
		kind, data, err := ws.Read(ctx)
		if err == nil && kind != websocket.MessageText {
			err = fmt.Errorf("a frame of kind %v", kind)
		}
		return data, err
	}
	c.cut = func(how cut) {
		switch how {
		case rst:
			_ = below.Conn.(*net.TCPConn).SetLinger(0)
			_ = below.Close()
		case fin:
			_ = below.Close()
		case ghost:
			return
		}
		_ = ws.CloseNow()
	}
	n.t.Cleanup(func() { c.cut(rst); stop() })
	return c, res, nil
}

// reads starts to read all messages, and keeps them for recv: a WebSocket answers pings only while
// it is read.
func (c *talker) reads() {
	type got struct {
		data []byte
		err  error
	}
	came, recv := make(chan got, 1000), c.recv
	go func() {
		for {
			data, err := recv()
			came <- got{data, err}
			if err != nil {
				close(came)
				return
			}
		}
	}()
	c.recv = func() ([]byte, error) {
		g, ok := <-came
		if !ok {
			return nil, io.EOF
		}
		return g.data, g.err
	}
}

// openPipes serves a pair of pipes. Of extra it uses "Authorization" alone, for the user whom a
// program would know.
func openPipes(n *node, most int, extra ...string) *talker {
	n.t.Helper()
	in, out := pipes(n.t)
	return n.talkOver(most, in, out, extra...)
}

// ends are both ends of a pipe.
type ends struct {
	r io.ReadCloser
	w io.WriteCloser
}

// pipes returns two pipes of the system, as a process has.
func pipes(t testing.TB) (in, out ends) {
	t.Helper()
	for _, p := range []*ends{&in, &out} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		*p = ends{r, w}
	}
	return in, out
}

// memoryPipes returns two pipes without deadlines.
func memoryPipes() (in, out ends) {
	r, w := io.Pipe()
	in = ends{r, w}
	r, w = io.Pipe()
	return in, ends{r, w}
}

type principalKey struct{}

// named returns the principal of a pair of pipes, or of a request.
func named(r *http.Request) string {
	if name, ok := r.Context().Value(principalKey{}).(string); ok {
		return name
	}
	return bearer(r)
}

func (n *node) talkOver(most int, in, out ends, extra ...string) *talker {
	ctx, stop := context.WithCancel(context.Background())
	for _, line := range extra {
		if name, ok := strings.CutPrefix(line, "Authorization: Bearer "); ok {
			ctx = context.WithValue(ctx, principalKey{}, name)
		}
	}
	c := &talker{t: n.t, over: make(chan struct{}), lists: n.lists && most == 0}
	go func() {
		defer close(c.over)
		c.err = n.ServeConn(ctx, in.r, out.w)
		_ = in.r.Close()
		_ = out.w.Close()
	}()
	var once sync.Once
	c.cut = func(cut) {
		once.Do(func() {
			_ = in.w.Close()
			_ = out.r.Close()
		})
	}
	from := io.Reader(out.r)
	if most > 0 {
		from = io.LimitReader(from, int64(most))
	}
	lines := bufio.NewReader(from)
	c.send = func(text string) error { _, err := io.WriteString(in.w, text+"\n"); return err }
	c.recv = func() ([]byte, error) {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			c.cut(fin)
			return nil, err
		}
		return line[:len(line)-1], nil
	}
	n.t.Cleanup(func() {
		c.cut(fin)
		stop()
		<-c.over
	})
	return c
}

// initialize begins the session. capabilities may be "".
func (c *talker) initialize(version, capabilities string) error {
	c.version = version
	if capabilities == "" {
		capabilities = "{}"
	}
	c.plain = !strings.Contains(capabilities, "resumableRequests")
	for _, name := range []string{"roots", "sampling", "elicitation"} { // the servers of the tests use all of them
		if !strings.Contains(capabilities, name) {
			capabilities = strings.Replace(capabilities, "{", fmt.Sprintf(`{%q:{},`, name), 1)
		}
	}
	capabilities = strings.Replace(capabilities, ",}", "}", 1)
	err := c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":%s}}`, version, capabilities))
	if err != nil {
		return err
	}
	m, err := c.next()
	if err != nil {
		return err
	}
	if m.Kind != jsonrpc.Response || m.Result == nil || string(m.ID) != "0" {
		return fmt.Errorf("initialize: %s", m.Raw)
	}
	return c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// begin begins the session, and lists the tools if the backend can; it ends the test on an error.
func (c *talker) begin(version, capabilities string) {
	c.t.Helper()
	mcptest.Check(c.t, c.initialize(version, capabilities))
	if c.lists {
		c.say(listTools)
		for m := c.message(); string(m.ID) != `"tools"`; {
			m = c.message()
		}
	}
}

// say sends messages; it ends the test on an error.
func (c *talker) say(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		mcptest.Check(c.t, c.send(text))
	}
}

func (c *talker) next() (jsonrpc.Message, error) {
	data, err := c.recv()
	if err != nil {
		return jsonrpc.Message{}, err
	}
	m, err := jsonrpc.Parse(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", data, err)
	}
	return m, nil
}

// message returns the next message; it ends the test on an error.
func (c *talker) message() jsonrpc.Message {
	c.t.Helper()
	m, err := c.next()
	if err != nil {
		c.t.Fatalf("message: %v", err)
	}
	return m
}

// hears wants the next message to contain the texts. A client that can resume requests may get a
// policy before it: on a slow machine a quick call becomes a long one.
func (c *talker) hears(texts ...string) []byte {
	c.t.Helper()
	data, err := c.recv()
	for err == nil && !c.plain && len(texts) > 0 && strings.Contains(string(data), `"notifications/requests/resumePolicy"`) &&
		!strings.Contains(string(data), texts[0]) {
		data, err = c.recv()
	}
	if err != nil {
		c.t.Fatalf("%q: %v", texts, err)
	}
	for _, text := range texts {
		if !strings.Contains(string(data), text) {
			c.t.Errorf("got %s, want %s", data, text)
		}
	}
	return data
}

// fails wants the next message to be an error for the request with the id ("": for none), with a
// text in it.
func (c *talker) fails(id string, code int, text string) {
	c.t.Helper()
	data := c.hears(fmt.Sprintf(`"code":%d,`, code), text)
	if got := string(jsonrpc.Field(data, "id")); got != id || jsonrpc.Field(data, "error") == nil {
		c.t.Errorf("got %s, want an error for %q", data, id)
	}
}

// ended wants the connection to be closed; a WebSocket with a code and a reason.
func (c *talker) ended(code websocket.StatusCode, reason string) {
	c.t.Helper()
	data, err := c.recv()
	if err == nil {
		c.t.Fatalf("got %s, want the connection's end", data)
	}
	var closed websocket.CloseError
	if c.over != nil {
		<-c.over
	} else if !errors.As(err, &closed) || closed.Code != code || !strings.Contains(closed.Reason, reason) {
		c.t.Errorf("ended with %v, want %v %q", err, code, reason)
	}
}
