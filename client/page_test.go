package client_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// interrupted serves the first request that it gets, and answers the second one with the page of a proxy.
type interrupted struct {
	mu sync.Mutex
	n  int
}

// shows reports whether it has answered with the page.
func (p *interrupted) shows(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n++; p.n != 2 {
		return false
	}
	says(200, "text/html", "<p>Please log in to this network")(w, r, nil)
	return true
}

// A page that a proxy shows once, with status 200, in the place of the server costs no call that the server has.
func TestPageOnTheWayBack(t *testing.T) {
	t.Parallel()
	const result = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
	for name, keys := range map[string]bool{"by an event id": false, "under a key": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var between interrupted
			url := mcptest.Serve(t, mcptest.Methods{
				"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
					w.Header().Set("Mcp-Session-Id", "s")
					capabilities := `{}`
					if keys {
						capabilities = `{"experimental":{"holdfast/idempotencyKey":{}}}`
					}
					mcptest.JSON(w, mcptest.Result(m, mcptest.Welcome(m, capabilities)))
				},
				"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
					between.mu.Lock()
					first := between.n == 0
					between.mu.Unlock()
					switch {
					case between.shows(w, r):
					case first && !keys:
						events("id: 1\ndata:\n\n")(w, r, m)
					case first:
						cut()
					default:
						events(result)(w, r, m)
					}
				},
				"GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
					if !between.shows(w, r) {
						events(result)(w, r, m)
					}
				},
			})
			c := newRaw(t, url, client.Options{NoListen: true})
			c.open()
			c.send(oneCall)
			if m := c.answer("1"); m.Error != nil {
				t.Errorf("%s", m.Error)
			}
		})
	}
}

// The standalone stream is opened again after a page.
func TestPageOnListen(t *testing.T) {
	t.Parallel()
	var between interrupted
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": mcptest.Greet("s"),
		"GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if !between.shows(w, r) {
				between.mu.Lock()
				n := between.n
				between.mu.Unlock()
				events("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":%d}}\n\n", n)(w, r, m)
			}
		},
	})
	c := newRaw(t, url, client.Options{})
	c.open()
	c.until(func(m jsonrpc.Message) bool { return string(jsonrpc.Field(m.Params, "data")) == "3" })
}

// A stream of HTTP+SSE is resumed after a page.
func TestPageOnSSE(t *testing.T) {
	t.Parallel()
	var between interrupted
	posted := make(chan string, 10)
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, id, method := received(r)
			w.WriteHeader(http.StatusAccepted)
			switch method {
			case "initialize":
				posted <- `id: 2` + "\n" + `data: {"jsonrpc":"2.0","id":` + string(id) + `,"result":{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}`
			case "tools/call":
				posted <- ""
				posted <- `id: 3` + "\n" + `data: {"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`
			}
			return
		}
		if between.shows(w, r) {
			return
		}
		w.Header().Set("Content-Type", typeEvents)
		for text := "id: 1\nevent: endpoint\ndata: /messages"; text != ""; {
			events("%s\n\n", text)(w, r, jsonrpc.Message{})
			select {
			case text = <-posted:
			case <-r.Context().Done():
				return
			}
		}
	}))
	c := newRaw(t, url, client.Options{Transport: client.SSE})
	c.open()
	c.send(oneCall)
	if m := c.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
}

// keyed greets as a server that honours idempotency keys.
func keyed(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
	w.Header().Set("Mcp-Session-Id", "s")
	mcptest.JSON(w, mcptest.Result(m, mcptest.Welcome(m, `{"experimental":{"holdfast/idempotencyKey":{}}}`)))
}

// A page that a call gets at once, or after the server was out of reach for longer than Options.Silence, or for some minutes, costs no call
// under a key: its server has answered before. Nor does a short one cost a retry-safe request of another server.
func TestPageOnRequest(t *testing.T) {
	t.Parallel()
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
	for name, test := range map[string]struct {
		greet      mcptest.Does
		call       string
		away, page time.Duration // how long the server is out of reach, and then behind a page
	}{
		"at once":                {keyed, oneCall, 0, time.Second},
		"after an outage":        {keyed, oneCall, 5 * time.Minute, 20 * time.Second},
		"for long":               {keyed, oneCall, 0, 20 * time.Minute},
		"at once, without a key": {mcptest.Greet("s"), list, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				does := func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
					switch since := time.Since(begun); {
					case since < test.away:
						w.WriteHeader(http.StatusBadGateway)
					case since < test.away+test.page:
						says(200, "text/html", "<p>Please log in to this network")(w, r, nil)
					default:
						mcptest.JSON(w, mcptest.Result(m, `{}`))
					}
				}
				url, hc := serveInside(t, mcptest.Methods{"initialize": test.greet, "tools/call": does, "tools/list": does})
				c := newRaw(t, url, client.Options{NoListen: true, HTTPClient: hc})
				c.within = time.Hour
				c.open()
				c.send("%s", test.call)
				if m := c.answer("1"); m.Error != nil {
					t.Errorf("%s", m.Error)
				}
			})
		})
	}
}

