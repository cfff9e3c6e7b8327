package holdfast_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/client"
	"holdfast/internal/bridge"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A slowServer has tools that take as long as their argument says.
type slowServer struct {
	ran atomic.Int32
	end chan struct{} // closed: all its tools end
}

// pause waits for a time.
func (s *slowServer) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.end:
	}
}

func (s *slowServer) Serve(x *message.Exchange) {
	switch {
	case x.Kind != jsonrpc.Request:
	case x.Method == "initialize":
		x.Result([]byte(`{"protocolVersion":` + string(jsonrpc.Field(x.Params, "protocolVersion")) + `,"capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}`))
	case x.Method == "tools/list":
		x.Result([]byte(`{"tools":[{"name":"build","inputSchema":{"type":"object"}},{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},` +
			`{"name":"shaped","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}},{"name":"steps","inputSchema":{"type":"object"}}]}`))
	case x.Method == "tools/call":
		s.ran.Add(1)
		name := jsonrpc.String(jsonrpc.Field(x.Params, "name"))
		d, _ := time.ParseDuration(jsonrpc.String(jsonrpc.Field(x.Params, "arguments", "for")))
		every, _ := time.ParseDuration(jsonrpc.String(jsonrpc.Field(x.Params, "arguments", "every")))
		token := string(jsonrpc.Field(x.Params, "_meta", "progressToken"))
		go func() {
			for n := 1; name == "steps" && d > every; n, d = n+1, d-every {
				s.pause(every)
				x.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":10,"message":"step %d"}`, token, n-1, n))
			}
			s.pause(d)
			x.Result([]byte(`{"content":[{"type":"text","text":"built"}],"structuredContent":{"built":true}}`))
		}()
	default:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "method not found"))
	}
}

// A hostKind describes the observed behaviour of a host.
type hostKind struct {
	name    string
	modern  bool
	limit   time.Duration
	extends bool   // progress extends its limit
	token   bool   // its requests have a progress token
	shows   string // the part of a result that its model sees: "structured" if there is that part, or "text"
	loops   int    // after how many equal calls in a row it stops; 0: never
}

var seen = map[string]hostKind{
	"claude":   {name: "claude-code", limit: 300 * time.Second, token: true, shows: "structured"},
	"claude-m": {name: "claude-code", modern: true, limit: 300 * time.Second, token: true, shows: "structured"},
	"copilot":  {name: "github-copilot-developer", limit: 180 * time.Second, extends: true, token: true, shows: "text"},
	"gemini":   {name: "gemini-cli-mcp-client", limit: 400 * time.Second, token: true, shows: "text", loops: 5},
	"opencode": {name: "opencode", limit: 60 * time.Second, extends: true, token: true, shows: "text"},
	"codex":    {name: "codex-mcp-client", limit: 300 * time.Second, token: true, shows: "structured"},
	"goose":    {name: "goose", limit: 300 * time.Second, token: true, shows: "text"},
	"qwen":     {name: "qwen-code-mcp-client", limit: 300 * time.Second, token: true, shows: "text", loops: 5},
	"cline":    {name: "@cline/core", limit: 60 * time.Second, shows: "text", loops: 5},
	"continue": {name: "continue-cli-client", limit: 60 * time.Second, shows: "text"},
	"sdk":      {name: "my-client", limit: 60 * time.Second, token: true, shows: "text"},
	"sdk-m":    {name: "my-client", modern: true, limit: 60 * time.Second, token: true, shows: "text"},
	"mute":     {name: "opencode", limit: 60 * time.Second, extends: true, shows: "text"},
}

// A scriptedHost talks to a handler as one of the hosts.
type scriptedHost struct {
	t    *testing.T
	is   hostKind
	send func(raw string)
	said chan jsonrpc.Message
	ids  int
	told []jsonrpc.Message // the progress of the last call
	gaps []time.Duration   // the times between its messages
	had  map[string]int    // the number of calls in a row
	last string
}

