package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// TestStartCountsSessions kills a program and starts it again: the log line about its start has the number of sessions in the
// store. At the first start there are none, and for a store in memory the line has no number.
func TestStartCountsSessions(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, url, shown string) {
		t.Helper()
		for _, want := range []string{" sessions=0 ", " sessions=3 "} {
			p := serve(t, "--demo", "--admin", "127.0.0.1:0", "--store", url)
			mcptest.Eventually(t, "the start is logged", time.Minute, func() bool { return strings.Contains(p.log.String(), "msg=serving ") })
			line := regexp.MustCompile(" store=" + regexp.QuoteMeta(shown) + `\S*` + want + "eras=auto authentication=none\n")
			if log := p.log.String(); !line.MatchString(log) {
				t.Errorf("want store=%s%s: %s", shown, want, log)
			}
			for range 3 {
				connect(t, p)
			}
			p.signal(t, os.Kill)
			_ = p.wait(t, time.Minute)
		}
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		p := serve(t, "--demo", "--admin", "127.0.0.1:0")
		mcptest.Eventually(t, "the start is logged", time.Minute, func() bool { return strings.Contains(p.log.String(), "msg=serving ") })
		if log := p.log.String(); !strings.Contains(log, " store=memory: eras=") {
			t.Errorf("the log is %s", log)
		}
	})
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, "file:"+t.TempDir(), "file:/") // a part of the path may be masked, as it looks like a token
	})
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		t.Helper()
		shown := e.url(e.addrs)
		if e.nats != nil {
			shown = "nats://" + strings.Join(e.addrs, ",")
		}
		test(t, e.url(e.addrs), shown)
	})
}
