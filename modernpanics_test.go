package holdfast_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// modern makes a request of revision 2026-07-28, and returns what is answered.
func (n *panicNodes) modern(method, name string) string {
	n.t.Helper()
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientCapabilities":{}},"name":%q,"arguments":{}}}`, method, name)
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodPost, n.urls[0], strings.NewReader(text))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header = http.Header{
		"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "Authorization": {"Bearer alice"},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}, "Mcp-Name": {name},
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Error(err)
	}
	return string(all)
}

// TestModernPanics has a user's code panic under a modern request: that is answered with an error,
// and other requests of its client, and sessions, go on.
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
		for _, warm := range []bool{false, true} { // there is a carrier
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
				before := n.logged.Load()
				n.set(c.at)
				got := n.modern(c.method, c.name)
				if !strings.Contains(got, `"error"`) || strings.Contains(got, "hunter2") || strings.Contains(got, `"result"`) {
					t.Errorf("got %s", got)
				}
				if hit, logged := n.hit.Load(), n.logged.Load()-before; hit == 0 || logged != hit {
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
