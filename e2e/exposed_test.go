package e2e

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// If the port is open to other machines, the log has a warning, and the URL in the log is one
// that those can use.
func TestExposed(t *testing.T) {
	t.Parallel()
	const warning = "everybody who reaches this port can call every tool"
	for listen, warnings := range map[string]int{"0.0.0.0:0": 1, "[::]:0": 1, ":0": 1, "127.0.0.1:0": 0} {
		p := serve(t, "--demo", "--listen", listen)
		host, _, err := net.SplitHostPort(p.Addr)
		if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
			t.Errorf("--listen %s: serves at %s", listen, p.URL)
		}
		if r := mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, p.URL, ""))(t); r.Status != http.StatusNotAcceptable && r.Status != http.StatusBadRequest {
			t.Errorf("--listen %s: %s says %d", listen, p.URL, r.Status)
		}
		if err := p.stop(t); err != nil {
			t.Error(err)
		}
		if n := strings.Count(p.log.String(), warning); n != warnings {
			t.Errorf("--listen %s: %d warnings", listen, n)
		}
	}
}
