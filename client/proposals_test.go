package client_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A script is a server that follows a proposal to the letter and offers nothing else. serve
// takes the requests about the call. The script itself answers those that open the session.
type script struct {
	t     *testing.T
	serve func(w http.ResponseWriter, r *http.Request, body []byte)

	mu   sync.Mutex
	seen []string // the requests, one per line
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, id, method := received(r)
	switch method {
	case "initialize":
		answerJSON(w, http.StatusOK, greeting, id)
		return
	case "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.mu.Lock()
	what := r.Method + " " + r.URL.RequestURI()
	if method != "" {
		what += " " + method
	}
	if last := r.Header.Get("Last-Event-Id"); last != "" {
		what += " after " + last
	}
	s.seen = append(s.seen, what)
	s.mu.Unlock()
	s.serve(w, r, body)
}

// asked fails the test unless the server got exactly these requests, in this order.
func (s *script) asked(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Join(s.seen, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("asked:\n\t%s\nwant:\n\t%s", strings.Join(s.seen, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// stream begins an event stream with the text, and hangs up.
func stream(w http.ResponseWriter, link string, text string) {
	if link != "" {
		w.Header().Set("Link", `</other>; rel="next", <`+link+`>; rel="stream"; title="a, b"`)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, text)
}

const result = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`

func data(messages ...string) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "data: %s\n\n", m)
	}
	return b.String()
}

func runScript(t *testing.T, serveCall func(w http.ResponseWriter, r *http.Request, body []byte)) (*script, *raw) {
	t.Helper()
	s := &script{t: t, serve: serveCall}
	a := newRaw(t, mcptest.Serve(t, s)+"/mcp", client.Options{NoListen: true})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	return s, a
}

// A stream is resumed at its URL, before any event, and after one (SEP-1335,
// `rel="stream"` URL).
func TestStreamURL(t *testing.T) {
	t.Parallel()
	turn := 0
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		turn++
		switch turn {
		case 1:
			stream(w, "/stream/1", "")
		case 2:
			stream(w, "", "id: e1\nretry: 1\n"+data(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"1"}}`))
		case 3:
			stream(w, "", data(result))
		}
	})
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	if n := a.heard["notifications/message"]; n != 1 {
		t.Errorf("%d messages", n)
	}
	s.asked("POST /mcp tools/call", "GET /stream/1", "GET /stream/1 after e1")
}

// As long as the host does not have the response, the State leads to it: no State says that the response was received.
func TestStateBeforeAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		link, text string // the stream's link and text
		want       string // the last event id of each State in turn, where it changes
	}{
		"primed":     {"", "id: e1\ndata:\n\nid: e2\n" + data(result), "e1"},
		"first":      {"/s/1", "id: e1\n" + data(result), ""},
		"other news": {"", "id: e1\n" + data(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"1"}}`) + "id: e2\n" + data(result), "e1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var conn atomic.Pointer[client.Conn]
			var said []string // written only by the goroutine that reads the stream
			s := &script{t: t, serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) { stream(w, test.link, test.text) }}
			a := newRaw(t, mcptest.Serve(t, s)+"/mcp", client.Options{NoListen: true, Changed: func() {
				c := conn.Load()
				if c == nil {
					return
				}
				for _, k := range c.State().Calls {
					if last := k.LastEventID; last != "" && !slices.Contains(said, last) {
						said = append(said, last)
					}
				}
			}})
			a.open()
			conn.Store(a.Conn)
			a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
			a.answer("1")
			if got := strings.Join(said, " "); got != test.want {
				t.Errorf("the States continue after %q, want %q", got, test.want)
			}
		})
	}
}

// A State may say that a whole stream was received, although its process did not pass the
// response on. The next process then asks for the whole stream, once.
func TestFromStart(t *testing.T) {
	t.Parallel()
	for _, forgot := range []bool{false, true} { // whether the server has forgotten the whole stream
		t.Run(fmt.Sprintf("forgot=%v", forgot), func(t *testing.T) {
			t.Parallel()
			s := &script{t: t, serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				if r.Header.Get("Last-Event-Id") == "e2" || forgot {
					w.WriteHeader(http.StatusNoContent)
					return
				}
				stream(w, "", "id: e1\ndata:\n\nid: e2\n"+data(result))
			}}
			a := newRaw(t, mcptest.Serve(t, s)+"/mcp", client.Options{NoListen: true, State: &client.State{
				Session: "s", Revision: "2025-11-25", Ready: true,
				Calls: []client.CallState{{ID: []byte("1"), Method: "tools/call", Session: "s", Token: "t", LastEventID: "e2"}},
			}})
			m := a.answer("1")
			if unknown := m.Error != nil; unknown != forgot {
				t.Errorf("%s", m.Raw)
			}
			s.asked("GET /mcp after e2", "POST /mcp requests/resume after e2", "POST /mcp requests/resume")
		})
	}
}

func question(id, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":%q,"requestedSchema":{"type":"object","properties":{}}}}`, id, text)
}

