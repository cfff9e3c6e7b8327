package client_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A forgetful server runs a request anew each time that it is sent, and counts its
// progress from 1. It cuts the connection in the middle of the first run.
type forgetful struct {
	ids    bool // events have ids, and the server forgets the session with the first run
	pair   bool // the server speaks HTTP+SSE
	mu     sync.Mutex
	runs   int
	opened int
	out    chan string // the events of HTTP+SSE; "" ends the connection
}

const forgetfulInit = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`

// run returns the events of the next run, and whether it is cut.
func (s *forgetful) run(id, token []byte) (events []string, cut bool) {
	s.mu.Lock()
	s.runs++
	run := s.runs
	s.mu.Unlock()
	for i := 1; i <= 2+run; i++ {
		event := fmt.Sprintf(`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":"run %d"}}`+"\n\n", token, i, run)
		if s.ids {
			event = fmt.Sprintf("id: %d-%d\n%s", run, i, event)
		}
		events = append(events, event)
	}
	if run == 1 {
		return events, true
	}
	return append(events, fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"run\":%d}}\n\n", id, run)), false
}

func (s *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, id, method := received(r)
	token := jsonrpc.Field(body, "params", "_meta", "progressToken")
	if s.pair {
		s.servePair(w, r, id, token, method)
		return
	}
	s.mu.Lock()
	if method == "initialize" {
		s.opened++
	}
	session := fmt.Sprint("s", s.opened)
	lost := s.ids && method != "initialize" && s.runs == 1 && r.Header.Get("Mcp-Session-Id") == "s1"
	s.mu.Unlock()
	switch {
	case lost:
		http.Error(w, "no such session", http.StatusNotFound)
	case method == "initialize":
		w.Header().Set("Content-Type", "application/json")
		if s.ids {
			w.Header().Set("Mcp-Session-Id", session)
		}
		fmt.Fprintf(w, forgetfulInit, id)
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case id == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("Content-Type", "text/event-stream")
		events, cut := s.run(id, token)
		fmt.Fprint(w, strings.Join(events, ""))
		if _ = http.NewResponseController(w).Flush(); cut {
			panic(http.ErrAbortHandler)
		}
	}
}

func (s *forgetful) servePair(w http.ResponseWriter, r *http.Request, id, token []byte, method string) {
	if r.Method == http.MethodGet {
		pour(w, r, "/messages", s.out)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	switch {
	case method == "initialize":
		s.out <- fmt.Sprintf(forgetfulInit, id)
	case id != nil:
		events, cut := s.run(id, token)
		for _, event := range events {
			s.out <- strings.TrimSpace(strings.TrimPrefix(event, "data: "))
		}
		if cut {
			s.out <- ""
		}
	}
}

// A request that runs again is one request to the host: its progress never decreases.
func TestProgressOfAnotherRun(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*forgetful{
		"sent again":     {},
		"session lost":   {ids: true},
		"another stream": {pair: true, out: make(chan string, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := client.Options{NoListen: true}
			if s.pair {
				opts.Transport = client.SSE
			}
			a := newRaw(t, mcptest.Serve(t, s), opts)
			a.open()
			a.send(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"_meta":{"progressToken":"p"},"name":"x"}}`)
			var heard []string
			answer := a.until(func(m jsonrpc.Message) bool {
				if m.Method == "notifications/progress" {
					heard = append(heard, string(jsonrpc.Field(m.Params, "progress")))
				}
				return m.Kind == jsonrpc.Response
			})
			if string(answer.Result) != `{"run":2}` {
				t.Errorf("answered %s", answer.Raw)
			}
			if got := strings.Join(heard, " "); got != "1 2 3 4" {
				t.Errorf("progress %s", got)
			}
		})
	}
}
