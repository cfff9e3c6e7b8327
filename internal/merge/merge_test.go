package merge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	_ "holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A fake is a server with one tool, which may fail in many ways.
type fake struct {
	tool     string
	silent   atomic.Bool
	mute     []string          // methods without answers
	asks     string            // the method at which it sends its client a request, outside any call
	starts   time.Duration     // how long it takes to start
	revision string            // the revision in its answer to initialize; "": 2025-11-25
	more     string            // additional capabilities
	pages    map[string]string // of its tools, by the cursor; nil: one page

	broken atomic.Bool                                        // it cannot be opened
	dies   atomic.Value                                       // the method at which it ends
	opens  func(ctx context.Context, sink backend.Sink) error // runs first in Open; an error makes Open fail
	takes  func(in backend.Inbound) error                     // runs first in Deliver; an error makes Deliver fail
	tells  func(c *fakeConn, in backend.Inbound) bool         // reports whether it has handled the message

	opened    atomic.Int32 // how often Open was called
	closed    atomic.Int32
	cancelled atomic.Int32 // how many requests
	ends      func(why error)
	called    backend.Call // of the last request of the method asks

	mu     sync.Mutex
	heard  []string // ids of calls, and methods of other messages
	listed []string // params of tools/list
}

// hearing returns those of some words that were heard, in order.
func (f *fake) hearing(words ...string) (heard []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.heard {
		if slices.Contains(words, w) {
			heard = append(heard, w)
		}
	}
	return heard
}

// leaves sets the methods of requests that the server does not answer.
func (f *fake) leaves(methods ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mute = methods
}

func (f *fake) isMute(method string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.mute, method)
}

// startsIn sets how long later starts take.
func (f *fake) startsIn(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = d
}

type fakeConn struct {
	f    *fake
	sink backend.Sink
}

func (f *fake) Open(ctx context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	f.opened.Add(1)
	if f.broken.Load() {
		return nil, errors.New("it is broken")
	}
	if f.opens != nil {
		if err := f.opens(ctx, sink); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	starts := f.starts
	f.mu.Unlock()
	time.Sleep(starts)
	f.mu.Lock()
	f.ends = func(why error) { sink.Closed(why, false) }
	f.mu.Unlock()
	return &fakeConn{f, sink}, nil
}

func (c *fakeConn) Deliver(in backend.Inbound) error {
	if c.f.takes != nil {
		if err := c.f.takes(in); err != nil {
			return err
		}
	}
	if in.Method == c.f.dies.Load() {
		c.sink.Closed(errors.New("it ends"), true)
		return nil
	}
	if c.f.tells != nil && c.f.tells(c, in) {
		return nil
	}
	if in.Method == "notifications/cancelled" {
		c.f.cancelled.Add(1)
	}
	word := in.Method
	if in.Method == "tools/call" {
		word = string(in.ID)
	}
	c.f.mu.Lock()
	if in.Method == "tools/list" {
		c.f.listed = append(c.f.listed, string(in.Params))
	}
	c.f.heard = append(c.f.heard, word)
	c.f.mu.Unlock()
	if in.Kind != jsonrpc.Request || c.f.silent.Load() {
		return nil
	}
	if in.Method == c.f.asks {
		c.f.called = in.Call
		question := jsonrpc.AppendRequest(nil, []byte("1"), "elicitation/create", []byte("{}"))
		c.sink.Emit(nil, jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("1"), Method: "elicitation/create", Params: []byte("{}"), Raw: question})
	}
	if c.f.isMute(in.Method) {
		return nil
	}
	result := `{"protocolVersion":"` + cmp.Or(c.f.revision, "2025-11-25") + `","capabilities":{` + c.f.more + `"tools":{},"resources":{},"logging":{}},"serverInfo":{"name":"x","version":"1"}}`
	if in.Method == "tools/list" {
		result = fmt.Sprintf(`{"tools":[{"name":%q,"inputSchema":{"type":"object"}}]}`, c.f.tool)
	}
	if in.Method == "tools/list" && c.f.pages != nil {
		if result = c.f.pages[string(jsonrpc.Field(in.Params, "cursor"))]; result == "" {
			c.sink.Emit(in.Call, response(in.ID, nil, jsonrpc.Errorf(-32603, "no such page")))
			return nil
		}
	}
	c.sink.Emit(in.Call, response(in.ID, []byte(result), nil))
	return nil
}

