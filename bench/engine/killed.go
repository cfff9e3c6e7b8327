package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/tools"
	hf "holdfast/engine"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// comeBack is how long clients of a lost node wait before they connect again.
const comeBack = 100 * time.Millisecond

// A loss says how a node is lost, and how many sessions and calls it has.
type loss struct {
	verb  string // "killed" or "stopped"
	count int    // sessions, with a call in each
	quiet int    // more sessions, without a call
	do    func(*member)
	// load says that clients make light calls through the other nodes at the same time, and that no
	// client is connected to the lost node.
	load bool
}

func (s settings) loss() loss {
	if s.stopped > 0 {
		return loss{verb: "stopped", count: s.stopped, load: true, do: func(n *member) { _ = n.cmd.Process.Signal(syscall.SIGSTOP) }}
	}
	return loss{verb: "killed", count: s.killed, quiet: s.quiet, do: (*member).kill}
}

// lose starts three nodes over each engine, with all sessions on one of them, each with a call that
// is not retry-safe, and loses that node. It prints how long it took until the clients had the ends
// of their calls. If the node is killed, half of the clients are connected to it and come back to
// another.
func (s settings) lose(ctx context.Context) error {
	all, stop, err := startShared(s.only)
	defer stop()
	if err != nil {
		return err
	}
	l := s.loss()
	fmt.Printf("%d sessions on a node that is %s, a call in each; from then to the call's end at another node; %s:\n\n", l.count, l.verb, loadAverage())
	if l.quiet > 0 {
		fmt.Printf("(And %d more sessions, in which nothing happens.)\n\n", l.quiet)
	}
	fmt.Println("| engine | client connected to | p50 | p90 | worst |")
	fmt.Println("|---|---|---|---|---|")
	for _, e := range all {
		if e.name == "jetstream R1" {
			continue
		}
		for range s.rounds {
			if err := s.loseOne(ctx, e, l); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
	}
	fmt.Printf("\n%s\n", loadAverage())
	return nil
}

// loseOne does so once, for one engine.
func (s settings) loseOne(ctx context.Context, e engine, l loss) error {
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute+time.Duration(l.quiet)*5*time.Millisecond)
	defer stop()
	var nodes []*member
	defer func() {
		for _, n := range nodes {
			n.kill()
		}
	}()
	for range 3 {
		n, err := startMember(ctx, e.url, s.profiles)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	if l.quiet > 0 {
		w := watcher{node: nodes[0], began: time.Now()}
		if _, err := w.openKeeping(ctx, l.quiet, 1); err != nil {
			return err
		}
	}
	callers, calls, err := l.begin(ctx, nodes)
	if err != nil {
		return err
	}
	var beside *besiders
	if l.load {
		if beside, err = besideThem(nodes); err != nil {
			return err
		}
	}
	time.Sleep(3 * time.Second) // so that the machine is not busy with the beginning of calls any more
	at, before := time.Now(), cpuOf(nodes[1:])
	l.do(nodes[0])
	calls.Wait()
	if err := l.print(e, callers, at); err != nil {
		return err
	}
	if !l.load {
		pause(ctx, time.Until(at.Add(survivorsFor)))
		fmt.Printf("| %s | CPU of the other nodes in %v: %v | | | |\n", e.name, survivorsFor, (cpuOf(nodes[1:]) - before).Round(time.Millisecond))
	}
	if beside == nil {
		return nil
	}
	stalls, err := beside.end()
	if err != nil {
		return fmt.Errorf("light calls beside: %w", err)
	}
	printTimes(e, "another node: a light call's longest wait", stalls)
	return nil
}

// survivorsFor is how long the CPU of the other nodes is measured after a node was killed.
const survivorsFor = 20 * time.Second

// cpuOf returns the CPU time of nodes.
func cpuOf(nodes []*member) (sum time.Duration) {
	for _, n := range nodes {
		sum += spentBy(n.cmd.Process.Pid)
	}
	return sum
}

// begin begins the sessions on the first node, and a call in each. It returns when all calls run.
func (l *loss) begin(ctx context.Context, nodes []*member) (callers []*caller, calls *sync.WaitGroup, err error) {
	calls = new(sync.WaitGroup)
	running := make(chan error, l.count)
	slots := make(chan struct{}, 32)
	for i := range l.count {
		at, next := nodes[0], nodes[1+i/2%2]
		if l.load || i%2 == 0 {
			at = next
		}
		c := &caller{at: at.addr, next: next.addr, running: running}
		callers = append(callers, c)
		slots <- struct{}{}
		if err := c.begin(ctx, nodes[0].addr); err != nil {
			return nil, nil, err
		}
		calls.Go(func() { c.err = c.call(ctx, func() { <-slots }) })
	}
	for range callers {
		if err := <-running; err != nil {
			return nil, nil, err
		}
	}
	return callers, calls, nil
}

// print prints the times from the loss of the node to the ends of the calls.
func (l *loss) print(e engine, callers []*caller, lost time.Time) error {
	var took [2][]time.Duration
	for _, c := range callers {
		if c.err != nil {
			return c.err
		}
		where := 0
		if c.at != c.next {
			where = 1
		}
		took[where] = append(took[where], c.ended.Sub(lost))
	}
	for i, where := range []string{"another node", "the one " + l.verb} {
		if len(took[i]) > 0 {
			printTimes(e, where, took[i])
		}
	}
	return nil
}

func printTimes(e engine, where string, took []time.Duration) {
	slices.Sort(took)
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	fmt.Printf("| %s | %s | %v | %v | %v |\n", e.name, where,
		ms(took[len(took)/2]), ms(took[len(took)*9/10]), ms(took[len(took)-1]))
}

// A member is a node in a process of its own.
type member struct {
	cmd  *exec.Cmd
	addr string
}

func startMember(ctx context.Context, store string, profiles bool) (*member, error) {
	return startChild(ctx, "member", profiles, "-dir", store)
}

// startChild starts this program as a node of a kind. The first line of its output is its address.
func startChild(ctx context.Context, kind string, profiles bool, args ...string) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := &member{cmd: exec.CommandContext(ctx, self, append(args, "-child", kind, "-profiles="+strconv.FormatBool(profiles))...)}
	n.cmd.Stderr = os.Stderr
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	n.addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		n.kill()
		return nil, fmt.Errorf("a node did not begin: %w", err)
	}
	n.addr = strings.TrimSpace(n.addr)
	return n, nil
}

