package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// An upstreamReply is an answer of an upstream server.
type upstreamReply struct {
	status int
	media  string // "": application/json
	packed bool   // the body is compressed, though the request did not ask for that
	body   string // ID stands for the id of the request
}

// write writes the reply to a request with an id.
func (u upstreamReply) write(w http.ResponseWriter, id string) {
	media := u.media
	if media == "" {
		media = "application/json"
	}
	w.Header().Set("Content-Type", media)
	body := []byte(strings.ReplaceAll(u.body, "ID", id))
	if u.packed {
		w.Header().Set("Content-Encoding", "gzip")
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(body)
		_ = z.Close()
		body = packed.Bytes()
	}
	w.WriteHeader(u.status)
	_, _ = w.Write(body)
}

// A forgetful is a server that can forget its sessions. It answers with words in a session that it does not know.
type forgetful struct {
	words upstreamReply // the answer in an unknown session
	call  upstreamReply // the answer to a call of the tool "odd"; status 0: a result

	mu     sync.Mutex
	known  map[string]bool
	begins int
	runs   atomic.Int32
}

// forget makes the server forget all sessions.
func (f *forgetful) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = nil
}

// begun returns how many sessions were begun.
func (f *forgetful) begun() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begins
}

func (f *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	session := r.Header.Get("Mcp-Session-Id")
	m, err := jsonrpc.Parse(body)
	switch {
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodDelete:
		return
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	known := f.known[session]
	if m.Method == "initialize" && session == "" {
		f.begins++
		session = fmt.Sprint("s", f.begins)
		if f.known == nil {
			f.known = make(map[string]bool)
		}
		f.known[session] = true
		known = true
		w.Header().Set("Mcp-Session-Id", session)
	}
	f.mu.Unlock()
	id := string(m.ID)
	switch {
	case m.Method == "server/discover":
		upstreamReply{status: http.StatusOK, body: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"Method not found"}}`}.write(w, id)
	case !known:
		f.words.write(w, id)
	case m.Kind != jsonrpc.Request:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "tools/call" && f.call.status != 0 && strings.Contains(string(m.Params), `"odd"`):
		f.runs.Add(1)
		f.call.write(w, id)
	default:
		if m.Method == "tools/call" {
			f.runs.Add(1)
		}
		upstreamReply{status: http.StatusOK, body: odd.Script(m, nil)}.write(w, id)
	}
}

// FAILURES 21: an upstream server has forgotten its sessions, and says so with any answer. The client, in its own session, gets
// the result of its next call, which has run once.
func TestFailure21ForgottenSession(t *testing.T) {
	t.Parallel()
	rpc := func(status int, code int, message string) upstreamReply {
		return upstreamReply{status: status, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":%q}}`, code, message)}
	}
	text := func(status int, words string) upstreamReply {
		return upstreamReply{status: status, media: "text/plain; charset=utf-8", body: words}
	}
	// The answers by which servers say that they do not know a session.
	for words, reply := range map[string]upstreamReply{
		"404":                                  rpc(404, -32001, "Session not found"),
		"404, text":                            text(404, "session not found"),
		"404, nothing":                         {status: 404, media: "text/plain"},
		"404, HTML":                            {status: 404, media: "text/html", body: "<html><body>Not Found</body></html>"},
		"400, not initialized":                 rpc(400, -32000, "Bad Request: Server not initialized"),
		"400, no valid session":                rpc(400, -32000, "Bad Request: No valid session ID provided"),
		"400, no transport":                    text(400, "No transport found for sessionId"),
		"400, text":                            text(400, "Invalid or missing session ID"),
		"400, words of its own":                rpc(400, -32600, "Wer sind Sie?"),
		"400, expired":                         {status: 400, body: `{"error":"Session expired"}`},
		"400, nothing":                         {status: 400, media: "text/plain"},
		"401":                                  text(401, "Unauthorized"),
		"401, JSON-RPC":                        rpc(401, -32000, "No active session"),
		"403":                                  text(403, "Forbidden: unknown session"),
		"409":                                  rpc(409, -32000, "Session terminated"),
		"410":                                  text(410, "Gone"),
		"422":                                  rpc(422, -32000, "Unprocessable session"),
		"500":                                  rpc(500, -32603, "Internal error: session undefined"),
		"503":                                  text(503, "No active session"),
		"200 with an error under id null":      rpc(200, -32000, "Session expired"),
		"200 with an error under its id":       {status: 200, body: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"No active session"}}`},
		"404 with an error under its id":       {status: 404, body: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}`},
		"200 with an error as an event":        {status: 200, media: "text/event-stream", body: "data: " + `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Session expired"}}` + "\n\n"},
		"400 with the error of initialization": rpc(400, -32002, "Received request before initialization was complete"),
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			testlong.Part(t)
			f := &forgetful{words: reply}
			url := mcptest.Serve(t, f)
			backends := map[string]struct {
				ask    func(string) string
				prefix string
			}{"serve": {ask: connect(t, serve(t, "--upstream", url)).ask}}
			merged := fmt.Sprintf(`{"mcpServers":{"a":{"url":%q}},"holdfast":{"merge":true}}`, url)
			b := hostOf(t, connectCommand(t, "connect:"+url)...)
			backends["connect"] = struct {
				ask    func(string) string
				prefix string
			}{ask: func(body string) string {
				b.Say("%s", body)
				return b.response(string(jsonrpc.Field([]byte(body), "id")))
			}}
			backends["merged"] = struct {
				ask    func(string) string
				prefix string
			}{ask: connect(t, &program{URL: serveFile(t, merged) + "/mcp"}).ask, prefix: "a_"}
			for name, through := range backends {
				wantOdd(t, through.ask(oddCall(7, through.prefix+"even", "")), 7, "even")
				for again := range 2 {
					f.forget()
					before := f.runs.Load()
					wantOdd(t, through.ask(oddCall(8+again, through.prefix+"even", "")), 8+again, "even")
					if ran := f.runs.Load() - before; ran != 1 {
						t.Errorf("%s: the tool ran %d times", name, ran)
					}
				}
				wantOdd(t, through.ask(oddCall(10, through.prefix+"even", "")), 10, "even")
			}
			// At the most: each of three backends begins one session, and two more each time the server forgets: one to ask, and one to go on.
			if n := f.begun(); n > 15 {
				t.Errorf("%d sessions were begun", n)
			}
		})
	}
}

