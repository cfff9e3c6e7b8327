package merge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// answersLate answers requests of a method with an error, after a time.
func answersLate(method string, after time.Duration) func(*fakeConn, backend.Inbound) bool {
	return func(c *fakeConn, in backend.Inbound) bool {
		if in.Method != method || in.Kind != jsonrpc.Request {
			return false
		}
		time.AfterFunc(after, func() {
			c.sink.Emit(in.Call, response(in.ID, nil, jsonrpc.Errorf(jsonrpc.CodeServer, "no licence")))
		})
		return true
	}
}

// ailments are the ways for a server to fail.
func ailments() map[string]*fake {
	return map[string]*fake{
		"cannot be opened": {opens: func(context.Context, backend.Sink) error { return errors.New("no such command") }},
		"cannot be opened, after 5 s": {opens: func(context.Context, backend.Sink) error {
			time.Sleep(5 * time.Second)
			return errors.New("out of reach")
		}},
		"does not open": {opens: func(ctx context.Context, _ backend.Sink) error { <-ctx.Done(); return ctx.Err() }},
		"ends at initialize": {tells: func(c *fakeConn, _ backend.Inbound) bool {
			go c.sink.Closed(errors.New("exit status 1"), true)
			return true
		}},
		"ends 4 s after initialize": {tells: func(c *fakeConn, _ backend.Inbound) bool {
			time.AfterFunc(4*time.Second, func() { c.sink.Closed(errors.New("exit status 1"), true) })
			return true
		}},
		"initialize fails":             {tells: answersLate("initialize", 0)},
		"initialize fails after 4.9 s": {tells: answersLate("initialize", 4900*time.Millisecond)},
		"initialize fails after 20 s":  {tells: answersLate("initialize", 20*time.Second)},
		"initialize hangs":             {mute: []string{"initialize"}},
		"an odd revision, after 3 s":   {starts: 3 * time.Second, revision: "1900-01-01"},
		"initialized is not taken": {tells: func(_ *fakeConn, in backend.Inbound) bool {
			return in.Method == "notifications/initialized" && sleeps()
		}},
		"lists fail after 4 s":             {tells: answersLate("tools/list", 4*time.Second)},
		"lists hang":                       {mute: []string{"tools/list"}},
		"levels hang":                      {mute: []string{"logging/setLevel"}},
		"subscriptions hang":               {mute: []string{"resources/subscribe", "resources/unsubscribe"}},
		"reads fail after 4 s":             {tells: answersLate("resources/read", 4*time.Second)},
		"reads and completions hang":       {mute: []string{"resources/read", "completion/complete"}},
		"nothing but initialize is spoken": {mute: []string{"tools/list", "logging/setLevel", "resources/subscribe", "resources/read", "completion/complete"}},
	}
}

// sleeps returns true, after a minute.
func sleeps() bool {
	time.Sleep(time.Minute)
	return true
}

// others is a backend of the given failing servers, and one that works.
func others(ill ...*fake) *Backend {
	var all []Member
	for i, f := range ill {
		f.tool = "y"
		all = append(all, Member{Name: fmt.Sprint("ill", i), Backend: f, Prefix: fmt.Sprintf("ill%d_", i)})
	}
	all = append(all, Member{Name: "well", Backend: &fake{tool: "x"}, Prefix: "well_"})
	return New(func() []Member { return all }, slog.New(slog.DiscardHandler))
}

