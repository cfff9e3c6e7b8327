package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// systemd is notified when the program is ready, with its port open, and when it drains.
func TestNotify(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	at := filepath.Join(t.TempDir(), "notify")
	l := mcptest.Must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"}))(t)
	defer l.Close()
	told := func() string {
		t.Helper()
		b := make([]byte, 100)
		_ = l.SetReadDeadline(time.Now().Add(time.Minute))
		n := mcptest.Must(l.Read(b))(t)
		return string(b[:n])
	}
	cmd := exec.Command(built, "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+at)
	p := serveBy(t, cmd)
	if got := told(); got != "READY=1" {
		t.Errorf("it says %q, want READY=1", got)
	}
	c := mcptest.Must(net.Dial("tcp", p.Addr))(t)
	_ = c.Close()
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	if got := told(); got != "STOPPING=1" {
		t.Errorf("it says %q, want STOPPING=1", got)
	}
}
