//go:build unix

package redistest

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Acknowledged writes survive a SIGKILL. A paused server goes on.
func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.MustDo("SET", "a", "b c\r\nd")
	s.Pause()
	s.Resume()
	s.Kill()
	if _, err := s.Do("PING"); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if got := s.MustDo("GET", "a"); got != "b c\r\nd" {
		t.Errorf("after a restart: %q", got)
	}
	s.Stop()
	if !strings.Contains(s.Log(), "bye bye") {
		t.Errorf("the log of a server that was stopped: %s", s.Log())
	}
}

func TestSeveral(t *testing.T) {
	t.Parallel()
	master := Start(t)
	replica := Replica(t, master)
	sentinel := Sentinel(t, master, "mymaster")
	master.Kill()
	sentinel.FailOver("mymaster", replica)
	replica.MustDo("SET", "a", "b")
	all := Cluster(t, 3, true)
	all[0].Kill()
	FailOver(all[3], all[1:]...)
	all[3].MustDo("CLUSTER", "INFO")
}
