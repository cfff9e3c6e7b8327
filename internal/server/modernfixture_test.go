package server_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// toolbox is a backend for modern requests. The results of its tools name the conversation in which they ran:
//
//	who   answers
//	hold  waits for release
//	ask   asks the client, and answers with the text of its answer
//	ask2  asks the client twice
//	later waits for release, and asks the client then
type toolbox struct {
	backend.Backend // hands the messages to Serve

	mu        sync.Mutex
	opened    map[backend.Sink]int         // the number of each conversation
	keys      map[string]string            // the argument "key", by the number of the conversation and the id of the request
	held      map[string]func(text string) // by the argument "key"
	ran       map[string]int               // the same
	cancelled map[string]int               // the same
	answers   map[string]func(jsonrpc.Message)
	asked     int
	tells     []string        // notifications that each listen gets
	muted     map[string]bool // by the argument "key": calls that take the client's input, and do not end
}

func newToolbox() *toolbox {
	b := &toolbox{
		opened: make(map[backend.Sink]int), keys: make(map[string]string),
		held: make(map[string]func(string)), ran: make(map[string]int), cancelled: make(map[string]int),
		answers: make(map[string]func(jsonrpc.Message)), muted: make(map[string]bool),
	}
	b.Backend = message.New(b)
	return b
}

func (b *toolbox) Eras() backend.Eras { return backend.Both }

func (b *toolbox) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened[sink] = len(b.opened) + 1
	return b.Backend.Open(ctx, start, sink)
}

func (b *toolbox) Serve(x *message.Exchange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.opened[x.Sink]
	switch {
	case x.Method == "tools/list":
		x.Result([]byte(`{"tools":[{"name":"who"},{"name":"hold"},{"name":"ask"}]}`))
	case x.Method == "notifications/cancelled":
		b.cancelled[b.keys[fmt.Sprintf("%d %s", n, jsonrpc.Field(x.Params, "requestId"))]]++
	case x.Kind == jsonrpc.Response:
		if answer := b.answers[string(x.ID)]; answer != nil {
			delete(b.answers, string(x.ID))
			go answer(x.Message)
		}
	case x.Method == "subscriptions/listen":
		all := append([]string{`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{}}}`}, b.tells...)
		go func() {
			for _, text := range all {
				x.Sink.Emit(x.Call, mcptest.Parse(text))
			}
		}()
	case x.Kind == jsonrpc.Request && x.Method != "tools/call":
		x.Error(jsonrpc.Errorf(codeMethod, "no %s", x.Method))
	case x.Kind == jsonrpc.Request:
		key := jsonrpc.String(jsonrpc.Field(x.Params, "arguments", "key"))
		b.ran[key]++
		b.keys[fmt.Sprintf("%d %s", n, x.ID)] = key
		b.call(x, key, func(text string) { x.Result(result(fmt.Sprintf("%s in %d", text, n))) })
	}
}

// call begins a call. say ends it. b.mu is held.
func (b *toolbox) call(x *message.Exchange, key string, say func(text string)) {
	name := jsonrpc.String(jsonrpc.Field(x.Params, "name"))
	switch name {
	case "hold":
		b.held[key] = say
	case "later":
		b.held[key] = func(string) { b.ask(x, nil) }
	case "ask", "ask2":
		b.held[key] = say
		open := map[string]int{"ask": 1, "ask2": 2}[name]
		for range open {
			go b.ask(x, func(m jsonrpc.Message) {
				b.mu.Lock()
				open--
				ends := open == 0 && !b.muted[key]
				b.mu.Unlock()
				if ends {
					say("answered " + string(m.Result))
				}
			})
		}
	default:
		go say(key)
	}
}

// ask sends a question to the client of a call. answered gets the answer; nil: it has no effect.
func (b *toolbox) ask(x *message.Exchange, answered func(jsonrpc.Message)) {
	b.mu.Lock()
	b.asked++
	id := fmt.Sprintf(`"q%d"`, b.asked)
	b.answers[id] = answered
	b.mu.Unlock()
	x.Request([]byte(id), "elicitation/create", []byte(`{"message":"?"}`))
}

// count returns the number in a map of b for a key.
func (b *toolbox) count(of *map[string]int, key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return (*of)[key]
}

// release ends a held call.
func (b *toolbox) release(key string) {
	b.mu.Lock()
	say := b.held[key]
	b.mu.Unlock()
	say("released")
}

// mute lets a call go on after it has got the client's input.
func (b *toolbox) mute(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.muted[key] = true
}

// A bubble is a handler without a network, for tests in a bubble of synctest.
type bubble struct {
	*server.Handler
	t        *testing.T
	tools    *toolbox
	sessions *session.Manager
}