// openHost opens a connection of a host over a transport.
func openHost(t *testing.T, h *holdfast.Handler, is hostKind, transport string) *scriptedHost {
	s := &scriptedHost{t: t, is: is, said: make(chan jsonrpc.Message, 10_000)}
	switch transport {
	case "pipes":
		s.pipes(conn(t, h))
	case "connect":
		hc := mcptest.ServePipes(t, h)
		s.pipes(func(in io.Reader, out io.Writer) error {
			return bridge.Run(context.WithoutCancel(t.Context()), "http://127.0.0.1/mcp", in, out, &bridge.Options{
				Client: client.Options{HTTPClient: hc, Logger: slog.New(slog.DiscardHandler), NoListen: true}, TaskAfter: 2 * time.Second,
			})
		})
	case "post":
		s.post(mcptest.ServePipes(t, h))
	default:
		c := dialed(t, h, transport, nil)
		go func() {
			for {
				m, err := c.Receive(context.WithoutCancel(t.Context()))
				if err != nil {
					return
				}
				s.said <- m
			}
		}()
		s.send = func(raw string) {
			if err := c.Send(t.Context(), mcptest.Parse(raw)); err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if !is.modern {
		version := "2025-11-25"
		if transport == "pair" {
			version = "2024-11-05"
		}
		s.ask("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":%q,"version":"1"}}`, version, is.name), time.Minute)
		s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	return s
}

func (s *scriptedHost) hear(raw []byte) {
	if m, err := jsonrpc.Parse(raw); err == nil {
		s.said <- m
	}
}

// conn returns a function that serves a connection with a handler.
func conn(t *testing.T, h *holdfast.Handler) func(io.Reader, io.Writer) error {
	return func(in io.Reader, out io.Writer) error {
		return h.ServeConn(context.WithoutCancel(t.Context()), in, out)
	}
}

// pipes connects the host over pipes.
func (s *scriptedHost) pipes(serve func(io.Reader, io.Writer) error) {
	say, said := mcptest.Duplex(s.t, serve)
	go func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			s.hear(bytes.Clone(lines.Bytes()))
		}
	}()
	s.send = func(raw string) { _, _ = io.WriteString(say, raw+"\n") }
}

// post lets the host send each message as a POST.
func (s *scriptedHost) post(hc *http.Client) {
	session := ""
	var work sync.WaitGroup
	s.t.Cleanup(work.Wait)
	s.send = func(raw string) {
		m := mcptest.Parse(raw)
		c := &mcptest.Client{URL: "http://127.0.0.1/mcp", Session: session, HTTP: hc}
		if s.is.modern {
			c.Header = []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", m.Method, "Mcp-Name", jsonrpc.String(jsonrpc.Field(m.Params, "name"))}
		}
		answered := make(chan struct{})
		work.Go(func() {
			var once sync.Once
			defer once.Do(func() { close(answered) })
			res, err := c.Send(s.t.Context(), http.MethodPost, raw) //nolint:bodyclose // Hear closes it
			if err != nil {
				return
			}
			if id := res.Header.Get("Mcp-Session-Id"); id != "" {
				session = id
			}
			if m.Method != "tools/call" {
				defer once.Do(func() { close(answered) })
			} else {
				once.Do(func() { close(answered) })
			}
			mcptest.Hear(res, s.hear)
		})
		if m.Method != "tools/call" {
			<-answered
		}
	}
}

// ask makes a request, and gives it up as the host does. ok says that the response came in time.
func (s *scriptedHost) ask(method, params string, limit time.Duration) (response jsonrpc.Message, ok bool) {
	s.ids++
	meta := []string{}
	if s.is.token && method == "tools/call" {
		meta = append(meta, fmt.Sprintf(`"progressToken":%d`, s.ids))
	}
	if s.is.modern {
		meta = append(meta, `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`,
			fmt.Sprintf(`"io.modelcontextprotocol/clientInfo":{"name":%q,"version":"1"}`, s.is.name))
	}
	if len(meta) > 0 {
		params = strings.TrimSuffix(params, "}")
		if params != "{" {
			params += ","
		}
		params += `"_meta":{` + strings.Join(meta, ",") + "}}"
	}
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.ids, method, params))
	s.told, s.gaps = nil, nil
	at := time.Now()
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case m := <-s.said:
			switch {
			case m.Kind == jsonrpc.Response && string(m.ID) == fmt.Sprint(s.ids):
				s.gaps = append(s.gaps, time.Since(at))
				return m, true
			case m.Method == "notifications/progress" && string(jsonrpc.Field(m.Params, "progressToken")) == fmt.Sprint(s.ids):
				s.told, s.gaps, at = append(s.told, m), append(s.gaps, time.Since(at)), time.Now()
				if s.is.extends {
					t.Reset(limit)
				}
			}
		case <-t.C:
			return response, false
		}
	}
}

// call lets the model call a tool, and follow the instructions in the results, until it has the tool's own result. answers has the results before that.
func (s *scriptedHost) call(name, arguments string) (result string, answers []string) {
	for len(answers) < 50 {
		if is := name + arguments; is != s.last {
			s.last, s.had = is, map[string]int{}
		}
		if s.had[s.last]++; s.is.loops > 0 && s.had[s.last] >= s.is.loops {
			s.t.Fatalf("the host sees a loop: %s %s", name, arguments)
		}
		m, ok := s.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, arguments), s.is.limit)
		if !ok {
			s.t.Fatalf("the host gives up %s %s; it had %d messages", name, arguments, len(s.gaps))
		}
		next := s.next(&m)
		if next == nil {
			return string(jsonrpc.Field(m.Raw, "result")), answers
		}
		answers = append(answers, string(m.Raw))
		args, _ := json.Marshal(next.Arguments)
		name, arguments = next.Tool, string(args)
	}
	s.t.Fatal("there is no end")
	return "", nil
}

type nextCall struct {
	Tool      string
	Arguments map[string]any
}

// next returns the call that the host's model is told to make, in the part that it sees; nil: none.
func (s *scriptedHost) next(m *jsonrpc.Message) (next *nextCall) {
	shown := jsonrpc.Field(m.Raw, "result", "structuredContent")
	var texts []struct{ Text string }
	_ = json.Unmarshal(jsonrpc.Field(m.Raw, "result", "content"), &texts)
	text := ""
	if len(texts) > 0 {
		text = texts[0].Text
	}
	if s.is.shows == "structured" && shown != nil {
		text = jsonrpc.String(jsonrpc.Field(shown, "text"))
	}
	before, rest, ok := strings.Cut(text, "call holdfast_wait with the arguments ")
	if !ok {
		return nil
	}
	if strings.Contains(before, "has called") || !strings.Contains(before, "still running") {
		s.t.Errorf("a model is not told that the call runs: %s", m.Raw)
	}
	next = &nextCall{Tool: "holdfast_wait"}
	if err := json.NewDecoder(strings.NewReader(rest)).Decode(&next.Arguments); err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	return next
}

// inBubble serves a slow server in a bubble in which time passes by itself.
func inBubble(t *testing.T, o holdfast.Options, do func(t *testing.T, h *holdfast.Handler, server *slowServer)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{end: make(chan struct{})}
		o.Eras, o.KeepAlive, o.Logger = holdfast.ErasBoth, time.Minute, slog.New(slog.DiscardHandler)
		h := holdfast.NewBackendHandler(message.New(server), &o)
		t.Cleanup(func() {
			ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
			defer stop()
			close(server.end)
			_ = h.Shutdown(ctx)
		})
		do(t, h, server)
	})
}

var auto = holdfast.Options{HandoffAfter: holdfast.Auto, ProgressEvery: holdfast.Auto}

// Each host gets the result of a call that takes 20 minutes, once, whatever time it waits for an answer.
func TestHostsWait(t *testing.T) {
	t.Parallel()
	for name, is := range seen {
		for _, transport := range []string{"post", "pipes", "connect", "websocket", "pair"} {
			if is.modern && (transport == "websocket" || transport == "pair") {
				continue
			}
			for _, tool := range []string{"build", "read", "shaped"} {
				if tool != "build" && transport != "post" {
					continue
				}
				t.Run(name+", "+transport+", "+tool, func(t *testing.T) {
					inBubble(t, auto, func(t *testing.T, h *holdfast.Handler, server *slowServer) {
						s := openHost(t, h, is, transport)
						if m, _ := s.ask("tools/list", "{}", time.Minute); !strings.Contains(string(m.Raw), `"holdfast_wait"`) || !strings.Contains(string(m.Raw), `"seen"`) {
							t.Errorf("listed: %s", m.Raw)
						}
						began := time.Now()
						result, answers := s.call(tool, `{"for":"20m"}`)
						if !strings.Contains(result, `{"built":true}`) || strings.Contains(result, "isError") || server.ran.Load() != 1 {
							t.Errorf("it ran %d times: %s", server.ran.Load(), result)
						}
						if took := time.Since(began); took < 20*time.Minute || took > 20*time.Minute+time.Second {
							t.Errorf("it took %v", took)
						}
						kept := is.extends && is.token
						if kept != (len(answers) == 0) || !kept && len(s.told) > 0 {
							t.Errorf("%d answers before the result, and %d progress notifications at the end", len(answers), len(s.told))
						}
						if tool == "shaped" && !kept && (!strings.Contains(answers[0], `"isError":true`) || strings.Contains(answers[0], "structuredContent")) {
							t.Errorf("a tool with an outputSchema: %s", answers[0])
						}
						if n := len(s.told); kept && n != 20*60/15-1 && n != 20*60/15 { // the last notification comes with the result, or is too late
							t.Errorf("%d progress notifications", len(s.told))
						}
					})
				})
			}
		}
	}
}

// A call is handed off ten seconds before a known host gives up. From an unknown host it is handed off after 40 s, if the host has listed our tools.
func TestHandOffWhen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		is      hostKind
		unheard bool
		never   bool
		want    time.Duration
	}{
		"claude":                  {seen["claude"], false, false, 290 * time.Second},
		"claude, not listed":      {seen["claude"], true, false, 290 * time.Second},
		"gemini":                  {seen["gemini"], false, false, 390 * time.Second},
		"cline":                   {seen["cline"], false, false, 50 * time.Second},
		"any":                     {seen["sdk"], false, false, 40 * time.Second},
		"any, modern":             {seen["sdk-m"], false, false, 40 * time.Second},
		"any, not listed":         {seen["sdk"], true, false, 0},
		"any, modern, not listed": {seen["sdk-m"], true, false, 0},
		"never":                   {seen["claude"], false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := auto
			if c.never {
				o.HandoffAfter = -1
			}
			inBubble(t, o, func(t *testing.T, h *holdfast.Handler, _ *slowServer) {
				s := openHost(t, h, c.is, "post")
				if !c.unheard {
					m, _ := s.ask("tools/list", "{}", time.Minute)
					if strings.Contains(string(m.Raw), "holdfast_wait") == c.never {
						t.Errorf("listed: %s", m.Raw)
					}
				}
				m, _ := s.ask("tools/call", `{"name":"build","arguments":{"for":"1h"}}`, 2*time.Hour)
				if c.want == 0 {
					if !strings.Contains(string(m.Raw), "built") || s.gaps[0] != time.Hour {
						t.Errorf("after %v: %s", s.gaps, m.Raw)
					}
				} else if s.gaps[0] != c.want || !strings.Contains(string(m.Raw), `"status":"working"`) {
					t.Errorf("after %v, want %v: %s", s.gaps, c.want, m.Raw)
				}
			})
		})
	}
}

// Behind a Holdfast that merges servers, and gives their tools a prefix, another Holdfast hands no call off: its handle would be useless.
func TestHandOffBehindPrefix(t *testing.T) {
	inBubble(t, auto, func(t *testing.T, _ *holdfast.Handler, _ *slowServer) {
		var got atomic.Value
		o := auto
		o.Logger = slog.New(slog.DiscardHandler)
		h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
			switch x.Method {
			case "initialize":
				x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"m","version":"1"}}`))
			case "tools/list":
				x.Result([]byte(`{"tools":[{"name":"a_build","inputSchema":{"type":"object"}},{"name":"a_holdfast_wait","inputSchema":{"type":"object"}}]}`))
			case "tools/call":
				got.Store(string(jsonrpc.Field(x.Params, "_meta", "holdfast/handoff")))
				x.Result([]byte(`{"content":[]}`))
			}
		})), &o)
		defer func() { _ = h.Shutdown(t.Context()) }()
		s := openHost(t, h, seen["claude"], "post")
		if m, _ := s.ask("tools/list", "{}", time.Minute); !strings.Contains(string(m.Raw), `"holdfast_wait"`) {
			t.Errorf("listed: %s", m.Raw)
		}
		s.ask("tools/call", `{"name":"a_build","arguments":{}}`, time.Minute)
		if got.Load() != "false" {
			t.Errorf("the server is told %v", got.Load())
		}
	})
}