// FAILURES 21: an error with the request's own id is the answer, whatever the status: its code and message arrive unchanged, and
// no other session is begun.
func TestFailure21OwnError(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 400, 404, 405, 410, 422, 500, 501, 502, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := &forgetful{call: upstreamReply{status: status, body: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"unknown tool","data":{"a":1}}}`}}
			url := mcptest.Serve(t, f)
			c := connect(t, serve(t, "--upstream", url))
			b := hostOf(t, connectCommand(t, "connect:"+url)...)
			const want = `"error":{"code":-32602,"message":"unknown tool","data":{"a":1}}`
			wantOdd(t, c.ask(oddCall(7, "odd", "")), 7, want)
			b.Say("%s", oddCall(7, "odd", ""))
			wantOdd(t, b.response("7"), 7, want)
			if f.begun() != 2 || f.runs.Load() != 2 {
				t.Errorf("%d sessions were begun, and %d calls made", f.begun(), f.runs.Load())
			}
			wantOdd(t, c.ask(oddCall(8, "even", "")), 8, "even")
		})
	}
}

// FAILURES 21: events of an upstream that are not messages are skipped, and a body that is compressed without a request for it is
// read. The call ends with its result.
func TestFailure21Noise(t *testing.T) {
	t.Parallel()
	const answer = `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"fine"}]}}`
	events := func(before ...string) upstreamReply {
		u := upstreamReply{status: 200, media: "text/event-stream"}
		for _, data := range append(before, answer) {
			u.body += "data: " + data + "\n\n"
		}
		return u
	}
	replies := map[string]upstreamReply{
		"data: ping":                events("ping"),
		"data: [DONE]":              events("[DONE]"),
		"data: {}":                  events("{}"),
		"data: nothing":             events(""),
		"data: HTML":                events("<html><body>please wait</body></html>"),
		"data: a JSON text":         events(`{"type":"heartbeat","time":1}`),
		"data: a number":            events("0"),
		"data: null":                events("null"),
		"another's answer":          events(`{"jsonrpc":"2.0","id":4711,"result":{}}`),
		"many heartbeats":           events("ping", "ping", "ping", "ping", "ping", "ping", "ping", "ping"),
		"a notification, id null":   events(`{"jsonrpc":"2.0","id":null,"method":"notifications/message","params":{"level":"info","data":"x"}}`),
		"a request, params null":    events(`{"jsonrpc":"2.0","id":5,"method":"ping","params":null}`),
		"a notice, params null":     events(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}`),
		"an event with a name":      {status: 200, media: "text/event-stream", body: "event: ping\ndata: {}\n\nevent: message\ndata: " + answer + "\n\n"},
		"a comment":                 {status: 200, media: "text/event-stream", body: ": hello\n\nretry: 10\n\ndata: " + answer + "\n\n"},
		"lines ended by CR":         {status: 200, media: "text/event-stream", body: "data: ping\r\rdata: " + answer + "\r\r"},
		"a mark before the stream":  {status: 200, media: "text/event-stream", body: "\xef\xbb\xbfdata: " + answer + "\n\n"},
		"Text/Event-Stream":         {status: 200, media: "Text/Event-Stream;charset=UTF-8", body: "data: " + answer + "\n\n"},
		"gzip, JSON":                {status: 200, packed: true, body: answer},
		"gzip, events":              {status: 200, packed: true, media: "text/event-stream", body: "data: ping\n\ndata: " + answer + "\n\n"},
		"a mark before the body":    {status: 200, body: "\xef\xbb\xbf" + answer},
		"a body of lines":           {status: 200, body: "\n\n  " + answer + "\n"},
		"a batch of one":            {status: 200, body: "[" + answer + "]"},
		"application/json, charset": {status: 200, media: "Application/JSON; charset=utf-8", body: answer},
		"201 with the answer":       {status: 201, body: answer},
		"text/plain with JSON":      {status: 200, media: "text/plain", body: answer},
		"no media type":             {status: 200, media: " ", body: answer},
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testlong.Part(t)
			f := &forgetful{call: reply}
			url := mcptest.Serve(t, f)
			c := connect(t, serve(t, "--upstream", url))
			b := hostOf(t, connectCommand(t, "connect:"+url)...)
			if name == "201 with the answer" || name == "text/plain with JSON" || name == "no media type" {
				// The specification does not allow this answer. It is read or refused.
				if got := c.ask(oddCall(7, "odd", "")); !strings.Contains(got, `"fine"`) && !strings.Contains(got, `"error"`) {
					t.Errorf("got %s", got)
				}
				return
			}
			wantOdd(t, c.ask(oddCall(7, "odd", "")), 7, `"fine"`)
			b.Say("%s", oddCall(7, "odd", ""))
			wantOdd(t, b.response("7"), 7, `"fine"`)
			if f.begun() != 2 || f.runs.Load() != 2 {
				t.Errorf("%d sessions were begun, and %d calls made", f.begun(), f.runs.Load())
			}
			wantOdd(t, c.ask(oddCall(8, "even", "")), 8, "even")
		})
	}
}

// FAILURES 21: an upstream that answers with a page of HTML, as gateways do, ends the call with an error that names the
// status, or the media type of a 200.
func TestFailure21HTML(t *testing.T) {
	t.Parallel()
	for status, says := range map[int]string{200: "text/html", 400: "HTTP 400", 403: "HTTP 403", 500: "HTTP 500", 502: "HTTP 502"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := &forgetful{call: upstreamReply{status: status, media: "text/html", body: "<html><title>Bad Gateway</title></html>"}}
			c := connect(t, serve(t, "--upstream", mcptest.Serve(t, f), "--upstream-wait", "1s"))
			began := time.Now()
			if got := c.ask(oddCall(7, "odd", "")); !strings.Contains(got, `"error"`) || !strings.Contains(got, `"id":7`) || !strings.Contains(got, says) {
				t.Errorf("got %s", got)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("after %v", took)
			}
			if n := f.runs.Load(); n != 1 && status < 500 {
				t.Errorf("%d calls were made", n)
			}
			wantOdd(t, c.ask(oddCall(8, "even", "")), 8, "even")
		})
	}
}
