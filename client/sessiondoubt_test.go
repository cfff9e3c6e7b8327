package client_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A loser is a server that has sessions, and refuses some requests in a form that the test sets.
type loser struct {
	status int
	form   string // the form of a refusal's body: see forms

	mu       sync.Mutex
	sessions int             // how many sessions were begun
	known    map[string]bool // the sessions that the server knows
	mode     string          // lost: requests in unknown sessions are refused; all: all requests are; tool: tool calls are, after they ran
	runs     int
	seen     map[string]int           // requests since the mode was set, by method
	streams  chan struct{}            // closed to end the open streams
	text     string                   // the text of refusals
	refuses  func(method string) bool // refused requests in known sessions; nil: none
	pings    string                   // taken: answered in unknown sessions, too; refused: in all sessions; "": as other requests
}

// forms are the bodies of refusals. ID stands for the id of the request.
var forms = map[string][2]string{
	"JSON with the id":    {"application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"TEXT"}}`},
	"JSON, id null":       {"application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"TEXT"}}`},
	"JSON without an id":  {"application/json", `{"jsonrpc":"2.0","error":{"code":-32001,"message":"TEXT"}}`},
	"JSON of another one": {"application/json", `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"TEXT"}}`},
	"other JSON":          {"application/json", `{"error":"TEXT"}`},
	"an event":            {"text/event-stream", "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{\"code\":-32000,\"message\":\"TEXT\"}}\n\n"},
	"text":                {"text/plain; charset=utf-8", "TEXT"},
	"a page":              {"text/html", "<!doctype html><title>TEXT</title>"},
	"nothing":             {"", ""},
}

func newLoser(t *testing.T, status int, form string) (*loser, string) {
	f := &loser{status: status, form: form, known: make(map[string]bool), seen: make(map[string]int), streams: make(chan struct{}), text: "Session expired"}
	return f, mcptest.Serve(t, f)
}

// become sets the mode.
func (f *loser) become(mode string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mode, f.seen = mode, make(map[string]int)
	if mode == "lost" {
		clear(f.known)
	}
	close(f.streams)
	f.streams = make(chan struct{})
}

// got returns the requests that the server got since the mode was set, and how often the tool ran in all.
func (f *loser) got() (seen map[string]int, runs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.seen), f.runs
}

func (f *loser) refuse(w http.ResponseWriter, id []byte) {
	if id == nil {
		id = []byte("null")
	}
	form := forms[f.form]
	if form[0] != "" {
		w.Header().Set("Content-Type", form[0])
	}
	w.WriteHeader(f.status)
	fmt.Fprint(w, strings.NewReplacer("ID", string(id), "TEXT", f.text).Replace(form[1]))
}

func (f *loser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, id, method := received(r)
	session := r.Header.Get("Mcp-Session-Id")
	method = cmp.Or(method, r.Method)
	f.mu.Lock()
	f.seen[method]++
	mode, known, streams, refuses := f.mode, f.known[session], f.streams, f.refuses
	ping := ""
	if method == "ping" {
		ping = f.pings
	}
	begins := method == "initialize" && mode != "all"
	if begins {
		f.sessions++
		session = fmt.Sprint("s", f.sessions)
		f.known[session] = true
	}
	if method == "tools/call" && known {
		f.runs++
	}
	f.mu.Unlock()
	if method == "tools/call" && known && strings.Contains(string(body), `"wait"`) {
		open(w, r, streams, "id: %s-%s\ndata:\n\n", session, id)
		return
	}
	switch {
	case ping == "taken" && mode != "all":
		answerJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	case ping == "refused", mode == "all", refuses != nil && refuses(method), method != "initialize" && !known, mode == "tool" && method == "tools/call":
		f.refuse(w, id)
	case begins:
		w.Header().Set("Mcp-Session-Id", session)
		answerJSON(w, http.StatusOK, strings.Replace(greeting, `"capabilities":{}`, `"capabilities":{"tools":{}}`, 1), id)
	case method == "GET":
		open(w, r, streams, "")
	case id == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		answerJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, id)
	}
}

var doubtfulStatuses = []int{200, 400, 401, 403, 404, 410, 422, 500, 503}

// eachLoser runs a test for each status and form of a refusal.
func eachLoser(t *testing.T, test func(t *testing.T, f *loser, r *raw)) {
	t.Parallel()
	for _, status := range doubtfulStatuses {
		for _, form := range slices.Sorted(maps.Keys(forms)) {
			t.Run(fmt.Sprint(status, " with ", form), func(t *testing.T) {
				t.Parallel()
				f, url := newLoser(t, status, form)
				r := newRaw(t, url, client.Options{NoListen: true})
				r.open()
				r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
				if m := r.answer("1"); m.Error != nil {
					t.Fatalf("before: %s", m.Raw)
				}
				test(t, f, r)
			})
		}
	}
}

