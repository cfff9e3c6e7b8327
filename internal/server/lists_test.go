package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestListsReadNoRecords has a client that lists its calls and tasks again and again, at a node among sessions
// of other principals. The node does not read the records of all sessions each time, and the calls of a lost
// node are found nevertheless.
func TestListsReadNoRecords(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, legacyTasksConfig())
	for i := range 30 {
		f.nodes[i%3].able("2025-11-25", fmt.Sprint("bob", i))
	}
	var want []string
	for _, n := range f.nodes {
		want = append(want, n.able("2025-11-25", "me").open("POST", "/mcp", call("hold", `{}`)).token())
	}
	all := func(at *farmNode) {
		t.Helper()
		p := &peer{n: at.node, version: "2025-11-25", header: http.Header{"Authorization": {"Bearer me"}}}
		text := p.post(`{"jsonrpc":"2.0","id":1,"method":"requests/getStatus/all"}`).result(t)
		for _, token := range want {
			if !strings.Contains(text, token) {
				t.Errorf("a call is missing: %s", text)
			}
		}
	}
	asks := f.nodes[0].able("2025-11-25", "me")
	before := f.engine.Count("List")
	var work sync.WaitGroup
	for i := range 4 { // the node serves one at a time
		work.Go(func() {
			for range 10 {
				all(f.nodes[0])
				if m := asks.says(fmt.Sprint("l", i), "tasks/list", `{}`); m.Error != nil {
					t.Errorf("tasks/list: %+v", m.Error)
				}
			}
		})
	}
	work.Wait()
	if n := f.engine.Count("List") - before; n > 5 { // the sweep's reads included
		t.Errorf("all records were read %d times", n)
	}
	f.nodes[2].kill()
	all(f.nodes[0])
	all(f.nodes[1])
}