func (n *member) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// member runs in a member's process.
func (s settings) member(ctx context.Context) error {
	st, err := hf.Open(ctx, s.dir, hf.Options{})
	if err != nil {
		return err
	}
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(work)), &holdfast.Options{
		Store: st, Retry: comeBack, Logger: slog.New(slog.DiscardHandler),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	if s.profiles {
		fmt.Fprintf(os.Stderr, "profiles: http://%s/debug/pprof/\n", l.Addr())
	}
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

// said is how often each call reports progress before its node is lost.
const said = 5

// work answers calls of the tool work with progress but without an end, and other requests as
// [tools.Answer] does.
func work(x *message.Exchange) {
	if x.Method != "tools/call" || string(jsonrpc.Field(x.Params, "name")) != `"work"` {
		tools.Answer(x)
		return
	}
	for i := range said {
		x.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":1,"progress":%d,"message":"%0200d"}`, i+1, i+1))
	}
}

// A caller is a client with a session and a call, which resumes as the specification says.
type caller struct {
	at, next string
	session  string
	running  chan<- error
	lastID   string
	ended    time.Time
	err      error
}

// dials is the HTTP client of all callers, with a connection for each call.
var dials = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}

func (c *caller) send(ctx context.Context, method, at, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+at+"/", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"},
	}
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.lastID != "" {
		r.Header.Set("Last-Event-Id", c.lastID)
	}
	return dials.Do(r)
}

// begin begins the session at a node.
func (c *caller) begin(ctx context.Context, at string) error {
	res, err := c.send(ctx, http.MethodPost, at, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	c.session = res.Header.Get("Mcp-Session-Id")
	if c.session == "" {
		return errors.New("no session: " + res.Status)
	}
	return nil
}

// call makes the call, and resumes it until it has ended.
func (c *caller) call(ctx context.Context, begun func()) error {
	method, at := http.MethodPost, c.at
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","_meta":{"progressToken":1}}}`
	for first := true; ; first = false {
		res, err := c.send(ctx, method, at, body)
		if first {
			c.running <- err
			begun()
		}
		if err == nil {
			err = c.read(res)
			_ = res.Body.Close()
		}
		switch {
		case !c.ended.IsZero():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("a call has not ended: %w", err)
		case c.lastID == "":
			return fmt.Errorf("a call did not begin: %w", err)
		}
		method, at, body = http.MethodGet, c.next, ""
		time.Sleep(comeBack)
	}
}

func (c *caller) read(res *http.Response) error {
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	for events := sse.NewReader(res.Body, 1<<20); ; {
		ev, err := events.Next()
		if err != nil {
			return err
		}
		if ev.ID != "" {
			c.lastID = ev.ID
		}
		switch said := string(ev.Data); {
		case strings.Contains(said, `outcome unknown`):
			c.ended = time.Now()
			return nil
		case strings.Contains(said, `"id":1`):
			return errors.New("an end that nobody asked for: " + strconv.Quote(said))
		}
	}
}