// A request in a session that the server does not know any more is made again in a new session, in whatever form the server refuses
// it, and runs once. Where the refusal may be that of a request that ran, the outcome is unknown, and the next request is served.
func TestSessionLost(t *testing.T) {
	eachLoser(t, func(t *testing.T, f *loser, r *raw) {
		f.become("lost")
		r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`)
		m := r.answer("2")
		want := 2
		if f.form == "nothing" && (f.status == 200 || f.status >= 500) {
			if want = 1; !strings.Contains(string(m.Error), "outcome unknown") {
				t.Errorf("it is %s", m.Raw)
			}
		} else if m.Error != nil {
			t.Errorf("it is %s", m.Raw)
		}
		seen, runs := f.got()
		if runs != want {
			t.Errorf("the tool ran %d times", runs)
		}
		if seen["initialize"] != 1 || seen["tools/call"] != want || seen["ping"] > 3 {
			t.Errorf("the server got %v", seen)
		}
		r.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}`)
		if m := r.answer("3"); m.Error != nil {
			t.Errorf("the next one is %s", m.Raw)
		}
	})
}

// The client finds out a lost session where pings do not show the loss: the server takes pings without a look at the
// session, or refuses them in each session.
func TestSessionLostWherePingsTellNothing(t *testing.T) {
	for _, pings := range []string{"taken", "refused"} {
		t.Run("pings are "+pings, func(t *testing.T) {
			eachLoser(t, func(t *testing.T, f *loser, r *raw) {
				if f.form == "nothing" && (f.status == 200 || f.status >= 500) {
					t.Skip("the outcome is unknown")
				}
				f.become("lost")
				f.pings = pings
				for id := range 2 {
					r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id+2)
					if m := r.answer(fmt.Sprint(id + 2)); m.Error != nil {
						t.Errorf("it is %s", m.Raw)
					}
				}
				seen, runs := f.got()
				if runs != 3 || seen["initialize"] != 1 || seen["tools/call"] != 3 || seen["ping"] > 2 || seen["tools/list"] > 3 {
					t.Errorf("the tool ran %d times, and the server got %v", runs, seen)
				}
			})
		})
	}
}

// The refusals of a tool that has run reach the host unchanged. They cost one ping, and no session.
func TestNoSessionLost(t *testing.T) {
	eachLoser(t, func(t *testing.T, f *loser, r *raw) {
		f.become("tool")
		if f.status == 404 && f.form != "JSON with the id" && f.form != "an event" || f.form == "JSON without an id" && f.status == 404 {
			t.Skip("says that the session is unknown")
		}
		for id := range 5 {
			r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id+2)
			m := r.answer(fmt.Sprint(id + 2))
			own := f.form == "JSON with the id" || f.form == "an event" && f.status != 401 && f.status != 403
			if f.status == 401 || f.status == 403 {
				own = false
			}
			if own && string(m.Error) != `{"code":-32000,"message":"Session expired"}` || m.Error == nil {
				t.Errorf("it is %s", m.Raw)
			}
		}
		if seen, runs := f.got(); runs != 6 || seen["tools/call"] != 5 || seen["ping"] > 1 || seen["initialize"] > 0 {
			t.Errorf("the tool ran %d times, and the server got %v", runs, seen)
		}
	})
}

// When a server refuses all requests, the client does not ask for a new session each time. The old session goes on when the server answers again.
func TestAllRefused(t *testing.T) {
	eachLoser(t, func(t *testing.T, f *loser, r *raw) {
		if f.status == 404 && f.form != "JSON with the id" && f.form != "an event" {
			t.Skip("says that the session is unknown")
		}
		before := r.SessionID()
		f.become("all")
		for id := range 5 {
			r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id+2)
			if m := r.answer(fmt.Sprint(id + 2)); m.Error == nil {
				t.Errorf("it is %s", m.Raw)
			}
		}
		if seen, _ := f.got(); seen["tools/call"] != 5 || seen["ping"] > 1 || seen["initialize"] > 1 {
			t.Errorf("the server got %v", seen)
		}
		f.become("tool")
		r.send(`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		if m := r.answer("9"); m.Error != nil || r.SessionID() != before {
			t.Errorf("afterwards it is %s, in session %s, before %s", m.Raw, r.SessionID(), before)
		}
	})
}

// The client notices the loss of a session also where only the session's stream is refused.
func TestStreamOfLostSession(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 410, 422} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f, url := newLoser(t, status, "text")
			lost := make(chan []string, 10)
			r := newRaw(t, url, client.Options{Lost: func(calls []string) { lost <- calls }})
			r.open()
			f.waitFor(t, "GET")
			f.become("lost")
			<-lost
			f.waitFor(t, "notifications/initialized")
			f.waitFor(t, "GET")
			if seen, _ := f.got(); seen["initialize"] != 1 {
				t.Errorf("the server got %v", seen)
			}
		})
	}
}

// waitFor waits until the server has got a request of a method since the mode was set.
func (f *loser) waitFor(t *testing.T, method string) {
	t.Helper()
	mcptest.Eventually(t, "a "+method, soon, func() bool { seen, _ := f.got(); return seen[method] > 0 })
}

// Calls in flight in a lost session have an unknown outcome, later calls run once, and one session is begun for all of them.
func TestManyInLostSession(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 410, 422} {
		for _, form := range []string{"JSON with the id", "JSON, id null", "text", "nothing"} {
			t.Run(fmt.Sprint(status, " with ", form), func(t *testing.T) {
				t.Parallel()
				f, url := newLoser(t, status, form)
				r := newRaw(t, url, client.Options{})
				r.open()
				for id := range 5 {
					r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait"}}`, id+1)
				}
				mcptest.Eventually(t, "the calls to run", soon, func() bool { _, runs := f.got(); return runs >= 5 })
				f.become("lost")
				for id := range 10 {
					r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id+6)
				}
				answers := make(map[string]jsonrpc.Message)
				r.until(func(m jsonrpc.Message) bool {
					if m.Kind == jsonrpc.Response {
						answers[string(m.ID)] = m
					}
					return len(answers) == 15
				})
				for id := range 15 {
					m := answers[fmt.Sprint(id+1)]
					if id < 5 && !strings.Contains(string(m.Error), "outcome unknown") || id >= 5 && m.Error != nil {
						t.Errorf("call %d: %s", id+1, m.Raw)
					}
				}
				if seen, runs := f.got(); runs != 15 || seen["initialize"] != 1 || seen["ping"] > 3 {
					t.Errorf("%d runs, and the server got %v", runs, seen)
				}
			})
		}
	}
}

