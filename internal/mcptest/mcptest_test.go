package mcptest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "echoing" {
		_, _ = os.Stderr.WriteString("ready at 7\n")
		Stdio(echoing())
		return
	}
	testlong.AtOnce(8)
	os.Exit(m.Run())
}

// echoing is a server that sends a request to its client before it answers a call, in two lines.
func echoing() Script {
	var q Questions
	return Answers{
		"response": q.Answered,
		"tools/call": func(m jsonrpc.Message, say func(string)) string {
			answer := q.Ask(say, "ping", "")
			return Note("notifications/before", "") + "\n" + Text(m, "heard "+string(answer.Result))
		},
	}.Script
}

const (
	begins = "a call"
	pong   = `{"jsonrpc":"2.0","id":"question-1","result":{"a":1}}`
	heard  = `"text":"heard {\"a\":1}"`
)

// A script behaves the same over each transport.
func TestServerStreams(t *testing.T) {
	t.Parallel()
	url := Serve(t, &Server{New: echoing})
	c := &Client{URL: url + "/events", Revision: "2025-11-25"}
	if err := c.Begin(t.Context(), Initialize("2025-11-25", "{}")); err != nil {
		t.Fatal(err)
	}
	s := c.Stream(t, http.MethodPost, Call(begins, "x", "{}"))
	s.Until(t, `"method":"ping"`)
	if r := c.Post(t, pong); r.Status != http.StatusAccepted {
		t.Errorf("a response gets %d", r.Status)
	}
	s.Until(t, "notifications/before")
	s.Until(t, heard)
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v", err)
	}
	if r := c.Post(t, Request(1, "other", "")); !strings.Contains(r.Message(), `"no other"`) {
		t.Errorf("got %+v", r)
	}
	other := &Client{URL: c.URL, Session: "session-9"}
	if r := other.Post(t, Request(1, "other", "")); r.Status != http.StatusNotFound {
		t.Errorf("another session: %+v", r)
	}
}

func TestServerStandalone(t *testing.T) {
	t.Parallel()
	c := &Client{URL: Serve(t, &Server{New: echoing, Listens: true}) + "/get"}
	if err := c.Begin(t.Context(), Initialize("2025-11-25", "{}")); err != nil {
		t.Fatal(err)
	}
	s := c.Stream(t, http.MethodGet, "")
	said := make(chan Reply, 1)
	go func() { said <- c.Post(t, Call(begins, "x", "{}")) }()
	s.Until(t, `"method":"ping"`)
	c.Post(t, pong)
	if r := <-said; !strings.Contains(r.Body, heard) || strings.Contains(r.Body, "ping") {
		t.Errorf("got %s", r.Body)
	}
	s.Close()
}

func TestServerPair(t *testing.T) {
	t.Parallel()
	url := Serve(t, &Server{New: echoing})
	s := (&Client{URL: url + "/sse"}).Stream(t, http.MethodGet, "")
	ev := s.Until(t, "/said")
	c := &Client{URL: url + string(ev.Data)}
	c.Post(t, Call(begins, "x", "{}"))
	s.Until(t, `"method":"ping"`)
	c.Post(t, pong)
	s.Until(t, heard)
}

func TestServerSocket(t *testing.T) {
	t.Parallel()
	s := MustDial(t, t.Context(), Serve(t, &Server{New: echoing})+"/ws")
	s.Say(t, Call(begins, "x", "{}"))
	s.Hear(t, `"method":"ping"`)
	s.Say(t, pong)
	s.Hear(t, heard)
	refused := Serve(t, http.NotFoundHandler())
	if s, r, _ := Dial(t.Context(), refused); s != nil || r.Status != http.StatusNotFound {
		t.Errorf("got %+v", r)
	}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	p := Piped(t, exec.Command(os.Args[0], "echoing"))
	if found := p.Find(regexp.MustCompile(`ready at (\d)`)); len(found) != 2 || found[1] != "7" {
		t.Errorf("found %q", found)
	}
	p.Say("%s", Call(begins, "x", "{}"))
	p.Hear(`"method":"ping"`)
	p.Say("%s", pong)
	p.Hear("heard")
	p.CloseStdin()
	<-p.Ended
	if p.Err != nil || p.Find(regexp.MustCompile("never")) != nil {
		t.Errorf("ended with %v", p.Err)
	}
}

