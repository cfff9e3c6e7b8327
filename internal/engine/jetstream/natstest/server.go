package natstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"
)

// variable is the environment variable that makes a program a server.
const variable = "HOLDFAST_NATSTEST_SERVER"

// newServer returns a server that is starting.
func newServer(c config) (*natsserver.Server, error) {
	o := &natsserver.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, Username: User, Password: Password,
		JetStream: true, StoreDir: c.Dir, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 64 << 20,
		NoSigs: true, NoLog: true, MaxPayload: 8 << 20, PingInterval: 2 * time.Second, MaxPingsOut: 2,
	}
	if len(c.Routes) == 1 {
		c.Routes = nil // alone
	} else {
		o.Cluster = natsserver.ClusterOpts{
			Name: c.Cluster, NoAdvertise: true, Host: "127.0.0.1", Port: c.Route, PingInterval: 2 * time.Second, MaxPingsOut: 2,
		}
	}
	for _, r := range c.Routes {
		u, err := url.Parse(r)
		if err != nil {
			return nil, err
		}
		o.Routes = append(o.Routes, u)
	}
	s, err := natsserver.NewServer(o)
	if err != nil {
		return nil, err
	}
	s.Start()
	return s, nil
}

// embedded is a server in this process.
type embedded struct{ s *natsserver.Server }

func embed(c config) (server, error) {
	s, err := newServer(c)
	if err != nil {
		return nil, err
	}
	return embedded{s}, nil
}

func (e embedded) kill() {
	e.s.Shutdown()
	e.s.WaitForShutdown()
}

func (embedded) pause() error  { return errors.New("natstest: only a process can be paused") }
func (embedded) resume() error { return errors.New("natstest: only a process can be paused") }

// child is a server in a process of its own.
type child struct {
	cmd   *exec.Cmd
	alive io.Closer // ends the child when closed, or when this process ends
}

func spawn(c config) (server, error) {
	conf, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+string(conf))
	cmd.Stderr = os.Stderr
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, alive: alive}, nil
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	_ = c.alive.Close()
}

func (c *child) pause() error  { return c.cmd.Process.Signal(syscall.SIGSTOP) }
func (c *child) resume() error { return c.cmd.Process.Signal(syscall.SIGCONT) }

// Main runs a server and never returns, if this process was started to be one by
// [StartProcesses]; else it does nothing. It must be called before flags are read:
// first in main, or in TestMain.
func Main() {
	conf := os.Getenv(variable)
	if conf == "" {
		return
	}
	var c config
	if err := json.Unmarshal([]byte(conf), &c); err != nil {
		fatal(err)
	}
	s, err := newServer(c)
	if err != nil {
		fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent has gone
	s.Shutdown()
	os.Exit(0)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "natstest:", err)
	os.Exit(1)
}

// Left returns the goroutines that goleak has to ignore if servers ran in the test's process:
// a server of nats-server 2.15 that is shut down while it makes a stream does not close the
// stream's files. The goroutine that would write them and the clock of all files stay.
func Left() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}
