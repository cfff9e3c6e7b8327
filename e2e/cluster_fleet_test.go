package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/mcptest"
)

// A fleet is several nodes over one engine, and a front.
type fleet struct {
	t      *testing.T
	nodes  []*node
	front  *front
	remote bool   // as in its shape
	traces string // the directory of the tools' traces
}

// A shape describes a fleet.
type shape struct {
	nodes   int  // 0: 3
	doors   int  // the first nodes, as many as that, are doors, and the others workers; 0: all are both
	library bool // nodes are programs that use the library, not holdfast serve
	legacy  bool // the servers behind nodes speak legacy revisions only
	remote  bool // all nodes use one upstream server over HTTP, instead of a process for each session
	late    int  // seconds until the server process of a session answers
	wires   bool // there is a proxy between each node and each server of the engine
	flags   []string
	// doorFlags are more flags for doors. They override flags.
	doorFlags []string
	program   string // a holdfast other than the one that this test builds
	// programs are the programs of nodes, if they differ; "": the holdfast that this test builds.
	programs []string
	env      func(name string) []string // variables for a node's process, besides those of the test
	place    func(i int) place          // where a node runs; nil: as a child process on loopback
}

// A place is where a node runs.
type place struct {
	before        []string // the command line that starts a process there
	listen, admin string
	store         string // the URL of the engine from there
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
			for range 5 { // a node ends if the engine does not answer for long, and is started again, as by an orchestrator
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

// stop ends the nodes, and logs their output if the test has failed.
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

// runs returns how often the call with that id has begun to run, on any node.
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

// running waits until calls run, each for the first time.
func (f *fleet) running(requests ...request) {
	f.t.Helper()
	for _, q := range requests {
		mcptest.Eventually(f.t, "call "+q.args.ID+" runs", time.Minute, func() bool { return f.runs(q.args.ID) == 1 })
	}
}

// A node is a member of a fleet. It is one process at a time, each after the end of the one before.
type node struct {
	t       *testing.T
	name    string
	command []string
	before  []string // as in its place
	listen  string   // the address of its first process
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

// now returns the process that was started last, or nil.
func (n *node) now() *program {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.p
}

func (n *node) address() string { return n.now().Addr }

// url returns the URL of the node itself, without the front.
func (n *node) url() string { return "http://" + n.address() + "/mcp" }

// signal sends the process a signal.
func (n *node) signal(s os.Signal) {
	_ = n.now().cmd.Process.Signal(s) // an error says that the process has ended
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

// terminate tells the process to stop, and returns the error of its exit: nil for exit code 0.
func (n *node) terminate(atMost time.Duration) error {
	n.signal(syscall.SIGTERM)
	return n.now().wait(n.t, atMost)
}

// end ends the process if there is one, also if it is stopped.
func (n *node) end() {
	if n.now() != nil {
		n.signal(syscall.SIGCONT)
		n.kill()
	}
}

// ready returns the status of /readyz, or 0 without an answer.
func (n *node) ready() int {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	r, _ := (&mcptest.Client{URL: "http://" + n.now().admin + "/readyz", HTTP: mcptest.Unpooled}).Exchange(ctx, http.MethodGet, "")
	return r.Status
}

// callID returns an id for a call that no other call has.
func callID(t *testing.T, parts ...any) string {
	return notInIDs.ReplaceAllString(t.Name()+"-"+fmt.Sprint(parts...), "-")
}

var notInIDs = regexp.MustCompile(`[^a-zA-Z0-9]`)

// alive reports whether the node's process runs.
func (n *node) alive() bool {
	select {
	case <-n.now().ended:
		return false
	default:
		return true
	}
}

// prefer returns the URL of the first node that lives, for a client.
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

// client begins a session at the URL that at returns. The client sends later requests to the
// URL that then returns.
func (f *fleet) client(at, then func() string) *specClient {
	f.t.Helper()
	r := mcptest.Must(newSpecClient(f.t.Context(), at, ""))(f.t)
	f.t.Cleanup(r.close)
	r.at = then
	return r
}

// balanced returns the URL of the front.
func (f *fleet) balanced() string { return f.front.URL }
