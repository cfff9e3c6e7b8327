package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// clientProgram is the package of the clients under measurement.
const clientProgram = "holdfast/bench/peers/client"

// clientKinds are the clients: their names in the report, and their kinds for clientProgram.
var clientKinds = []struct{ name, kind string }{
	{"bare net/http", "bare"},
	{"mcp.Client alone", "alone"},
	{sdkClient, "sdk"},
	{ourClient, "holdfast"},
	{ourConn, "conn"},
}

// The names of clients that the report compares.
const (
	sdkClient = "go-sdk"
	ourClient = "Holdfast, mcp.Client"
	ourConn   = "Holdfast, as `connect` uses it"
)

// A scene is a task that clients are measured at: calls of one tool of one server.
type scene struct {
	name   string
	server string // binary
	args   []string
	path   string
	tool   string
	only   []string // kinds; none: all
}

// overHTTP are the kinds of clients that speak the protocol over HTTP.
var overHTTP = []string{"sdk", "holdfast", "conn"}

// clientScenes are the scenes at which CPU is measured.
var clientScenes = []scene{
	{name: "JSON", server: peers, args: []string{"-kind", "light"}, path: "/json", tool: "echo"},
	{name: "SSE", server: peers, args: []string{"-kind", "light"}, path: "/sse", tool: "echo", only: []string{"bare", "sdk", "holdfast", "conn"}},
	{name: "SSE, 100 events", server: peers, args: []string{"-kind", "light"}, path: "/events", tool: "progress"},
	{name: "go-sdk's handler", server: peers, args: []string{"-kind", "go-sdk"}, path: "/mcp-sse", tool: "echo", only: overHTTP},
	{name: "go-sdk's handler, 100 events", server: peers, args: []string{"-kind", "go-sdk"}, path: "/mcp-sse", tool: "progress", only: overHTTP},
	{name: "Holdfast's", server: ours, args: []string{"-backend", "message"}, path: "/mcp", tool: "echo", only: overHTTP},
	{name: "Holdfast's, 100 events", server: ours, args: []string{"-backend", "message"}, path: "/mcp", tool: "progress", only: overHTTP},
}

// waitScene is the scene in which calls wait.
var waitScene = scene{name: waitingCall, server: peers, args: []string{"-kind", "light"}, path: "/wait", tool: "slow"}

// clientFigures are the figures that a client process prints (package client).
type clientFigures struct {
	Calls      int     `json:"calls"`
	Events     int     `json:"events"`
	CPU        int64   `json:"cpu"`
	Allocs     uint64  `json:"allocs"`
	Bytes      uint64  `json:"bytes"`
	Latency    float64 `json:"latency"`
	InUse      float64 `json:"in_use"`
	Alive      float64 `json:"alive"`
	Goroutines float64 `json:"goroutines"`
}

// compareClients measures clients, in turns, against the same server processes, and prints their
// CPU, allocations and memory.
func compareClients(w io.Writer, dir string, rounds int, each time.Duration, held int) error {
	f := newFigures()
	for i := range clientScenes {
		if err := clientCPU(f, &clientScenes[i], dir, rounds, each); err != nil {
			return err
		}
	}
	if err := resumedCalls(f, dir, rounds, each); err != nil {
		return err
	}
	if held > 0 {
		if err := clientMemory(f, dir, held); err != nil {
			return err
		}
	}
	return f.printClients(w, rounds)
}

// clientCPU measures the clients at one scene.
func clientCPU(f figures, s *scene, dir string, rounds int, each time.Duration) error {
	p, err := start(filepath.Join(dir, binary(s.server)), s.args...)
	if err != nil {
		return err
	}
	defer p.stop()
	for range rounds {
		for _, k := range clientKinds {
			if !s.has(k.kind) {
				continue
			}
			got, err := measureClient(dir, nil, "-kind", k.kind, "-url", "http://"+p.addr+s.path, "-tool", s.tool,
				"-callers", fmt.Sprint(callers), "-for", each.String())
			if err != nil {
				return fmt.Errorf("%s: %s: %w", k.name, s.name, err)
			}
			f.add(s.name, k.name, float64(got.CPU)/float64(got.Calls))
			f.add(s.name+allocs, k.name, float64(got.Allocs)/float64(got.Calls))
			f.add(s.name+allocated, k.name, float64(got.Bytes)/float64(got.Calls)/1024)
		}
	}
	return nil
}

// The suffixes of a scene's name for its other figures.
const (
	allocs    = ": objects"
	allocated = ": KB"
)

func (s *scene) has(kind string) bool {
	return len(s.only) == 0 || slices.Contains(s.only, kind)
}

// clientMemory measures the memory of a call that waits.
func clientMemory(f figures, dir string, held int) error {
	s := &waitScene
	p, err := start(filepath.Join(dir, binary(s.server)), s.args...)
	if err != nil {
		return err
	}
	defer p.stop()
	f.memory[s.name] = make(map[string]memory)
	for _, k := range clientKinds {
		if k.kind == "alone" {
			continue // it answers all calls at once
		}
		got, err := measureClient(dir, nil, "-kind", k.kind, "-url", "http://"+p.addr+s.path, "-tool", s.tool, "-held", fmt.Sprint(held))
		if err != nil {
			return fmt.Errorf("%s: %s: %w", k.name, s.name, err)
		}
		f.memory[s.name][k.name] = memory{inUse: got.InUse, alive: got.Alive, goroutines: got.Goroutines}
	}
	return nil
}

// measureClient lets one client process measure itself. around, if not nil, is called when the
// process is ready, and the function that it returns when the process is done.
func measureClient(dir string, around func() (func() error, error), args ...string) (f clientFigures, err error) {
	cmd := exec.Command(filepath.Join(dir, binary(clientProgram)), args...)
	cmd.Env = cleanEnv()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return f, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	if err := cmd.Start(); err != nil {
		return f, err
	}
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
		}
		err = errors.Join(err, cmd.Wait())
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return f, errors.New("it ended before it was ready")
	}
	done := func() error { return nil }
	if around != nil {
		if done, err = around(); err != nil {
			return f, err
		}
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return f, err
	}
	if !lines.Scan() {
		return f, errors.New("it ended before it was done")
	}
	if err := done(); err != nil {
		return f, err
	}
	if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
		return f, fmt.Errorf("figures: %w", err)
	}
	return f, nil
}

// cleanEnv returns the environment without the variables that tune Go's runtime: all clients run
// with its defaults.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GODEBUG":
		default:
			env = append(env, e)
		}
	}
	return env
}