// Our progress comes between the server's own. The values grow, the total is the server's, and we send none while the server sends enough itself.
func TestProgressBetween(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"post", "pipes", "websocket", "pair"} {
		for every, ours := range map[string]int{"40s": 2, "5s": 0} {
			for _, o := range []holdfast.Options{auto, {ProgressEvery: 15 * time.Second}} {
				t.Run(fmt.Sprint(transport, ", ", every, ", ", o.HandoffAfter == holdfast.Auto), func(t *testing.T) {
					inBubble(t, o, func(t *testing.T, h *holdfast.Handler, _ *slowServer) {
						is := seen["opencode"]
						if o.HandoffAfter == 0 {
							is.name = "any"
						}
						s := openHost(t, h, is, transport)
						m, _ := s.ask("tools/call", fmt.Sprintf(`{"name":"steps","arguments":{"for":"3m","every":%q}}`, every), is.limit)
						if !strings.Contains(string(m.Raw), "built") {
							t.Fatalf("%s", m.Raw)
						}
						last, own, between := -1.0, 0, 0
						for _, p := range s.told {
							var said struct {
								Progress, Total float64
								Message         string
							}
							if err := json.Unmarshal(p.Params, &said); err != nil || said.Progress <= last {
								t.Errorf("%v after %v: %s, %v", said.Progress, last, p.Raw, err)
							}
							last = said.Progress
							switch want := fmt.Sprintf("step %d", own+1); {
							case said.Message == want:
								own, between = own+1, 0
								if off := said.Progress - float64(own-1); said.Total != 10 || off < 0 || off > 1e-6 {
									t.Errorf("the server's: %s", p.Raw)
								}
							case own > 0 && (said.Total != 10 || said.Message != fmt.Sprintf("step %d", own)), own == 0 && (said.Message != "still running" || said.Total != 0):
								t.Errorf("ours after %d: %s", own, p.Raw)
							default:
								if between++; between > ours {
									t.Errorf("too many of ours: %s", p.Raw)
								}
							}
						}
						if n := len(s.told); own < 4 || ours == 0 && n != own || ours > 0 && n < own+4*ours {
							t.Errorf("%d, of which %d are the server's", n, own)
						}
						for _, gap := range s.gaps {
							if gap > 15*time.Second {
								t.Errorf("silence of %v", gap)
							}
						}
					})
				})
			}
		}
	}
}

