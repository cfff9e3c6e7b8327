package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/bench/load"
)

// This file measures gateways between clients and servers of both eras: the CPU of a gateway's
// process for a plain call, the same with the servers behind it, and how long the client waits.

// gatewayProgram is the package of Holdfast's gateway.
const gatewayProgram = "holdfast/cmd/holdfast"

// A pair is the era of a client and the era of a server.
type pair struct{ client, server string }

func (p pair) String() string { return p.client + " client, " + p.server + " server" }

var pairs = []pair{{"legacy", "legacy"}, {"modern", "modern"}, {"modern", "legacy"}, {"legacy", "modern"}}

// A gateway stands between a client and a server.
type gateway struct {
	name string
	npm  bool // node runs it
	// http says that the gateway reaches the server over HTTP, and not by stdio.
	http bool
	// args returns the gateway's command line. server is the command of a stdio server, or the URL
	// of an HTTP server.
	args func(dir, npm string, port int, server []string) []string
}

// direct stands for the server itself, over HTTP, without a gateway.
const direct = "no gateway, over HTTP"

var gateways = []gateway{
	{name: direct, http: true},
	{
		name: "Holdfast, `serve -- CMD`",
		args: func(dir, _ string, port int, server []string) []string {
			return append([]string{filepath.Join(dir, binary(gatewayProgram)), "serve", "--log-level", "error", "--listen", local(port), "--"}, server...)
		},
	},
	{
		name: "mcp-proxy 6.7.19", npm: true,
		args: func(_, npm string, port int, server []string) []string {
			return append([]string{"node", filepath.Join(npm, "node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs"),
				"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--server", "stream", "--"}, server...)
		},
	},
	{
		name: "supergateway 4.0.0", npm: true,
		args: func(_, npm string, port int, server []string) []string {
			return []string{"node", filepath.Join(npm, "node_modules/supergateway/dist/index.js"), "--stdio", strings.Join(server, " "),
				"--outputTransport", "streamableHttp", "--stateful", "--port", strconv.Itoa(port), "--logLevel", "none"}
		},
	},
	{
		name: "Holdfast, `serve --upstream URL`", http: true,
		args: func(dir, _ string, port int, server []string) []string {
			return append([]string{filepath.Join(dir, binary(gatewayProgram)), "serve", "--log-level", "error", "--listen", local(port), "--upstream"}, server...)
		},
	},
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// The figures of a gateway.
const (
	gatewayCPU = "CPU of the gateway"
	allCPU     = "CPU of the gateway and the server"
	latency    = "time to the answer, one client"
	latency99  = "the slowest of a hundred"
)

// gatewayWarmUp is how many calls are made before calls count, as node compiles code that it runs
// often; but not for longer than warmUpTime, as one of the gateways starts a server for each call.
const (
	gatewayWarmUp = 300
	warmUpTime    = time.Second
)

// compareEras measures all gateways at all pairs, in turns.
func compareEras(w io.Writer, dir, npm string, rounds int, each time.Duration) error {
	f := newFigures()
	cannot := make(map[string]string)
	for range rounds {
		for i := range gateways {
			g := &gateways[i]
			for _, p := range pairs {
				key := g.name + ": " + p.String()
				if g.npm && npm == "" || g.name == direct && p.client != p.server || cannot[key] != "" {
					continue
				}
				err := eraRound(f, g, p, dir, npm, each)
				if err != nil && !g.npm {
					return fmt.Errorf("%s: %w", key, err)
				}
				if err != nil {
					cannot[key] = strings.TrimPrefix(err.Error(), p.String()+": ")
				}
			}
		}
	}
	return f.printEras(w, rounds, cannot)
}

// eraRound measures a gateway once, for a pair.
func eraRound(f figures, g *gateway, pair pair, dir, npm string, each time.Duration) error {
	t, err := begin(g, pair, dir, npm)
	defer t.stop()
	if err != nil {
		return err
	}
	what := func(s string) string { return pair.String() + ": " + s }
	one, err := dialEra(t.addr, pair, 1)
	if err != nil {
		return err
	}
	defer hangUp(one)
	calls, err := warmed(one, pair)
	if err != nil {
		return err
	}
	var took []time.Duration
	for end := time.Now().Add(each); time.Now().Before(end); {
		at := time.Now()
		if err := calls[0](); err != nil {
			return err
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	f.add(what(latency), g.name, micros(took[len(took)/2]))
	f.add(what(latency99), g.name, micros(took[len(took)*99/100]))

	many, err := dialEra(t.addr, pair, callers)
	if err != nil {
		return err
	}
	defer hangUp(many)
	if calls, err = warmed(many, pair); err != nil {
		return err
	}
	own, all, err := t.cpu()
	if err != nil {
		return err
	}
	ops := make([]int, len(calls))
	errs := make([]error, len(calls))
	end := time.Now().Add(each)
	inParallel(len(calls), func(i int) {
		for time.Now().Before(end) && errs[i] == nil {
			errs[i] = calls[i]()
			ops[i]++
		}
	})
	own2, all2, err := t.cpu()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	n := 0
	for _, o := range ops {
		n += o
	}
	f.add(what(gatewayCPU), g.name, micros(own2-own)/float64(n))
	f.add(what(allCPU), g.name, micros(all2-all)/float64(n))
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// dialEra opens clients of a pair's era. Legacy clients begin a session each.
func dialEra(addr string, p pair, n int) (cs []*caller, err error) {
	s := subject{name: p.String(), bare: p.client == "modern"}
	return s.call(&process{addr: addr}, "/mcp", n)
}

// warmed returns a function for each client that makes one call. Each client has made its first
// calls.
func warmed(cs []*caller, p pair) ([]func() error, error) {
	calls := make([]func() error, len(cs))
	errs := make([]error, len(cs))
	for i, c := range cs {
		req := c.post(load.Echo(echoSize))
		if p.client == "modern" {
			req = load.PostModern(c.addr, c.path, "echo", load.EchoArgs(echoSize))
		}
		calls[i] = func() error {
			res, err := c.Do(req.Next())
			if err != nil {
				return err
			}
			return res.Expect(200, "eeee")
		}
	}
	began := time.Now()
	inParallel(len(cs), func(i int) {
		for n := 0; n < max(gatewayWarmUp/len(cs), warmUp) && (n == 0 || time.Since(began) < warmUpTime) && errs[i] == nil; n++ {
			errs[i] = calls[i]()
		}
	})
	return calls, errors.Join(errs...)
}

// A turn is a running gateway and the server behind it.
type turn struct {
	addr    string
	gateway *exec.Cmd // nil: direct
	ended   chan struct{}
	server  *process // of HTTP; nil: the gateway has started its own
}

// begin starts a gateway, and waits until it listens. The caller must stop the turn also after an
// error.
func begin(g *gateway, p pair, dir, npm string) (t turn, err error) {
	server := []string{filepath.Join(dir, binary(peers)), "-kind", p.server, "-stdio"}
	if g.http {
		if t.server, err = start(filepath.Join(dir, binary(peers)), "-kind", p.server); err != nil {
			return t, err
		}
		t.addr = t.server.addr
		server = []string{"http://" + t.addr + "/mcp"}
	}
	if g.args == nil {
		return t, nil
	}
	port, err := freePort()
	if err != nil {
		return t, err
	}
	args := g.args(dir, npm, port, server)
	t.addr = local(port)
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		return t, err
	}
	t.gateway, t.ended = cmd, make(chan struct{})
	go func() {
		defer close(t.ended)
		_ = cmd.Wait()
	}()
	for range 600 {
		conn, err := net.Dial("tcp", t.addr)
		if err == nil {
			return t, conn.Close()
		}
		select {
		case <-t.ended:
			return t, errors.New("it ends when it is started with such a server")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return t, errors.New("it does not listen")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// stop ends a turn, with the servers that the gateway has started.
func (t *turn) stop() {
	if t.gateway != nil {
		all := descendants(t.gateway.Process.Pid)
		_ = t.gateway.Process.Kill()
		<-t.ended
		for _, pid := range all {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill() // most have ended with their stdin
			}
		}
	}
	if t.server != nil {
		t.server.stop()
	}
}

// cpu returns the CPU time of the gateway, and that of the gateway with the servers.
func (t *turn) cpu() (own, all time.Duration, err error) {
	if t.gateway != nil {
		if own, err = cpuOf(t.gateway.Process.Pid); err != nil {
			return 0, 0, err
		}
		all = own + reaped(t.gateway.Process.Pid)
		for _, pid := range descendants(t.gateway.Process.Pid) {
			if spent, err := cpuOf(pid); err == nil { // on an error the process has ended just now
				all += spent + reaped(pid)
			}
		}
	}
	if t.server != nil {
		spent, err := t.server.cpu()
		if err != nil {
			return 0, 0, err
		}
		all += spent
	}
	return own, all, nil
}

// reaped returns the CPU time of the processes that a process has started and that have ended: a
// gateway may start a server for each call.
func reaped(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[13], 10, 64)
	kernel, _ := strconv.ParseInt(fields[14], 10, 64)
	return time.Duration(user+kernel) * 10 * time.Millisecond // a tick on every Linux that Go runs on
}

// descendants returns the processes that a process has started, and those that these have started,
// and so on.
func descendants(pid int) (all []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	parents := make(map[int][]int)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest)
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if len(fields) < 2 || err1 != nil {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		parents[parent] = append(parents[parent], child)
	}
	for next := []int{pid}; len(next) > 0; {
		children := parents[next[0]]
		next = append(next[1:], children...)
		all = append(all, children...)
	}
	return all
}

// printEras writes the report.
func (f figures) printEras(w io.Writer, rounds int, cannot map[string]string) error {
	var b strings.Builder
	f.head(&b, rounds, fmt.Sprintf("%d clients", callers))
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(&b, "Load average at the end (this run itself is about 2): %s.\n\n", strings.Join(strings.Fields(string(load))[:3], ", "))
	names := make([]string, len(gateways))
	for i := range gateways {
		names[i] = gateways[i].name
	}
	columns := make([]string, len(pairs))
	for i, p := range pairs {
		columns[i] = p.String()
	}
	b.WriteString("CPU for a plain call in µs, user and kernel: of the gateway / with the servers behind it:\n\n")
	table(&b, names, columns, func(pair, name string) string {
		own, all := median(f.rounds[pair+": "+gatewayCPU][name]), median(f.rounds[pair+": "+allCPU][name])
		switch {
		case all == 0:
			return ""
		case name == direct:
			return fmt.Sprintf("– / %.0f", all)
		}
		return fmt.Sprintf("%.0f / %.0f", own, all)
	})
	b.WriteString("\nTime until one client that calls alone has its answer, in µs: median / 99 of 100 calls:\n\n")
	table(&b, names, columns, func(pair, name string) string {
		v := median(f.rounds[pair+": "+latency][name])
		if v == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f / %.0f", v, median(f.rounds[pair+": "+latency99][name]))
	})
	for _, g := range gateways {
		for _, p := range pairs {
			if why := cannot[g.name+": "+p.String()]; why != "" {
				fmt.Fprintf(&b, "\n%s cannot do %v: %s\n", g.name, p, why)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
