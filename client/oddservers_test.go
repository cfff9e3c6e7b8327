package client_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// An odd server ends the stream of a call after its first event. A client that
// comes back for the rest gets an answer that servers in use give.
type odd struct {
	t       *testing.T
	listens atomic.Bool
	comes   atomic.Int32
	// conflicts is how often the server refuses a client that comes back.
	conflicts int32
	rest      func(last string) string // the events that it sends after that event id
	aside     string                   // an event of the standalone stream, or ""
}

const oddAnswer = "id: end\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"

func notice(id, method string) string {
	return fmt.Sprintf("id: %s\ndata: {\"jsonrpc\":\"2.0\",\"method\":%q}\n\n", id, method)
}

// ServeHTTP implements [http.Handler].
func (o *odd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mcptest.Methods{
		"initialize": mcptest.Greet("s"),
		"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if !o.listens.Load() {
				o.t.Error("called before the standalone stream was there")
			}
			events("id: begin\nretry: 1\ndata:\n\n")(w, r, m)
		},
		"GET": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			switch last := r.Header.Get("Last-Event-ID"); {
			case last == "":
				o.listens.Store(true)
				events(": here\n\n%s", o.aside)(w, r, m)
				hold(w, r, time.Hour)
			case o.comes.Add(1) <= o.conflicts:
				http.Error(w, "Conflict", http.StatusConflict)
			default:
				events("%s", o.rest(last))(w, r, m)
				hold(w, r, 5*time.Millisecond)
			}
		},
	}.ServeHTTP(w, r)
}

// hold keeps a response open, with a comment now and then.
func hold(w http.ResponseWriter, r *http.Request, pause time.Duration) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
			fmt.Fprint(w, ": still here\n\n")
		}
	}
}

func TestOddServers(t *testing.T) {
	t.Parallel()
	always := func(events ...string) func(string) string {
		return func(string) string { return strings.Join(events, "") }
	}
	for _, test := range []struct {
		name      string
		conflicts int32
		aside     string
		rest      func(last string) string
		want      map[string]int // notifications
		comes     int32
		fails     string
	}{
		{name: "the old connection seems to be there", conflicts: 2, rest: always(oddAnswer), comes: 3},
		{
			name: "replays, and forgets who came", comes: 3, want: map[string]int{"x/1": 1, "x/2": 1},
			rest: func(last string) string {
				return map[string]string{"begin": notice("1", "x/1"), "1": notice("2", "x/2"), "2": oddAnswer}[last]
			},
		},
		{
			name: "replays its empty events as objects", comes: 1, want: map[string]int{"x/1": 1},
			rest: always("id: 0\ndata: {}\n\n", notice("1", "x/1"), oddAnswer),
		},
		{
			name: "replays all streams", comes: 1, want: map[string]int{"x/aside": 1, "x/1": 1},
			aside: notice("0", "x/aside"), rest: always(notice("0", "x/aside"), notice("1", "x/1"), oddAnswer),
		},
		{
			name: "counts each stream's events", comes: 1, want: map[string]int{"x/aside": 1, "x/1": 1},
			aside: notice("0", "x/aside"), rest: always(notice("0", "x/1"), oddAnswer),
		},
		{
			name: "answers with what is no answer", comes: 1, fails: "outcome unknown: ",
			rest: always("id: 0\ndata: {\"id\":1,\"result\":{}}\n\n"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := &odd{t: t, conflicts: test.conflicts, rest: test.rest, aside: test.aside}
			r := newRaw(t, mcptest.Serve(t, server), client.Options{Silence: 500 * time.Millisecond})
			r.open()
			if test.aside != "" {
				r.until(func(m jsonrpc.Message) bool { return m.Method == "x/aside" })
			}
			r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
			m := r.answer("1")
			if test.fails == "" && m.Error != nil || !strings.Contains(string(m.Error), test.fails) {
				t.Errorf("answered %s, want an error with %q", m.Error, test.fails)
			}
			if !maps.Equal(r.heard, test.want) {
				t.Errorf("heard %v, want %v", r.heard, test.want)
			}
			if n := server.comes.Load(); n != test.comes {
				t.Errorf("the client came %d times, want %d", n, test.comes)
			}
		})
	}
}

// A response that comes under the event id of the priming event is delivered.
func TestResponseUnderOldEventID(t *testing.T) {
	t.Parallel()
	url := mcptest.Serve(t, mcptest.Methods{"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		events("id: 1\ndata: \n\nid: 1\n%s", data(mcptest.Result(m, "{}")))(w, r, m)
	}})
	a := newRaw(t, url, client.Options{NoListen: true})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if m := a.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
}

// tripper is a transport that does not trace its connections.
type tripper struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(context.Background())))
}

// A request that may have run is not sent again over an http.RoundTripper that does not report
// whether it had a connection.
func TestUntracedTransport(t *testing.T) {
	t.Parallel()
	var posts atomic.Int32
	url := mcptest.Serve(t, mcptest.Methods{"tools/call": func(http.ResponseWriter, *http.Request, jsonrpc.Message) {
		posts.Add(1)
		cut()
	}})
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	a := newRaw(t, url, client.Options{NoListen: true, HTTPClient: &http.Client{Transport: tripper{plain}}})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if m := a.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
	if n := posts.Load(); n != 1 {
		t.Errorf("the request was sent %d times", n)
	}
}
