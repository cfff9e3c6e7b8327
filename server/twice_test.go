package server_test

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/server"
)

// TestVendorOnce loses the node that runs a method which is not in the specification,
// while its client is connected to another. It does not run again.
func TestVendorOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]server.Response{"auto": server.ResponseAuto, "sse": server.ResponseSSE} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 2, config{server: server.Options{Response: mode}})
			p := f.nodes[0].connect("2025-11-25", nil)
			w := p.at(f.nodes[1]).open("POST", "/mcp", vendorCall("1", "k"))
			f.nodes[0].release(1)
			f.nodes[0].kill()
			r := w.all()
			if said := r.texts(); len(said) != 1 || !strings.Contains(said[0], "outcome unknown") || f.runs("k") != 1 {
				t.Errorf("%d runs; answered %d %s", f.runs("k"), r.status, r.body)
			}
		})
	}
}

// vendorCall calls a method of a vendor that does not end by itself.
func vendorCall(id, key string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"vendor/call","params":{"name":"hold","arguments":{"key":%q}}}`, id, key)
}