// However a server fails, the first client waits at most initWait for it at a time, and later clients and requests at
// most lateWait. The other server's lists and results are complete.
func TestFailingCostsNoTime(t *testing.T) {
	t.Parallel()
	requests := []struct{ method, params string }{
		{"tools/list", `{}`},
		{"tools/call", `{"name":"well_x"}`},
		{"logging/setLevel", `{"level":"info"}`},
		{"resources/read", `{"uri":"well://%d"}`},
		{"resources/subscribe", `{"uri":"well://%d"}`},
		{"resources/unsubscribe", `{"uri":"well://%d"}`},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"well://%d"}}`},
		{"tools/call", `{"name":"ill0_y"}`},
	}
	for name := range ailments() {
		for _, ill := range []int{1, 3} {
			t.Run(fmt.Sprint(name, ", servers: ", ill), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var all []*fake
					for range ill {
						all = append(all, ailments()[name])
					}
					b := others(all...)
					id := 0
					ask := func(c *client, method, params string, most time.Duration) {
						t.Helper()
						id++
						if strings.Contains(params, "%d") {
							params = fmt.Sprintf(params, id)
						}
						c.tell(t, fmt.Sprint(id), method, params)
						m, took := c.answered(fmt.Sprint(id))
						if m.Error != nil && !strings.Contains(params, "ill") {
							t.Errorf("%s %s: %s", method, params, m.Raw)
						}
						if took > most {
							t.Errorf("%s %s took %v, want at most %v", method, params, took, most)
						}
					}
					for i := range 3 {
						c := newClient(t, b)
						most := lateWait
						if i == 0 {
							most = initWait
						}
						ask(c, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`, most)
						began := time.Now()
						c.tell(t, "", "notifications/initialized", "{}")
						if took := time.Since(began); took > most {
							t.Errorf("notifications/initialized took %v, want at most %v", took, most)
						}
						for n := range 2 {
							if n > 0 {
								most = lateWait
							}
							for _, r := range requests {
								ask(c, r.method, r.params, most)
							}
							time.Sleep(10 * time.Second)
						}
					}
				})
			})
		}
	}
}

// The same holds for a client of a handler, in both eras.
func TestFailingFromOutside(t *testing.T) {
	t.Parallel()
	for name := range ailments() {
		for _, modern := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", modern: ", modern), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := holdfast.NewBackendHandler(others(ailments()[name]), &holdfast.Options{Logger: slog.New(slog.DiscardHandler), Eras: holdfast.ErasBoth})
					defer func() { _ = h.Shutdown(t.Context()) }()
					for i := range 3 {
						c := &outsider{h: h, modern: modern}
						for n, r := range []struct{ method, name, want string }{
							{"initialize", "", `"capabilities"`}, {"tools/list", "", `"well_x"`}, {"tools/call", "well_x", `"result"`}, {"tools/call", "ill0_y", ``},
							{"tools/list", "", `"well_x"`}, {"tools/call", "well_x", `"result"`}, {"tools/call", "ill0_y", ``},
						} {
							most := lateWait
							if i == 0 && n < 3 { // for a call, a modern client first requests the list
								most = initWait
							}
							text, took := c.ask(t, r.method, r.name)
							if !strings.Contains(text, r.want) {
								t.Errorf("client %d: %s %s: %s", i, r.method, r.name, text)
							}
							if took > most {
								t.Errorf("client %d: %s %s took %v, want at most %v", i, r.method, r.name, took, most)
							}
							time.Sleep(3 * time.Second)
						}
					}
				})
			})
		}
	}
}

// An outsider is a client of a handler, in either era.
type outsider struct {
	h       http.Handler
	modern  bool
	session string
}

// ask sends a request, and returns its answer and how long that took.
func (c *outsider) ask(t *testing.T, method, name string) (string, time.Duration) {
	t.Helper()
	began := time.Now()
	params := `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`
	if name != "" {
		params = fmt.Sprintf(`{"name":%q,"arguments":{}}`, name)
	}
	if c.modern {
		if method == protocol.MethodInitialize {
			method, params = protocol.MethodDiscover, "{}"
		}
		params, _ := jsonrpc.Set([]byte(params), []byte(`{"`+protocol.MetaProtocolVersion+`":"2026-07-28","`+protocol.MetaClientCapabilities+`":{}}`), "_meta")
		return c.post(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params), map[string]string{
			protocol.HeaderVersion: protocol.V20260728, protocol.HeaderMethod: method, protocol.HeaderName: name,
		}), time.Since(began)
	}
	text := c.post(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params), nil)
	if method == protocol.MethodInitialize {
		c.post(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil)
	}
	return text, time.Since(began)
}

func (c *outsider) post(t *testing.T, body string, header map[string]string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		r.Header.Set(protocol.HeaderSession, c.session)
	}
	for name, value := range header {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	c.h.ServeHTTP(w, r)
	if id := w.Header().Get(protocol.HeaderSession); id != "" {
		c.session = id
	}
	return w.Body.String()
}