// inBubble runs a test with a handler that takes the principal from the header "Who", unless c says otherwise.
func inBubble(t *testing.T, c config, do func(*testing.T, *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c.session.Logger = slog.New(slog.DiscardHandler)
		c.server.Logger = c.session.Logger
		store, tools := memory.New(c.memory), newToolbox()
		var over stream.Store = store
		if c.store != nil {
			over = c.store(store)
		}
		b := &bubble{t: t, tools: tools, sessions: session.NewManager(over, tools, c.session)}
		c.manage(b.sessions)
		if c.server.Principal == nil {
			c.server.Principal = func(r *http.Request) string { return r.Header.Get("Who") }
		}
		b.Handler = server.New(c.server)
		defer func() {
			b.sessions.Close()
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}()
		do(t, b)
	})
}

// A wish is a modern request.
type wish struct {
	who    string // the principal
	token  string // in the Authorization header
	from   string // the client's address
	id     string // as JSON; "c1" if empty
	method string // tools/call if empty
	params string // as JSON
	info   string // clientInfo, as JSON
	caps   string // clientCapabilities, as JSON; {} if empty
	key    string // the idempotency key
}

// tool returns the params of a call.
func tool(name, key string) string {
	return fmt.Sprintf(`{"name":%q,"arguments":{"key":%q}}`, name, key)
}

// with adds members to params.
func with(params string, more string) string {
	return strings.TrimSuffix(params, "}") + "," + more + "}"
}

// request returns the HTTP request.
func (a wish) request(ctx context.Context) *http.Request {
	a.id, a.method, a.caps = cmp.Or(a.id, `"c1"`), cmp.Or(a.method, "tools/call"), cmp.Or(a.caps, "{}")
	meta := `{` + metaVersion + `}`
	set := func(to, value string, path ...string) string {
		text, _ := jsonrpc.Set([]byte(to), []byte(value), path...)
		return string(text)
	}
	meta = set(meta, a.caps, "io.modelcontextprotocol/clientCapabilities")
	if a.info != "" {
		meta = set(meta, a.info, "io.modelcontextprotocol/clientInfo")
	}
	params := set(a.params, meta, "_meta")
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, a.id, a.method, params)
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(body))
	r.Header = http.Header{
		"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "Who": {a.who},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {a.method},
	}
	for _, field := range []string{"name", "uri", "taskId"} {
		if name := jsonrpc.String(jsonrpc.Field([]byte(params), field)); name != "" {
			r.Header["Mcp-Name"] = []string{name}
		}
	}
	if a.key != "" {
		r.Header["Idempotency-Key"] = []string{fmt.Sprintf("%q", a.key)}
	}
	if a.token != "" {
		r.Header["Authorization"] = []string{"Bearer " + a.token}
	}
	if a.from != "" {
		r.RemoteAddr = a.from + ":1"
	}
	return r
}

// do makes a request, and returns its answer.
func (b *bubble) do(a wish) reply {
	b.t.Helper()
	_, answer := b.begin(a)
	return <-answer
}

// begin begins a request. leave makes its client leave, and answer gets the answer when the handler returns.
func (b *bubble) begin(a wish) (leave context.CancelFunc, answer <-chan reply) {
	b.t.Helper()
	ctx, leave := context.WithCancel(b.t.Context())
	come := make(chan reply, 1)
	go func() {
		w := httptest.NewRecorder()
		b.ServeHTTP(w, a.request(ctx))
		come <- reply{status: w.Code, header: w.Header(), body: w.Body.Bytes(), whole: true}
	}()
	return leave, come
}

// text returns the text in a tool's result, or the whole response if it is none.
func (a reply) text() string {
	var content []struct{ Text string }
	if json.Unmarshal(jsonrpc.Field([]byte(a.response()), "result", "content"), &content) == nil && len(content) == 1 {
		return content[0].Text
	}
	return a.response()
}

// code returns the code of the error in an answer, or 0.
func (a reply) code() (code int) {
	_ = json.Unmarshal(jsonrpc.Field([]byte(a.response()), "error", "code"), &code)
	return code
}

// state returns the requestState of an InputRequiredResult, and the members for a retry that
// answers its questions.
func (a reply) state(t *testing.T) (state, retry string) {
	t.Helper()
	result := jsonrpc.Field([]byte(a.response()), "result")
	state = jsonrpc.String(jsonrpc.Field(result, "requestState"))
	if state == "" || jsonrpc.String(jsonrpc.Field(result, "resultType")) != "input_required" {
		t.Fatalf("it asks for nothing: %d %s", a.status, a.body)
	}
	return state, answering(result, state)
}

// answering returns the members of a retry that answers the questions in a result.
func answering(result []byte, state string) string {
	responses := []byte(`{}`)
	jsonrpc.Each(jsonrpc.Field(result, "inputRequests"), func(name, _ []byte) {
		responses, _ = jsonrpc.Set(responses, []byte(`{"action":"accept"}`), string(bytes.Clone(name)))
	})
	return fmt.Sprintf(`"requestState":%q,"inputResponses":%s`, state, responses)
}