// A server that shows a page each time that it is asked for a call is not waited for until it is given up.
func TestPageForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		url, hc := serveInside(t, mcptest.Methods{
			"initialize": mcptest.Greet("s"),
			"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) { events("id: 1\ndata:\n\n")(w, r, m) },
			"GET": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
				says(200, "text/html", "<p>Hello")(w, r, nil)
			},
		})
		c := newRaw(t, url, client.Options{NoListen: true, HTTPClient: hc})
		c.within = time.Hour
		c.open()
		begun := time.Now()
		c.send(oneCall)
		if m := c.answer("1"); m.Error == nil || time.Since(begun) > 2*time.Minute {
			t.Errorf("%s after %v", m.Raw, time.Since(begun))
		}
	})
}

// A reply of the host to a question of a call is sent again if a page comes in the place of the server. It is sent once to a server that
// takes the reply with an answer of its own.
func TestPageOnReply(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		take func(http.ResponseWriter, *http.Request, *bad)
		want int32
	}{
		"a page":               {says(200, "text/html; charset=utf-8", "\n<p>Please log in to this network"), 2},
		"taken":                {says(202, "", ""), 1},
		"taken with 200":       {says(200, "", ""), 1},
		"taken, as HTML":       {says(202, "text/html; charset=utf-8", ""), 1},
		"taken with 200, HTML": {says(200, "text/html; charset=utf-8", "Accepted"), 1},
		"taken, with tags":     {says(202, "text/html; charset=utf-8", "<p>Accepted"), 1},
		"taken, as text":       {says(200, "text/plain", "<ok>"), 1},
		"taken, as JSON":       {says(200, typeJSON, "{}"), 1},
		"taken, no content":    {says(204, "", ""), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				taken := make(chan struct{})
				url, hc := serveInside(t, mcptest.Methods{
					"initialize": mcptest.Greet("s"),
					"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
						open(w, r, taken, "id: 1\ndata: %s\n\n", `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
						events(oneResult)(w, r, m)
					},
					"*": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
						got := n.Add(1)
						if got == 1 {
							test.take(w, r, nil)
						} else {
							w.WriteHeader(http.StatusAccepted)
						}
						if got == test.want {
							close(taken)
						}
					},
				})
				c := newRaw(t, url, client.Options{NoListen: true, HTTPClient: hc})
				c.within = 30 * time.Second // before the stream is silent for too long
				c.open()
				c.send(oneCall)
				c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
				c.send(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`)
				c.answer("1")
				time.Sleep(time.Hour) // of the bubble's clock
				if got := n.Load(); got != test.want {
					t.Errorf("the server got the reply %d times, want %d", got, test.want)
				}
			})
		})
	}
}

// A Conn that goes on from a State opens the standalone stream again after a page.
func TestPageOnRestoredListen(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": mcptest.Greet("s"),
		"GET": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
			if n.Add(1) == 2 {
				says(200, "text/html", "<p>Please log in to this network")(w, r, nil)
				return
			}
			open(w, r, nil, "id: %d\ndata: %s\n\n", n.Load(), `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`)
		},
	})
	a := newRaw(t, url, client.Options{})
	a.open()
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	a.Detach()
	there := a.State()
	b := newRaw(t, url, client.Options{State: &there})
	b.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
}

// A page in the place of the answer to a POST of HTTP+SSE does not say that the server has the request. One that is retry-safe is sent again.
func TestPageOnSSEPost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request string
		answers bool
	}{
		"retry-safe": {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, true},
		"a call":     {oneCall, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var posts atomic.Int32
				said := make(chan string, 10)
				url, hc := serveInside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodPost {
						pour(w, r, "/messages", said)
						return
					}
					_, id, method := received(r)
					switch method {
					case "initialize":
						said <- `{"jsonrpc":"2.0","id":` + string(id) + `,"result":{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}`
					case "tools/list", "tools/call":
						if posts.Add(1) == 1 {
							says(200, "text/html", "<p>Please log in to this network")(w, r, nil)
							return
						}
						said <- `{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`
					}
					w.WriteHeader(http.StatusAccepted)
				}))
				c := newRaw(t, url, client.Options{Transport: client.SSE, HTTPClient: hc})
				c.within = time.Hour
				c.open()
				c.send("%s", test.request)
				m := c.answer("1")
				if (m.Error == nil) != test.answers || !test.answers && posts.Load() != 1 {
					t.Errorf("%s after %d requests", m.Raw, posts.Load())
				}
			})
		})
	}
}
