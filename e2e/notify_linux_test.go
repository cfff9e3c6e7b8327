package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testport"
)

// systemd is notified when the program is ready, with its port open, and when it drains.
func TestNotify(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	at := filepath.Join(t.TempDir(), "notify")
	l := mcptest.Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"}))(t)
	defer l.Close()
	told := func() string {
		b := make([]byte, 100)
		_ = l.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := l.Read(b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}
	addr := testport.Addr(t)
	cmd := exec.Command(built, "serve", "--demo", "--listen", addr, "--admin", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+at)
	ready := make(chan string, 1)
	go func() {
		got := told()
		if c, err := net.Dial("tcp", addr); err != nil {
			got += " before its port is open: " + err.Error()
		} else {
			_ = c.Close()
		}
		ready <- got
	}()
	p := serveBy(t, cmd)
	if got := <-ready; got != "READY=1" {
		t.Errorf("it says %q, want READY=1", got)
	}
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	if got := told(); got != "STOPPING=1" {
		t.Errorf("it says %q, want STOPPING=1", got)
	}
}
