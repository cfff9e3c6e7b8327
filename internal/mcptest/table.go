package mcptest

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/jsonrpc"
)

// Answers is a server as a table of scripts: by method, or by tool under "tools/call NAME". Responses to its own requests have the key
// "response". Methods without a script have the answers of a server with these tools: initialize in the revision that the client asks
// for, tools/list, ping with an empty result, and for other requests an error.
type Answers map[string]Script

// Fixed returns a script that answers with a result.
func Fixed(result string) Script {
	return func(m jsonrpc.Message, _ func(string)) string { return Result(m, result) }
}

// Script is the server's [Script].
func (a Answers) Script(m jsonrpc.Message, say func(text string)) string {
	script := named(a, m, m.Method)
	switch {
	case script != nil:
		return script(m, say)
	case m.Kind != jsonrpc.Request:
		return ""
	case m.Method == "initialize":
		return Result(m, Welcome(m, `{"tools":{}}`))
	case m.Method == "tools/list":
		return Result(m, `{"tools":[`+strings.Join(a.tools(), ",")+`]}`)
	case m.Method == "ping":
		return Result(m, `{}`)
	}
	return Error(m, jsonrpc.CodeMethodNotFound, "no "+m.Method)
}

func (a Answers) tools() (all []string) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if tool, is := strings.CutPrefix(key, "tools/call "); is {
			all = append(all, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, tool))
		}
	}
	return all
}

// named returns the value in a table for a message: that of its tool, or else that of a method.
func named[T any](table map[string]T, m jsonrpc.Message, method string) T {
	if m.Kind == jsonrpc.Response {
		method = "response"
	}
	if of, has := table[method+" "+Tool(m)]; has {
		return of
	}
	return table[method]
}

// Tool returns the tool that a call names.
func Tool(m jsonrpc.Message) string { return jsonrpc.String(jsonrpc.Field(m.Params, "name")) }

// Welcome returns a result of initialize, in the revision that the client asks for, with the server's capabilities.
func Welcome(m jsonrpc.Message, capabilities string) string {
	revision := cmp.Or(jsonrpc.String(jsonrpc.Field(m.Params, "protocolVersion")), "2025-11-25")
	return fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":"mcptest","version":"1"}}`, revision, capabilities)
}

// Questions are the requests of a script to its client. The zero value is ready.
type Questions struct {
	mu      sync.Mutex
	waiting map[string]chan jsonrpc.Message // by the ids of the requests
	asked   int
}

// Ask makes a request, and returns the response; if none comes within a minute, an empty message.
func (q *Questions) Ask(say func(text string), method, params string) (response jsonrpc.Message) {
	answer := make(chan jsonrpc.Message, 1)
	q.mu.Lock()
	if q.waiting == nil {
		q.waiting = make(map[string]chan jsonrpc.Message)
	}
	q.asked++
	id := fmt.Sprint("question-", q.asked)
	q.waiting[id] = answer
	q.mu.Unlock()
	say(Request(id, method, params))
	select {
	case response = <-answer:
	case <-time.After(time.Minute):
	}
	return response
}

// Answered is the [Script] of the responses.
func (q *Questions) Answered(m jsonrpc.Message, _ func(string)) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := jsonrpc.String(m.ID)
	if answer := q.waiting[id]; answer != nil {
		delete(q.waiting, id)
		answer <- m
	}
	return ""
}

// Does answers an HTTP request with a message. m is empty if the body is not a message.
type Does = func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message)

// Methods is a server over HTTP as a table of functions: for a message by the keys of [Answers], for a request without a message by
// its HTTP method, such as GET. "*" is for all others except initialize, notifications and DELETE. Requests without a function get the
// answers of a server that answers with JSON: it refuses GET, and the result of a request is empty.
type Methods map[string]Does

// ServeHTTP implements [http.Handler]. If the body of a request breaks off, the connection is cut.
func (s Methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	m, err := jsonrpc.Parse(body)
	method := m.Method
	if err != nil {
		m, method = jsonrpc.Message{}, r.Method
	}
	do := named(s, m, method)
	if do == nil && method != "initialize" && method != http.MethodDelete && m.Kind != jsonrpc.Notification {
		do = s["*"]
	}
	switch {
	case do != nil:
		do(w, r, m)
	case method == http.MethodDelete:
	case err != nil:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case m.Kind != jsonrpc.Request:
		w.WriteHeader(http.StatusAccepted)
	case method == "initialize":
		JSON(w, Result(m, Welcome(m, `{}`)))
	default:
		JSON(w, Result(m, `{}`))
	}
}

// Greet returns a function that answers initialize, with the id of a session.
func Greet(session string) Does {
	return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		w.Header().Set("Mcp-Session-Id", session)
		JSON(w, Result(m, Welcome(m, `{}`)))
	}
}

// JSON answers with a message.
func JSON(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, message)
}