func (c *fakeConn) Close() error {
	c.f.closed.Add(1)
	return nil
}

// A client is a conversation with the merged servers.
type client struct {
	conn     backend.Conn
	said     chan jsonrpc.Message
	last     atomic.Pointer[backend.Call] // the call of the last message
	requests int
}

func (c *client) Emit(call backend.Call, m jsonrpc.Message) {
	c.last.Store(&call)
	c.said <- m
}
func (c *client) EmitUnrelated(m jsonrpc.Message) { c.said <- m }
func (c *client) Closed(error, bool)              {}

func newClient(t *testing.T, b *Backend) *client {
	t.Helper()
	c := &client{said: make(chan jsonrpc.Message, 100)}
	var err error
	if c.conn, err = b.Open(t.Context(), backend.Start{}, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

// ask sends a request, and returns the response and how long it took.
func (c *client) ask(t *testing.T, method string) (jsonrpc.Message, time.Duration) {
	t.Helper()
	return c.askWith(t, method, []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
}

// askWith is ask with params.
func (c *client) askWith(t *testing.T, method string, params []byte) (jsonrpc.Message, time.Duration) {
	t.Helper()
	began := time.Now()
	c.requests++
	id := fmt.Sprint(c.requests)
	c.tell(t, id, method, string(params))
	m, _ := c.answered(id)
	return m, time.Since(began)
}

// tools returns the names of the tools, and how long the list took.
func (c *client) tools(t *testing.T) (string, time.Duration) {
	t.Helper()
	m, took := c.ask(t, "tools/list")
	var list struct {
		Tools []struct{ Name string }
	}
	if err := json.Unmarshal(m.Result, &list); err != nil {
		t.Fatalf("%s: %v", m.Raw, err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " "), took
}

// A merged list follows the cursors of its servers unchanged. A list without an end is reported in the log, and is an
// error if no other page came.
func TestCursors(t *testing.T) {
	page := func(tool, cursor string) string {
		if cursor != "" {
			cursor = `,"nextCursor":` + cursor
		}
		if tool != "" {
			tool = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, tool)
		}
		return fmt.Sprintf(`{"tools":[%s]%s}`, tool, cursor)
	}
	for name, test := range map[string]struct {
		pages  map[string]string
		want   string // the tools of all pages, with those of the other server
		failed string // the error at the end
		logged string
	}{
		"text":              {map[string]string{"": page("a", `"x"`), `"x"`: page("b", "")}, "p_a q_z p_b", "", ""},
		"a number":          {map[string]string{"": page("a", `7`), `7`: page("b", "")}, "p_a q_z p_b", "", ""},
		"an empty one":      {map[string]string{"": page("a", `""`), `""`: page("b", "")}, "p_a q_z p_b", "", ""},
		"empty for the end": {map[string]string{"": page("a", `""`), `""`: page("a", `""`)}, "p_a q_z", "", ""},
		"one that stands":   {map[string]string{"": page("a", `"x"`), `"x"`: page("b", `"x"`)}, "p_a q_z p_b", "", "comes again"},
		"nothing, standing": {map[string]string{"": page("a", `"x"`), `"x"`: page("", `"x"`)}, "p_a q_z", "comes again", "comes again"},
		"a page that fails": {map[string]string{"": page("a", `"x"`)}, "p_a q_z", "no such page", "no such page"},
		"a circle": {map[string]string{"": page("a", `1`), `1`: page("b", `2`), `2`: page("c", `3`), `3`: page("d", `1`)},
			"p_a q_z p_b p_c p_d p_b p_c", "", "comes again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				var mu sync.Mutex
				logger := slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					return log.Write(p)
				}), nil))
				b := New(func() []Member {
					return []Member{{Name: "p", Prefix: "p_", Backend: &fake{pages: test.pages}}, {Name: "q", Prefix: "q_", Backend: &fake{tool: "z"}}}
				}, logger)
				c := newClient(t, b)
				c.ask(t, "initialize")
				var names []string
				params, failed := []byte("{}"), ""
				for range 20 {
					m, _ := c.askWith(t, "tools/list", params)
					if m.Error != nil {
						failed = string(m.Error)
						break
					}
					var list struct {
						Tools      []struct{ Name string }
						NextCursor json.RawMessage
					}
					mcptest.Check(t, json.Unmarshal(m.Result, &list))
					for _, tool := range list.Tools {
						names = append(names, tool.Name)
					}
					if list.NextCursor == nil {
						break
					}
					params, _ = jsonrpc.Set([]byte("{}"), list.NextCursor, "cursor")
				}
				if got := strings.Join(names, " "); !strings.HasPrefix(got, test.want) || test.logged == "" && got != test.want {
					t.Errorf("listed %s", got)
				}
				if (failed != "") != (test.failed != "") || !strings.Contains(failed, test.failed) {
					t.Errorf("it ends with %s", failed)
				}
				mu.Lock()
				defer mu.Unlock()
				if said := log.String(); (test.logged != "") != strings.Contains(said, "level=WARN") || !strings.Contains(said, test.logged) {
					t.Errorf("logged %s", said)
				}
			})
		})
	}
}