// A server that ends the connection to wait for replies gets all of them in one POST to the
// stream URL, after it has answered 204 (SEP-1335, "Multi-turn requests").
func TestMultiTurn(t *testing.T) {
	t.Parallel()
	turn := 0
	var got []string
	s, a := runScript(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		turn++
		if r.Method == http.MethodPost && turn > 1 {
			got = append(got, string(body))
		}
		switch turn {
		case 1: // two questions in the first turn
			stream(w, "/s/1", "retry: 1\n"+data(question(`"a"`, "first"), question("7", "second")))
		case 2, 5:
			w.WriteHeader(http.StatusNoContent)
		case 3: // the POST of the answers
			stream(w, "/s/2", data(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"1"}}`))
		case 4: // a further question in the second turn
			stream(w, "", data(question(`"c"`, "third")))
		case 6:
			stream(w, "/s/3", "")
		case 7:
			stream(w, "", data(result))
		}
	})
	for range 3 {
		m := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
		a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{}}}`, m.ID)
	}
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	s.asked("POST /mcp tools/call", "GET /s/1", "POST /s/1", "GET /s/2", "GET /s/2", "POST /s/2", "GET /s/3")
	want := []string{
		`[{"jsonrpc":"2.0","id":"a","result":{"action":"accept","content":{}}},{"jsonrpc":"2.0","id":7,"result":{"action":"accept","content":{}}}]`,
		`[{"jsonrpc":"2.0","id":"c","result":{"action":"accept","content":{}}}]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("answers:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// While the host takes its time to reply, the client holds no connection.
func TestMultiTurnSlowly(t *testing.T) {
	t.Parallel()
	turn := 0
	waits := make(chan struct{})
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		turn++
		switch turn {
		case 1:
			stream(w, "/s/1", "retry: 1\n"+data(question("1", "?")))
		case 2:
			w.WriteHeader(http.StatusNoContent)
			close(waits)
		case 3:
			stream(w, "", data(result))
		}
	})
	m := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	<-waits
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, m.ID)
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	s.asked("POST /mcp tools/call", "GET /s/1", "POST /s/1")
}

// Replies that may have been lost are sent again when the server says that it still waits, and not before.
func TestMultiTurnCut(t *testing.T) {
	t.Parallel()
	turn := 0
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		turn++
		switch turn {
		case 1:
			stream(w, "/s/1", "retry: 1\n"+data(question(`"a"`, "?")))
		case 2, 4:
			w.WriteHeader(http.StatusNoContent)
		case 3:
			panic(http.ErrAbortHandler)
		case 5:
			stream(w, "", data(result))
		}
	})
	m := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, m.ID)
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	s.asked("POST /mcp tools/call", "GET /s/1", "POST /s/1", "GET /s/1", "POST /s/1")
}

const policy = `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":1,"resumeToken":"secret","minWait":0,"maxWait":60}}`

// A request is resumed by its token, under its own id, where there is no other way (SEP-975).
func TestToken(t *testing.T) {
	t.Parallel()
	turn := 0
	var resume string
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		turn++
		switch turn {
		case 1:
			stream(w, "", data(policy))
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			resume = string(body)
			stream(w, "", data(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"1"}}`))
		case 4:
			stream(w, "", data(result))
		}
	})
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	if n := a.heard["notifications/requests/resumePolicy"]; n != 0 {
		t.Error("the host was told a secret that it did not ask for")
	}
	s.asked("POST /mcp tools/call", "POST /mcp requests/resume", "POST /mcp requests/resume", "POST /mcp requests/resume")
	if string(jsonrpc.Field([]byte(resume), "id")) != "1" || jsonrpc.String(jsonrpc.Field([]byte(resume), "params", "resumeToken")) != "secret" {
		t.Errorf("%s", resume)
	}
}

// A server without event ids sends all messages again when a call is resumed by its
// token (SEP-975, "Streamable HTTP"): the host gets each message and each request once.
func TestTokenRepeats(t *testing.T) {
	t.Parallel()
	turn := 0
	logged := func(n int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, n)
	}
	var answers int
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		if jsonrpc.Field(body, "method") == nil {
			answers++
			w.WriteHeader(http.StatusAccepted)
			return
		}
		turn++
		all := []string{policy, logged(1), question(`"a"`, "?"), logged(1), logged(2), result}
		switch turn {
		case 1:
			stream(w, "", data(all[:3]...))
		case 2: // the answer has to be there
			stream(w, "", "retry: 1\n"+data(all[:4]...))
		case 3:
			stream(w, "", data(all[:1]...))
		case 4:
			stream(w, "", data(all...))
		}
	})
	m := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, m.ID)
	asked := 0
	m = a.until(func(m jsonrpc.Message) bool {
		if m.Kind == jsonrpc.Request {
			asked++
		}
		return m.Kind == jsonrpc.Response
	})
	if m.Error != nil || asked != 0 {
		t.Errorf("%s, asked %d times again", m.Raw, asked)
	}
	if n := a.heard["notifications/message"]; n != 3 {
		t.Errorf("%d messages", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn != 4 || answers != 1 {
		t.Errorf("%d turns, %d answers: %q", turn, answers, s.seen)
	}
}

// The status of a call is requested by its token, and the call is not disturbed (SEP-975,
// "requests/getStatus").
func TestStatusByToken(t *testing.T) {
	t.Parallel()
	here, done := make(chan struct{}), make(chan struct{})
	var asked string
	s, a := runScript(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		if jsonrpc.String(jsonrpc.Field(body, "method")) == "requests/getStatus" {
			asked = string(jsonrpc.Field(body, "params"))
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"requestId":1,"status":"processing","hasPendingMessage":true,"hasInputRequest":false}}`,
				jsonrpc.Field(body, "id"))
			return
		}
		stream(w, "", data(policy, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`))
		_ = http.NewResponseController(w).Flush()
		close(here)
		select {
		case <-done:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, data(result))
	})
	<-here
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	status, err := a.Status(t.Context(), a.State().Calls[0])
	if err != nil || status != (client.Status{Status: "processing", HasPendingMessage: true}) {
		t.Errorf("%+v, %v", status, err)
	}
	close(done)
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	if string(jsonrpc.Field([]byte(asked), "requestId")) != "1" || jsonrpc.String(jsonrpc.Field([]byte(asked), "resumeToken")) != "secret" {
		t.Errorf("asked with %s", asked)
	}
	s.asked("POST /mcp tools/call", "POST /mcp requests/getStatus")
}

// When the server does not know the token of a call any more, the call ends.
func TestTokenExpired(t *testing.T) {
	t.Parallel()
	turn := 0
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if turn++; turn == 1 {
			stream(w, "", data(policy))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such request"}}`)
	})
	if m := a.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
	s.asked("POST /mcp tools/call", "POST /mcp requests/resume")
}

// A client waits as long as the retry field says before it reconnects (SEP-1699).
func TestRetry(t *testing.T) {
	t.Parallel()
	var left, back time.Time
	turn := 0
	const wait = 300 * time.Millisecond
	s, a := runScript(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if turn++; turn == 1 {
			left = time.Now()
			stream(w, "", fmt.Sprintf("id: p\nretry: %d\ndata: \n\n", wait.Milliseconds()))
			return
		}
		back = time.Now()
		stream(w, "", data(result))
	})
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	if d := back.Sub(left); d < wait {
		t.Errorf("came back after %v", d)
	}
	s.asked("POST /mcp tools/call", "GET /mcp after p")
}
