package client_test

import (
	"net/http"
	"sync"
	"testing"

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