// A client that sends null or an empty text as its cursor gets the first page, and any other text is an error.
func TestNoCursor(t *testing.T) {
	t.Parallel()
	p := &fake{tool: "a"}
	b := New(func() []Member {
		return []Member{{Name: "p", Prefix: "p_", Backend: p}, {Name: "q", Prefix: "q_", Backend: &fake{tool: "z"}}}
	}, slog.New(slog.DiscardHandler))
	c := newClient(t, b)
	c.ask(t, "initialize")
	for params, want := range map[string]bool{`{}`: true, `{"cursor":null}`: true, `{"cursor":""}`: true, `{"cursor":"x"}`: false} {
		m, _ := c.askWith(t, "tools/list", []byte(params))
		if has := strings.Contains(string(m.Result), "p_a") && strings.Contains(string(m.Result), "q_z"); has != want {
			t.Errorf("%s: %s", params, m.Raw)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := strings.Join(p.listed, " "); strings.Contains(got, "cursor") {
		t.Errorf("the server got the params %s", got)
	}
}

// The completion of a resource is for the server that has the resource, also if its reference has a name that says nothing.
func TestCompletionOfResource(t *testing.T) {
	t.Parallel()
	p := &fake{tool: "a"}
	c := newClient(t, New(func() []Member { return []Member{{Name: "p", Prefix: "p_", Backend: p}} }, slog.New(slog.DiscardHandler)))
	c.ask(t, "initialize")
	for i, name := range []string{"", `,"name":null`, `,"name":""`} {
		m, _ := c.askWith(t, "completion/complete", []byte(`{"ref":{"type":"ref/resource","uri":"a://{b}"`+name+`}}`))
		if got := len(p.hearing("completion/complete")); m.Error != nil || got != i+1 {
			t.Errorf("with %q: %s, and the server has heard %d", name, m.Raw, got)
		}
	}
}

// A client is told that its visit of a URL is complete, also if servers have wanted many others since, and only by the server that wanted it.
func TestVisitsOfLong(t *testing.T) {
	t.Parallel()
	c := newClient(t, New(func() []Member {
		return []Member{{Name: "p", Prefix: "p_", Backend: &fake{}}, {Name: "q", Prefix: "q_", Backend: &fake{}}}
	}, slog.New(slog.DiscardHandler))).conn.(*conn)
	links := c.links()
	visit := func(n int) []byte { return fmt.Appendf(nil, `{"elicitationId":"%d"}`, n) }
	complete := func(l *link, n int) bool {
		m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: "notifications/elicitation/complete", Params: visit(n)}
		m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
		_, ok := l.about(m)
		return ok
	}
	c.mu.Lock()
	for n := range mostVisits + 1 {
		c.noteVisit(links[0], visit(n))
	}
	c.noteVisit(links[1], visit(0)) // it is the first server's
	c.mu.Unlock()
	for _, n := range []int{0, mostVisits - 1, mostVisits} {
		if !complete(links[0], n) || complete(links[1], n) {
			t.Errorf("the visit %d is not that of its server", n)
		}
	}
	c.mu.Lock()
	for n := range 3 * mostVisits {
		c.noteVisit(links[0], visit(-n))
	}
	kept := len(c.visits) + len(c.oldVisits)
	c.mu.Unlock()
	if kept > 2*mostVisits || complete(links[0], 1) {
		t.Errorf("%d visits are remembered", kept)
	}
}

// writer is a function as an [io.Writer].
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A name that is too long for some hosts is reported in the log, once.
func TestLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := New(func() []Member {
			return []Member{{Name: "a", Backend: &fake{tool: strings.Repeat("x", 63)}, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: strings.Repeat("x", 62)}, Prefix: "b_"}}
		}, slog.New(slog.NewTextHandler(&log, nil)))
		for range 2 {
			c := newClient(t, b)
			c.ask(t, "initialize")
			if names, _ := c.tools(t); len(names) != 65+1+64 {
				t.Errorf("tools: %s", names)
			}
		}
		if got := log.String(); strings.Count(got, "64 characters") != 1 || !strings.Contains(got, "server=a ") {
			t.Errorf("log: %s", got)
		}
	})
}

