package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/mcptest"
)

// A fleet is some nodes on one engine, and a front.
type fleet struct {
	t      *testing.T
	nodes  []*node
	front  *front
	remote bool   // as its shape says
	traces string // the directory where the tools leave theirs
}

// shape says what a fleet is like.
type shape struct {
	nodes   int  // 3
	doors   int  // so many of the nodes, the first, are doors, and the others workers; 0: all are both
	library bool // nodes are programs with the library in them, not holdfast serve
	legacy  bool // the processes speak legacy revisions only
	remote  bool // they stand in front of one server over HTTP, instead of one process for each session
	late    int  // seconds that each process takes until it runs
	wires   bool // between each node and each server of the engine
	flags   []string
	// doorFlags are for doors, and count more than flags.
	doorFlags []string
	program   string // another holdfast than the one that is built
	// programs are those of the nodes, if they differ; "": the one that is built.
	programs []string
	env      func(name string) []string // of a node's process, besides that of the test
	place    func(i int) place          // where a node runs; nil: here
}

// A place is where a node runs.
type place struct {
	before        []string // what starts its process there
	listen, admin string
	store         string // how it reaches the engine
}

// newFleet starts nodes over an engine.
func newFleet(t *testing.T, e *sharedEngine, s shape) *fleet {
	t.Helper()
	mcptest.Check(t, build())
	f := &fleet{t: t, remote: s.remote, traces: t.TempDir()}
	if s.nodes == 0 {
		s.nodes = 3
	}
	behind := []string{"--", os.Args[0], "worker", f.traces}
	if s.legacy {
		behind = append(behind, "legacy")
	}
	if s.late > 0 {
		behind = append([]string{"--", "sh", "-c", fmt.Sprintf(`sleep %d; exec "$0" "$@"`, s.late)}, behind[1:]...)
	}
	if s.remote {
		behind = []string{"--upstream", upstream(t, workServer(f.traces), nil)}
	}
	for i := range s.nodes {
		n := &node{t: t, name: string(rune('A' + i))}
		addrs := e.addrs
		if s.wires {
			addrs = nil
			for _, a := range e.addrs {
				w := clustertest.NewProxy(t, a)
				n.wires = append(n.wires, w)
				addrs = append(addrs, w.Addr())
			}
		}
		at := place{listen: "127.0.0.1:0", admin: "127.0.0.1:0", store: e.url(addrs)}
		if s.place != nil {
			at = s.place(i)
		}
		n.listen = at.listen
		flags := append([]string{"--admin", at.admin, "--store", at.store, "--retry", "100ms"}, s.flags...)
		if s.doors > 0 && (s.programs == nil || s.programs[i] == "") {
			flags = append(flags, "--role", []string{"door", "worker"}[min(i/s.doors, 1)])
			if i < s.doors {
				flags = append(flags, s.doorFlags...)
			}
		}
		if s.library {
			n.command = append(append([]string{os.Args[0], "node"}, flags...), f.traces)
		} else {
			flags = append(flags, "--max-processes", "10000", "--max-share", "1")
			program := s.program
			if s.programs != nil {
				program = s.programs[i]
			}
			n.command = slices.Concat([]string{cmp.Or(program, built), "serve"}, flags, behind)
		}
		n.before = at.before
		if s.env != nil {
			n.env = s.env(n.name)
		}
		f.nodes = append(f.nodes, n)
	}
	var all sync.WaitGroup
	for _, n := range f.nodes {
		all.Go(func() {
			for range 5 { // a node gives up on an engine that does not answer for long: it is begun again, as by an orchestrator
				if n.err = n.start(n.listen); n.err == nil || !strings.Contains(n.err.Error(), "is the engine running") {
					return
				}
			}
		})
	}
	all.Wait()
	t.Cleanup(f.stop)
	for _, n := range f.nodes {
		if n.err != nil {
			t.Fatal(n.err)
		}
	}
	f.front = newFront(t, func() (addrs []string) {
		for _, n := range f.nodes[:cmp.Or(s.doors, s.nodes)] {
			addrs = append(addrs, n.address())
		}
		return addrs
	})
	return f
}