// A server that knows the session may refuse pings as it refuses the call, or answer only initialize in a new session,
// too. Then it has lost no session: the client keeps the old one.
func TestSessionMakesNoDifference(t *testing.T) {
	t.Parallel()
	for name, refuses := range map[string]func(method string) bool{
		"all but initialize": func(method string) bool { return method != "initialize" },
		"calls and pings":    func(method string) bool { return method == "tools/call" || method == "ping" },
	} {
		for _, status := range doubtfulStatuses {
			for _, form := range slices.Sorted(maps.Keys(forms)) {
				if status == 404 && form != "JSON with the id" && form != "an event" {
					continue // this refusal means an unknown session
				}
				t.Run(fmt.Sprint(name, ", ", status, " with ", form), func(t *testing.T) {
					t.Parallel()
					f, url := newLoser(t, status, form)
					r := newRaw(t, url, client.Options{NoListen: true})
					r.open()
					before := r.SessionID()
					f.become("")
					f.mu.Lock()
					f.refuses = refuses
					f.mu.Unlock()
					for id := range 5 {
						r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id+1)
						if m := r.answer(fmt.Sprint(id + 1)); m.Error == nil || strings.Contains(string(m.Error), "ended the session") {
							t.Errorf("it is %s", m.Raw)
						}
					}
					seen, runs := f.got()
					if runs != 5 || seen["initialize"] > 1 || seen["ping"] > 3 || r.SessionID() != before {
						t.Errorf("%d runs in session %s, before in %s, and the server got %v", runs, r.SessionID(), before, seen)
					}
				})
			}
		}
	}
}

// An error under an unknown id, in the answer to a call, is the error of that call: also where the stream stays open.
func TestErrorUnderUnknownID(t *testing.T) {
	t.Parallel()
	s := &script{t: t}
	s.serve = func(w http.ResponseWriter, r *http.Request, _ []byte) {
		stream(w, "", data(`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32602,"message":"bad"}}`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	r := newRaw(t, mcptest.Serve(t, s), client.Options{NoListen: true})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if m := r.answer("1"); string(m.Error) != `{"code":-32602,"message":"bad"}` {
		t.Errorf("it is %s", m.Raw)
	}
}

// A result under an unknown id, in the answer to a call, is not the result of that call. The call does not wait for
// its result for ever, also where the stream stays open. It does wait if the server emits other messages of the call.
func TestResultUnderUnknownID(t *testing.T) {
	t.Parallel()
	const stray, mine = `{"jsonrpc":"2.0","id":987654,"result":{}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`
	for name, of := range map[string]struct {
		then  []string // messages after a second
		later string   // a message after a minute
		want  string
	}{
		"nothing more":          {want: "outcome unknown"},
		"its own":               {then: []string{mine}, want: mine},
		"news, and its own":     {then: []string{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`}, later: mine, want: mine},
		"another, and then its": {then: []string{stray, mine}, want: mine},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				url, hc := serveInside(t, hostile(mcptest.Methods{"tools/call": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
					say := func(texts ...string) {
						fmt.Fprint(w, data(texts...))
						_ = http.NewResponseController(w).Flush()
					}
					w.Header().Set("Content-Type", "text/event-stream")
					say(stray)
					time.Sleep(time.Second)
					say(of.then...)
					if of.later != "" {
						time.Sleep(time.Minute)
						say(of.later)
					}
					<-r.Context().Done()
				}}))
				r := newRaw(t, url, client.Options{NoListen: true, HTTPClient: hc})
				r.open()
				r.send(oneCall)
				for {
					m := mcptest.Must(r.Receive(t.Context()))(t)
					if m.Kind == jsonrpc.Notification {
						continue
					}
					if !strings.Contains(string(m.Raw), of.want) {
						t.Errorf("it is %s", m.Raw)
					}
					return
				}
			})
		})
	}
}