// Without a token, or from a host that is not known to wait longer for progress, a call gets none of ours. With a duration, each call with a token gets it.
func TestProgressFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		is   hostKind
		o    holdfast.Options
		want int
	}{
		"opencode, auto":     {seen["opencode"], holdfast.Options{ProgressEvery: holdfast.Auto}, 3},
		"opencode, never":    {seen["opencode"], holdfast.Options{}, 0},
		"claude, auto":       {seen["claude"], holdfast.Options{ProgressEvery: holdfast.Auto}, 0},
		"claude, 10s":        {seen["claude"], holdfast.Options{ProgressEvery: 10 * time.Second}, 5},
		"claude-m, 10s":      {seen["claude-m"], holdfast.Options{ProgressEvery: 10 * time.Second}, 5},
		"no token, 10s":      {seen["cline"], holdfast.Options{ProgressEvery: 10 * time.Second}, 0},
		"stateless, 10s":     {seen["claude-m"], holdfast.Options{ProgressEvery: 10 * time.Second, Stateless: true}, 5},
		"JSON answers, auto": {seen["opencode"], holdfast.Options{ProgressEvery: holdfast.Auto, Response: holdfast.ResponseJSON}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.o, func(t *testing.T, h *holdfast.Handler, _ *slowServer) {
				s := openHost(t, h, c.is, "post")
				m, _ := s.ask("tools/call", `{"name":"build","arguments":{"for":"55s"}}`, time.Hour)
				if len(s.told) != c.want || !strings.Contains(string(m.Raw), "built") {
					t.Errorf("%d progress notifications, want %d: %s", len(s.told), c.want, m.Raw)
				}
			})
		})
	}
}
