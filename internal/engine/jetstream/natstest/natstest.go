// Package natstest runs JetStream clusters on loopback, for tests and examples.
//
// [Start] runs the servers in this process, [StartProcesses] each in a process of
// its own, which can be killed and stopped. [Cluster] and [Processes] are the same
// for tests.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/testport"
)

// User and Password are the credentials of clients.
const (
	User     = "holdfast"
	Password = "s3cret"
)

// patience is how long a cluster may take to start on a busy machine.
const patience = time.Minute

// Servers are the servers of one cluster. Kill, Restart, Pause, Resume and Close have
// one caller at a time.
type Servers struct {
	nodes []*node
	launch
}

// A node is one server: its config, and the running instance.
type node struct {
	config
	running server // nil: it does not run
}

// A launch starts a server.
type launch func(config) (server, error)

// A server controls a running server.
type server interface {
	kill()
	pause() error
	resume() error
}

// A config has the settings of a server.
type config struct {
	Name    string
	Dir     string
	Port    int // of clients
	Routes  []string
	Route   int // its own port for other servers
	Cluster string
}

// Start starts n servers in this process, with their data below dir. One server
// alone is no cluster.
func Start(dir string, n int) (*Servers, error) { return start(dir, n, embed) }

// StartProcesses starts n servers, each in a process of its own: the running
// program again, which must call [Main] before anything else.
func StartProcesses(dir string, n int) (*Servers, error) { return start(dir, n, spawn) }

// Cluster starts three servers in this process, and ends them with the test.
func Cluster(t testing.TB) *Servers {
	t.Helper()
	return forTest(t, Start)
}

// Processes starts three servers in processes of their own, and ends them with the
// test. TestMain must call [Main] first.
func Processes(t testing.TB) *Servers {
	t.Helper()
	return forTest(t, StartProcesses)
}

func forTest(t testing.TB, start func(string, int) (*Servers, error)) *Servers {
	t.Helper()
	s, err := start(t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func start(dir string, n int, l launch) (*Servers, error) {
	ports, err := testport.Free(2 * n)
	if err != nil {
		return nil, err
	}
	s := &Servers{launch: l}
	var routes []string
	for i := range n {
		routes = append(routes, "nats://"+testport.Loopback(ports[n+i]))
	}
	for i := range n {
		s.nodes = append(s.nodes, &node{config: config{
			Name: "n" + strconv.Itoa(i), Dir: filepath.Join(dir, "n"+strconv.Itoa(i)),
			Port: ports[i], Route: ports[n+i], Routes: routes, Cluster: "natstest",
		}})
	}
	for i := range s.nodes {
		if err := s.run(i); err != nil {
			s.Close()
			return nil, err
		}
	}
	if err := s.ready(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// URL is that of all servers, with the password, as --store takes it. nats.go by itself
// gives the password to the first server only: it needs [nats.UserInfo] too.
func (s *Servers) URL() string {
	hosts := make([]string, len(s.nodes))
	for i := range s.nodes {
		hosts[i] = s.Addr(i)
	}
	return "nats://" + url.UserPassword(User, Password).String() + "@" + strings.Join(hosts, ",")
}

// Addr is the host and port of a server, for clients.
func (s *Servers) Addr(i int) string { return testport.Loopback(s.nodes[i].Port) }

// Len is the number of servers, running or not.
func (s *Servers) Len() int { return len(s.nodes) }

// PIDs are the process ids of the servers that [StartProcesses] has started and that run.
func (s *Servers) PIDs() (all []int) {
	for _, n := range s.nodes {
		if c, ok := n.running.(*child); ok {
			all = append(all, c.cmd.Process.Pid)
		}
	}
	return all
}

// Kill ends a server at once: a process by SIGKILL, one in this process by having it
// shut down, which is nearly as sudden to its clients.
func (s *Servers) Kill(i int) {
	if n := s.nodes[i]; n.running != nil {
		n.running.kill()
		n.running = nil
	}
}

// Restart starts a server that was killed, with the data it had. It returns when it
// takes connections; the cluster may need seconds more to have it up to date.
func (s *Servers) Restart(i int) error {
	s.Kill(i)
	return s.run(i)
}

// Pause stops a server's process (SIGSTOP) until Resume.
func (s *Servers) Pause(i int) error { return s.nodes[i].signal(server.pause) }

// Resume continues the server's process (SIGCONT).
func (s *Servers) Resume(i int) error { return s.nodes[i].signal(server.resume) }

func (n *node) signal(f func(server) error) error {
	if n.running == nil {
		return errors.New("natstest: the server does not run")
	}
	return f(n.running)
}

// Leader returns the index of the server that leads a stream; -1: none does.
func (s *Servers) Leader(ctx context.Context, stream string) (int, error) {
	var at int
	err := s.with(func(js jetstream.JetStream) error {
		st, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		at = s.index(st.CachedInfo().Cluster.Leader)
		return nil
	})
	return at, err
}

func (s *Servers) index(name string) int {
	for i, n := range s.nodes {
		if n.Name == name {
			return i
		}
	}
	return -1
}

// Close ends all servers.
func (s *Servers) Close() {
	for i := range s.nodes {
		s.Kill(i)
	}
}

func (s *Servers) run(i int) error {
	n := s.nodes[i]
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return fmt.Errorf("natstest: %w", err)
	}
	running, err := s.launch(n.config)
	if err != nil {
		return fmt.Errorf("natstest: starting server %s: %w", n.Name, err)
	}
	n.running = running
	return until(func() error {
		c, err := net.DialTimeout("tcp", s.Addr(i), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// ready waits until the servers are one cluster, which is when a stream can be made that
// all of them keep. The stream stays: when the last stream is deleted, the server removes
// its directory a moment later, and a client that makes a stream just then gets an error
// ("error creating store for stream").
func (s *Servers) ready() error {
	return until(func() error {
		return s.with(func(js jetstream.JetStream) error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{
				Name: "ready", Subjects: []string{"ready"}, Storage: jetstream.MemoryStorage, Replicas: len(s.nodes),
			})
			return err
		})
	})
}

// with calls f over a connection to the cluster.
func (s *Servers) with(f func(jetstream.JetStream) error) error {
	nc, err := nats.Connect(s.URL(), nats.UserInfo(User, Password), nats.Timeout(2*time.Second))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return f(js)
}

// until calls f until it succeeds.
func until(f func() error) error {
	for end := time.Now().Add(patience); ; {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("natstest: the cluster does not start: %w", err)
		}
		time.Sleep(20 * time.Millisecond) // polling: there is no event to wait for
	}
}
