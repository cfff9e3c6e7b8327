package servers

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// The error of a call that takes too long says "outcome unknown" unless the operator or the server's last list says
// that the tool changes nothing, or may be called again.
func TestTimeoutOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &script{list: `{"name":"reads","annotations":{"readOnlyHint":true}},{"name":"sets","annotations":{"idempotentHint":true}},{"name":"writes","annotations":{"readOnlyHint":false}},{"name":"says nothing"}`}
		prefix := "p_"
		s := &server{name: "a", log: slog.New(slog.DiscardHandler), inner: f, idle: make(chan struct{})}
		s.conf.Store(&config.Server{Name: "a", Settings: config.Settings{Timeout: time.Minute, Prefix: &prefix, Safe: []string{"get_*"}}})
		r := &reader{t: t, call: &struct{ backend.Call }{}}
		opened := mcptest.Must(s.Open(t.Context(), backend.Start{}, r))(t)
		r.conn = opened
		defer r.leave()
		id := 0
		say := func(method, params string) string {
			id++
			return r.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
		}
		want := func(when string, unknown map[string]bool) {
			t.Helper()
			for tool, unknown := range unknown {
				if got := say("tools/call", fmt.Sprintf(`{"name":%q}`, prefix+tool)); got != "" {
					t.Fatal(got)
				}
				time.Sleep(time.Minute)
				got := r.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
				if !strings.Contains(got, "the server did not answer within 1m0s") || strings.Contains(got, "outcome unknown: ") != unknown || strings.Contains(got, "-32010") != unknown {
					t.Errorf("%s, %s: %s; want an unknown outcome: %v", when, tool, got, unknown)
				}
			}
		}
		unlisted := map[string]bool{"reads": true, "sets": true, "writes": true, "says nothing": true, "get_one": false, "other": true}
		listed := map[string]bool{"reads": false, "sets": false, "writes": true, "says nothing": true, "get_one": false, "other": true}
		want("before a list", unlisted)
		if got := say("tools/list", "{}"); !strings.Contains(got, "p_reads") {
			t.Fatal(got)
		}
		want("after a list", listed)
		changed, _ := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
		f.conns[0].sink.EmitUnrelated(changed)
		r.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		want("after a change", unlisted)
		old, _ := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":"old","method":"tools/list"}`))
		answer, _ := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":"old","result":{"tools":[` + f.list + `]}}`))
		c := opened.(*conn)
		c.watch(s.conf.Load(), backend.Inbound{Message: old})
		c.ruled(changed)
		c.ruled(answer)
		want("after a list from before a change", unlisted)
		f.mu.Lock()
		f.list = `{"name":"reads"},{"name":"writes","annotations":{"readOnlyHint":true}}`
		f.mu.Unlock()
		say("tools/list", "{}")
		want("after another list", map[string]bool{"reads": true, "writes": false})
	})
}

// A session forgets calls that took too long, also at a server that never answers them.
func TestTimeoutForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{name: "a", log: slog.New(slog.DiscardHandler), inner: &script{}, idle: make(chan struct{})}
		s.conf.Store(&config.Server{Name: "a", Settings: config.Settings{Timeout: time.Minute}})
		r := &reader{t: t, call: &struct{ backend.Call }{}}
		opened := mcptest.Must(s.Open(t.Context(), backend.Start{}, r))(t)
		r.conn = opened
		defer r.leave()
		const calls = 100
		for id := range calls {
			if got := r.say(toolCall(id)); got != "" {
				t.Fatal(got)
			}
		}
		time.Sleep(time.Minute)
		if got := r.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); strings.Count(got, "did not answer within 1m0s") != calls {
			t.Errorf("the calls ended with %s", got)
		}
		if n := opened.(*conn).watched.Load(); n != 0 {
			t.Errorf("%d calls are kept that are over", n)
		}
	})
}
