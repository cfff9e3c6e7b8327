package client_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// hostile returns a server that begins a session as usual, and answers the methods in does. It refuses all others.
func hostile(does mcptest.Methods) mcptest.Methods {
	refuses := func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	all := mcptest.Methods{"initialize": mcptest.Greet("s1"), "response": refuses, "*": refuses}
	maps.Copy(all, does)
	return all
}

// events answers with events, and then returns.
func events(text string, args ...any) mcptest.Does {
	return func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, text, args...)
		_ = http.NewResponseController(w).Flush()
	}
}

const (
	oneCall   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`
	oneResult = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
)

// A server may begin every session and then not know it. The client does not ask it for one
// session after the other without end.
func TestSessionsNeverKnown(t *testing.T) {
	t.Parallel()
	var gets, begins atomic.Int32
	h := mcptest.Methods{
		"initialize": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			mcptest.Greet(fmt.Sprint("s", begins.Add(1)))(w, r, m)
		},
		"GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if gets.Add(1) == 1 {
				events(": here\n\n")(w, r, m)
				return
			}
			if gets.Load() > 1000 { // otherwise no time would pass in the bubble
				<-r.Context().Done()
				return
			}
			w.WriteHeader(http.StatusNotFound)
		},
	}
	synctest.Test(t, func(t *testing.T) {
		url, hc := serveInside(t, h)
		a := newRaw(t, url, client.Options{HTTPClient: hc, Lost: func([]string) {}})
		a.open()
		begun := time.Now()
		for begins.Load() < 20 && time.Since(begun) < 3*time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		if n := begins.Load(); n < 2 || n >= 20 {
			t.Errorf("%d sessions were begun in %v", n, time.Since(begun))
		}
	})
}

// No retry field and no Retry-After ends a call, or makes a client reconnect all the time.
func TestRetryAfterBounds(t *testing.T) {
	t.Parallel()
	t.Run("in 34 years", func(t *testing.T) {
		t.Parallel()
		a := newRaw(t, mcptest.Serve(t, hostile(mcptest.Methods{
			"tools/call": events("id: 1\nretry: 1099511627775\ndata:\n\n"),
			"GET":        events("id: 2\n" + oneResult),
		})), client.Options{NoListen: true, GiveUp: 500 * time.Millisecond})
		a.open()
		a.send(oneCall)
		if m := a.answer("1"); m.Error != nil {
			t.Errorf("%s", m.Raw)
		}
	})
	t.Run("in 8000 years", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int32
		a := newRaw(t, mcptest.Serve(t, hostile(mcptest.Methods{"tools/list": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
			if n.Add(1) > 1 {
				w.Header().Set("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}})), client.Options{NoListen: true})
		a.open()
		a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if m := a.answer("1"); !strings.Contains(string(m.Error), "the server asks to come back in") {
			t.Errorf("%s", m.Raw)
		}
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int32
		begun := make(chan time.Time, 1)
		a := newRaw(t, mcptest.Serve(t, hostile(mcptest.Methods{
			"tools/call": events("id: 1\nretry: 0\ndata:\n\n"),
			"GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
				switch i := n.Add(1); i {
				case 1:
					begun <- time.Now()
				case 101:
					events("id: end\n%s", oneResult)(w, r, m)
					return
				}
				events("id: %d\nretry: 0\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n", 1+n.Load())(w, r, m)
			},
		})), client.Options{NoListen: true})
		a.open()
		a.send(oneCall)
		a.answer("1")
		if took := time.Since(<-begun); took < 700*time.Millisecond {
			t.Errorf("100 connections were made within %v", took)
		}
	})
}

// Event ids, stream URLs, endpoints, tokens and session ids that are too long are not used.
func TestLongWaysBack(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("A", 20<<10)
	for name, h := range map[string]mcptest.Methods{
		"event id": {"tools/call": events("id: 1\ndata:\n\nid: %s\ndata:\n\n", long), "GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if last := r.Header.Get("Last-Event-ID"); last != "1" {
				t.Errorf("asked for what follows an event id of %d bytes", len(last))
			}
			events("id: 2\n"+oneResult)(w, r, m)
		}},
		"stream URL": {"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			w.Header().Set("Link", "</"+long+`>; rel="stream"`)
			events("id: 1\ndata:\n\n")(w, r, m)
		}, "GET": events("id: 2\n" + oneResult)},
		"resume token": {"tools/call": events("id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/requests/resumePolicy\",\"params\":{\"requestId\":1,\"resumeToken\":%q}}\n\n", long),
			"GET": events("id: 2\n" + oneResult)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var most atomic.Int64
			var a *raw
			a = newRaw(t, mcptest.Serve(t, hostile(h)), client.Options{NoListen: true, Changed: func() {
				for _, k := range a.State().Calls {
					if n := int64(len(k.LastEventID) + len(k.Stream) + len(k.Token)); n > most.Load() {
						most.Store(n)
					}
				}
			}})
			a.open()
			a.send(oneCall)
			if m := a.answer("1"); m.Error != nil || most.Load() > 10<<10 {
				t.Errorf("%s, and the state had %d bytes of where the call is", m.Raw, most.Load())
			}
		})
	}
	in := func(revision string) mcptest.Does {
		return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mcptest.JSON(w, strings.Replace(fmt.Sprintf(greeting, m.ID), "2025-11-25", revision, 1))
		}
	}
	for name, begin := range map[string]mcptest.Does{
		"session id": mcptest.Greet(strings.Repeat(long, 4)), "revision": in(long), "revision of no header": in(`2025\n`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newRaw(t, mcptest.Serve(t, mcptest.Methods{"initialize": begin}), client.Options{NoListen: true})
			if e := a.tryOpen(); e == nil || !strings.Contains(e.Message, "the server sends what cannot be used") {
				t.Errorf("initialize: %v", e)
			}
		})
	}
}

// A client gives up a server that never responds over a mux, does not take requests, or ends each connection over which it gets a request.
func TestMuxWithoutResponses(t *testing.T) {
	t.Parallel()
	for name, holds := range map[string]bool{"never answers": true, "takes no request": true, "ends each connection": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var end atomic.Pointer[chan struct{}]
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost {
						if name == "takes no request" {
							_, _ = io.Copy(io.Discard, r.Body)
							<-r.Context().Done()
							return
						}
						w.WriteHeader(http.StatusAccepted)
						if !holds {
							close(*end.Load())
						}
						return
					}
					over := make(chan struct{})
					end.Store(&over)
					events("event: endpoint\nretry: 1\ndata: /post\n\n")(w, r, jsonrpc.Message{})
					select {
					case <-over:
					case <-r.Context().Done():
					}
				})
				o := client.Options{Transport: client.SSE, ConnectTimeout: soon, Silence: 10 * soon}
				if holds {
					o.ConnectTimeout = 500 * time.Millisecond
				}
				url, hc := serveInside(t, h)
				o.HTTPClient = hc
				a := newRaw(t, url, o)
				if e := a.tryOpen(); e == nil {
					t.Error("initialize was answered")
				}
			})
		})
	}
}

// The number of server requests that wait for a reply is bounded, and so is the number of
// replies that are being sent.
func TestManyServerRequests(t *testing.T) {
	t.Parallel()
	ask := func(w http.ResponseWriter, n int) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q%d\",\"method\":\"elicitation/create\"}\n\n", i)
		}
		_ = http.NewResponseController(w).Flush()
	}
	t.Run("without answers", func(t *testing.T) {
		t.Parallel()
		a := newRaw(t, mcptest.Serve(t, hostile(mcptest.Methods{"tools/call": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
			ask(w, 10_100)
			fmt.Fprint(w, oneResult)
		}})), client.Options{NoListen: true})
		a.open()
		a.send(oneCall)
		asked := 0
		a.until(func(m jsonrpc.Message) bool {
			if m.Kind == jsonrpc.Request {
				asked++
			}
			return m.Kind == jsonrpc.Response
		})
		if asked != 10_000 {
			t.Errorf("the host got %d questions", asked)
		}
	})
	t.Run("with answers that are not taken", func(t *testing.T) {
		t.Parallel()
		const questions = 600
		var posts, most, taken atomic.Int32
		free, all := make(chan struct{}), make(chan struct{})
		a := newRaw(t, mcptest.Serve(t, hostile(mcptest.Methods{
			"tools/call": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
				ask(w, questions)
				<-all
				fmt.Fprint(w, oneResult)
			},
			"response": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
				most.Store(max(most.Load(), posts.Add(1)))
				<-free
				posts.Add(-1)
				w.WriteHeader(http.StatusAccepted)
				if taken.Add(1) == questions {
					close(all)
				}
			},
		})), client.Options{NoListen: true, ConnectTimeout: soon})
		a.open()
		a.send(oneCall)
		for i := range questions {
			a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
			a.send(`{"jsonrpc":"2.0","id":"q%d","result":{}}`, i)
		}
		for begun := time.Now(); most.Load() < 300 && time.Since(begun) < time.Second; {
			time.Sleep(10 * time.Millisecond)
		}
		close(free)
		if a.answer("1"); most.Load() > 256 {
			t.Errorf("%d answers were sent at a time", most.Load())
		}
	})
}