// Header fields of 2026-07-28 repeat values of the message, unless the test sets them.
func TestRequest(t *testing.T) {
	t.Parallel()
	req, err := NewRequest(t.Context(), http.MethodPost, "http://a.example", ModernRequest(1, "tools/call", "{}", `"name":"x"`), "User", "u", "Accept", "", "Cookie", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"MCP-Protocol-Version": Modern, "Mcp-Method": "tools/call", "Mcp-Name": "x", "User": "u", "Accept": "", "Cookie": "", "Content-Type": "application/json",
	} {
		if got := req.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestPipes(t *testing.T) {
	t.Parallel()
	hc := ServePipes(t, &Server{New: echoing, Open: true})
	c := &Client{URL: "http://inside.example/json", HTTP: hc}
	if r := c.Post(t, Request(1, "other", "")); !strings.Contains(r.Message(), `"no other"`) {
		t.Errorf("got %+v", r)
	}
}

// failing is a testing.TB that records a call of Fatalf.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, _ ...any) {
	f.said = format
	panic(f)
}

func TestEventually(t *testing.T) {
	t.Parallel()
	n := 0
	Eventually(t, "three", time.Minute, func() bool { n++; return n == 3 })
	f := &failing{TB: t}
	defer func() {
		if recover() != f || f.said == "" {
			t.Error("it does not fail")
		}
	}()
	Eventually(f, "never", 10*time.Millisecond, func() bool { return false })
}

func TestLog(t *testing.T) {
	t.Parallel()
	var l Log
	_, _ = io.WriteString(&l, "one a\n\ntwo b\n")
	if got := l.Lines("two"); len(got) != 1 || got[0] != "two b" || len(l.TakeLines()) != 2 || l.String() != "" {
		t.Errorf("got %q", got)
	}
}

// An answer that breaks off is an error. The part that arrived is returned with it.
func TestRead(t *testing.T) {
	t.Parallel()
	url := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "data: half")
	}))
	r, err := Read(Send(context.Background(), http.MethodGet, url, ""))
	if err == nil || r.Body != "data: half" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A table answers by method and tool. Other requests get the answer of a usual server.
func TestTables(t *testing.T) {
	t.Parallel()
	table := Methods{
		"initialize": Greet("s"), "GET": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) { JSON(w, "got") },
		"tools/call x": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) { JSON(w, Text(m, "x")) },
		"*":            func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) { w.WriteHeader(http.StatusTeapot) },
	}
	c := &Client{URL: Serve(t, table)}
	Check(t, c.Begin(t.Context(), Initialize("2025-06-18", "{}")))
	for _, one := range []struct {
		method, body string
		status       int
		want         string
	}{
		{http.MethodGet, "", 200, "got"}, {http.MethodDelete, "", 200, ""}, {http.MethodPut, "", 418, ""},
		{http.MethodPost, Call(1, "x", "{}"), 200, `"text":"x"`}, {http.MethodPost, Call(1, "y", "{}"), 418, ""}, {http.MethodPost, Note("a/b", "{}"), 202, ""},
	} {
		if r := Must(c.Exchange(t.Context(), one.method, one.body))(t); r.Status != one.status || !strings.Contains(r.Body, one.want) {
			t.Errorf("%s %s: %d %s", one.method, one.body, r.Status, r.Body)
		}
	}
	script := Answers{"tools/call b": Fixed("{}"), "tools/call a": Fixed(`{"of":"a"}`)}.Script
	for text, want := range map[string]string{
		Initialize("2025-06-18", "{}"): `"protocolVersion":"2025-06-18"`, Request(1, "tools/list", ""): `[{"name":"a","inputSchema":{"type":"object"}},{"name":"b"`,
		Call(1, "a", "{}"): `"of":"a"`, Call(1, "c", "{}"): `-32601`, Request(1, "ping", ""): `"result":{}`, Initialized: "",
	} {
		if got := script(Parse(text), nil); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %s", text, got)
		}
	}
	var said struct{ Result struct{ Of string } }
	from := &Client{URL: Serve(t, &Server{Script: script}) + "/json"}
	Must(from.Ask(t.Context(), "initialize", "{}", &said))(t)
	if Must(from.Ask(t.Context(), "tools/call", `{"name":"a"}`, &said))(t); said.Result.Of != "a" || from.Session == "" {
		t.Errorf("it is told %+v in the session %q", said, from.Session)
	}
}
