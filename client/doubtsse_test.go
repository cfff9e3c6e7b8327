package client_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A loserSSE serves HTTP+SSE. It refuses messages at the endpoint of a session that it does not know any more, though
// the session's stream is open.
type loserSSE struct {
	status int
	text   string

	mu      sync.Mutex
	said    map[string]chan string // the messages for each session's stream
	known   string                 // the session that the server knows
	refuses func(method string) bool
	seen    map[string]int
	runs    int
}

func (f *loserSSE) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		said := make(chan string, 100)
		f.mu.Lock()
		id := fmt.Sprint("s", len(f.said))
		f.said[id], f.known = said, id
		f.seen["GET"]++
		f.mu.Unlock()
		pour(w, r, "/?sessionId="+id, said)
		return
	}
	_, id, method := received(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[method]++
	session := r.URL.Query().Get("sessionId")
	if session != f.known || f.refuses != nil && f.refuses(method) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(f.status)
		fmt.Fprint(w, f.text)
		return
	}
	switch {
	case id == nil:
	case method == "initialize":
		f.said[session] <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`, id)
	default:
		if method == "tools/call" {
			f.runs++
		}
		f.said[session] <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	}
	w.WriteHeader(http.StatusAccepted)
}

// forget lets the server forget its session, or refuse some of its messages.
func (f *loserSSE) forget(session bool, refuses func(method string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses = refuses; session {
		f.known = "none"
	}
	clear(f.seen)
}

// Over HTTP+SSE, when the endpoint refuses a session, the client begins another session over another stream, and the call
// runs once. A message that is refused for its own sake ends no session, and neither does a server that refuses all messages.
func TestEndpointForgets(t *testing.T) {
	t.Parallel()
	for status, text := range map[int]string{400: "No transport found for sessionId", 401: "who?", 404: "Could not find session", 410: "", 422: "", 500: "oops", 503: "no"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := &loserSSE{status: status, text: text, said: make(map[string]chan string), seen: make(map[string]int)}
			r := newRaw(t, mcptest.Serve(t, f), client.Options{Transport: client.SSE, Silence: 300 * time.Millisecond}) // a 5xx is retried for this time
			r.open()
			call := func(id int) jsonrpc.Message {
				r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
				return r.answer(fmt.Sprint(id))
			}
			call(1)
			f.forget(true, nil)
			m := call(2)
			f.mu.Lock()
			if m.Error != nil || f.runs != 2 || f.seen["initialize"] > 1 || f.seen["GET"] > 2 {
				t.Errorf("it is %s after %d runs, and the server got %v", m.Raw, f.runs, f.seen)
			}
			f.mu.Unlock()
			if m := call(3); m.Error != nil {
				t.Errorf("the next one is %s", m.Raw)
			}
			f.forget(false, func(method string) bool { return method == "tools/call" })
			for id := range 5 {
				if m := call(id + 4); m.Error == nil {
					t.Errorf("a refused one is %s", m.Raw)
				}
			}
			f.mu.Lock()
			if f.seen["ping"] > 1 || f.seen["GET"] > 0 {
				t.Errorf("the server got %v", f.seen)
			}
			f.mu.Unlock()
		})
	}
}
