package e2e

import (
	"os"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// The process of an idle session ends, and is started again when the client comes back. A process that may have state does not
// end.
func TestSleepingProcess(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" stdio`, os.Args[0])
	// A response that was not sent at once is kept, on a busy machine also that of a ping, so --keep is short.
	p := serve(t, append([]string{"--sleep-after", "300ms", "--keep", "1s", "--unused-process", "0", "--drain", "1s"}, command...)...)
	s := p.stranger(t, "127.0.0.1")
	used, idle := s.begin(false), s.begin(true)
	s.post(p.URL, used, `{"jsonrpc":"2.0","id":7,"method":"vendor/set"}`) // an unknown method, which may set a state
	mcptest.Eventually(t, "the idle session's process to end", time.Minute, func() bool { return len(pids()) == 1 })
	mcptest.Eventually(t, "two processes to run for two sessions", time.Minute, func() bool {
		s.works(idle) // on a busy machine the session may be asleep again before its process is counted
		return len(pids()) == 2
	})
	s.works(used)
}