// stop ends the nodes, and says what they said if the test has failed.
func (f *fleet) stop() {
	var all sync.WaitGroup
	for _, n := range f.nodes {
		all.Go(n.end)
	}
	all.Wait()
	for _, n := range f.nodes {
		said := n.log.String()
		if broken := broke.FindString(said); broken != "" {
			f.t.Errorf("node %s: %s", n.name, broken)
		}
		if f.t.Failed() {
			f.t.Logf("node %s:\n%s", n.name, said[max(0, len(said)-6000):])
		}
	}
}

// runs is how often the call with that id has begun to run, on any node.
func (f *fleet) runs(id string) int {
	data, err := os.ReadFile(filepath.Join(f.traces, id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Error(err)
	}
	return len(data)
}

// wantRuns checks how often a call has run.
func (f *fleet) wantRuns(id string, least, most int) {
	f.t.Helper()
	if n := f.runs(id); n < least || n > most {
		f.t.Errorf("call %s has run %d times, want %d to %d", id, n, least, most)
	}
}

// A node is one of a fleet: one process after another.
type node struct {
	t       *testing.T
	name    string
	command []string
	before  []string // what starts it where it runs
	listen  string   // where it listens at first
	env     []string
	wires   []*clustertest.Proxy // to its engine
	log     mcptest.Log
	err     error // of its first start

	mu sync.Mutex
	p  *program
}

// start starts a process, and waits until it serves.
func (n *node) start(listen string) error {
	line := append(append(slices.Clone(n.before), n.command[:2]...), append([]string{"--listen", listen}, n.command[2:]...)...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), n.env...)
	p, greeted, err := spawn(cmd, &n.log)
	if err != nil {
		return err
	}
	if !greeted {
		<-p.ended
		return fmt.Errorf("node %s did not say where it serves: %s", n.name, n.log.String())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.p = p
	return nil
}

// now returns the process that was started last; nil: none was.
func (n *node) now() *program {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.p
}

func (n *node) address() string { return n.now().Addr }

// url is where the node itself is reached.
func (n *node) url() string { return "http://" + n.address() + "/mcp" }

// signal sends the process a signal.
func (n *node) signal(s os.Signal) {
	_ = n.now().cmd.Process.Signal(s) // or it has ended
}

// kill ends the process with SIGKILL, and waits until it is gone.
func (n *node) kill() {
	n.signal(syscall.SIGKILL)
	<-n.now().ended
}

// restart starts the node again after its process has ended, at another port, as
// orchestrators do.
func (n *node) restart() {
	n.t.Helper()
	if err := n.start("127.0.0.1:0"); err != nil {
		n.t.Error(err)
	}
}

// terminate tells the process to stop, and returns how it has ended: nil for exit
// code 0.
func (n *node) terminate(atMost time.Duration) error {
	n.signal(syscall.SIGTERM)
	return n.now().wait(n.t, atMost)
}

// end ends the process if there is one, whatever its state.
func (n *node) end() {
	if n.now() != nil {
		n.signal(syscall.SIGCONT)
		n.kill()
	}
}

// ready is what /readyz says, 0: nothing.
func (n *node) ready() int {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + n.now().admin + "/readyz")
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// callID makes ids of calls that no other has.
func callID(t *testing.T, parts ...any) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	return strings.ReplaceAll(name+"-"+fmt.Sprint(parts...), " ", "-")
}

// alive says whether the node's process runs.
func (n *node) alive() bool {
	select {
	case <-n.now().ended:
		return false
	default:
		return true
	}
}

// prefer is where a client goes that sticks to the first of some nodes that lives.
func prefer(nodes ...*node) func() string {
	return func() string {
		for _, n := range nodes {
			if n.alive() {
				return n.url()
			}
		}
		return nodes[0].url()
	}
}

// client begins a session with the node that at says, and goes where then says from
// then on.
func (f *fleet) client(at, then func() string) *specClient {
	f.t.Helper()
	r := mcptest.Must(newSpecClient(f.t.Context(), at, ""))(f.t)
	f.t.Cleanup(r.close)
	r.at = then
	return r
}

// balanced is through the front.
func (f *fleet) balanced() string { return f.front.URL }