// A server that hangs delays clients once, not at each list and each initialize. A client that has
// begun without that server is notified when it is there.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well, ill := &fake{tool: "x"}, &fake{tool: "y"}
		ill.silent.Store(true)
		b := New(func() []Member {
			return []Member{{Name: "well", Backend: well, Prefix: "well_"}, {Name: "ill", Backend: ill, Prefix: "ill_"}}
		}, slog.New(slog.DiscardHandler))
		first := newClient(t, b)
		if m, took := first.ask(t, "initialize"); m.Error != nil || took != initWait {
			t.Errorf("initialize: %s after %v", m.Raw, took)
		}
		for range 3 {
			if names, took := first.tools(t); names != "well_x" || took > time.Second {
				t.Errorf("%s after %v, want those of the other server within a second", names, took)
			}
		}
		second := newClient(t, b)
		if m, took := second.ask(t, "initialize"); m.Error != nil || took > time.Second {
			t.Errorf("another client's initialize: %s after %v", m.Raw, took)
		}
		_ = second.conn.Deliver(backend.Inbound{Message: jsonrpc.Message{Kind: jsonrpc.Notification, Method: "notifications/initialized"}})
		time.Sleep(openFor + againAfter) // the server is not being opened now
		ill.silent.Store(false)
		// A list opens the server, and contains its tools, or the next list does. No client waits long for it.
		if names, took := second.tools(t); names != "well_x ill_y" || took > time.Second {
			t.Errorf("%s after %v, want those of both", names, took)
		}
		third := newClient(t, b)
		if _, took := third.ask(t, "initialize"); took > time.Second {
			t.Errorf("initialize after %v, where both are well", took)
		}

		// When a server has taken some seconds, the client is notified.
		ill.silent.Store(true)
		fourth := newClient(t, b)
		fourth.ask(t, "initialize")
		_ = fourth.conn.Deliver(backend.Inbound{Message: jsonrpc.Message{Kind: jsonrpc.Notification, Method: "notifications/initialized"}})
		c := fourth.conn.(*conn)
		synctest.Wait()
		ill.silent.Store(false)
		l := c.links()[1]
		l.mu.Lock()
		opening, pending := l.conn, l.pending
		var id []byte
		for _, p := range pending {
			id = p.id
		}
		l.mu.Unlock()
		opening.(*fakeConn).sink.Emit(nil, response(id, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`), nil))
		synctest.Wait()
		select {
		case m := <-fourth.said:
			if !strings.HasSuffix(m.Method, "/list_changed") {
				t.Errorf("the client hears %s", m.Raw)
			}
		default:
			t.Error("the client is not told of the server that came late")
		}
	})
}
