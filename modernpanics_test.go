package holdfast_test

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// modern makes a request of revision 2026-07-28, and returns the answer.
func (n *panicNodes) modern(method, name string) string {
	n.t.Helper()
	c := &mcptest.Client{URL: n.urls[0], Header: []string{"Authorization", "Bearer alice"}, HTTP: mcptest.Unpooled}
	return c.Post(n.t, mcptest.ModernRequest(1, method, "{}", fmt.Sprintf(`"name":%q,"arguments":{}`, name))).Body
}

// TestModernPanics lets a user's code panic in a modern request: the request gets an error, and
// other requests of its client, and sessions, go on.
func TestModernPanics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, at, method, name string }{
		{"backend", "Open", "tools/call", "safe"},
		{"backend", "Deliver tools/call", "tools/call", "safe"},
		{"raw", "Serve initialize", "tools/call", "safe"},
		{"raw", "Serve tools/call", "tools/call", "safe"},
		{"raw", "Serve tools/call", "tools/call", "other"},
		{"raw", "Principal", "tools/call", "safe"},
		{"raw", "Safe", "tools/call", "safe"},
		{"sdk", "getServer", "tools/call", "safe"},
		{"sdk", "receiving tools/call", "tools/call", "safe"},
		{"sdk", "tool", "tools/call", "safe"},
		{"sdk", "prompt", "prompts/get", "prompt"},
		{"sdk", "MarshalJSON", "tools/call", "safe"},
	} {
		for _, warm := range []bool{false, true} { // whether there is a carrier
			t.Run(fmt.Sprintf("%s/%s/%s/%v", c.kind, c.at, c.name, warm), func(t *testing.T) {
				t.Parallel()
				n := newPanicNodes(t, c.kind)
				session := n.begin(0)
				if warm {
					if c.at == "Open" || c.at == "Serve initialize" {
						t.Skip("it is not called again")
					}
					n.modern("tools/call", "safe")
				}
				before := n.logged()
				n.set(c.at)
				got := n.modern(c.method, c.name)
				if !strings.Contains(got, `"error"`) || strings.Contains(got, "hunter2") || strings.Contains(got, `"result"`) {
					t.Errorf("got %s", got)
				}
				if hit, logged := n.hit.Load(), n.logged()-before; hit == 0 || logged != hit {
					t.Errorf("panicked %d times, logged %d", hit, logged)
				}
				n.set("")
				if got := n.modern("tools/call", "safe"); !strings.Contains(got, `"result"`) {
					t.Errorf("afterwards: %s", got)
				}
				n.works(0, session)
			})
		}
	}
}
