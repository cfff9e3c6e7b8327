// Many measures the servers of a configuration file: one process for all sessions (share) against a
// process each, and all servers as one (merge) against each at its own path. The kinds take turns
// in one node, round after round, so that other load of the machine slows all of them.
//
//	go run ./bench/many [-npm DIR]
//
// DIR is the directory in which server-everything is installed; without it, only a server in Go is
// measured. It needs Linux.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/bench/tools"
)

// settings are the values of the flags.
type settings struct {
	each     time.Duration
	rounds   int
	sessions int
	npm      string
	only     string
}

func main() {
	var s settings
	var serve bool
	flag.DurationVar(&s.each, "for", time.Second, "how long one measurement takes")
	flag.IntVar(&s.rounds, "rounds", 15, "how often each is made; the median counts")
	flag.IntVar(&s.sessions, "sessions", 20, "how many sessions call at a time")
	flag.StringVar(&s.npm, "npm", "", "directory in which the npm package @modelcontextprotocol/server-everything is installed")
	flag.StringVar(&s.only, "only", "", "measure only the server that has this in its name")
	flag.BoolVar(&serve, "serve", false, "for its own use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if serve {
		err = tools.NewServer().Run(ctx, &mcp.StdioTransport{})
	} else {
		err = s.run(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "many:", err)
		os.Exit(1)
	}
}

// A subject is a server under measurement.
type subject struct {
	name    string
	command []string
	args    string // of its tool echo
	merged  bool   // also measure it merged with other servers
}

func (s settings) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "many")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "holdfast")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", program, "holdfast/cmd/holdfast").CombinedOutput(); err != nil {
		return fmt.Errorf("build holdfast: %w: %s", err, text)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all := []subject{{"a server of the go-sdk", []string{self, "-serve"}, `{"text":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}`, true}}
	if s.npm != "" {
		js := filepath.Join(s.npm, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
		all = append(all, subject{"server-everything of npm", []string{"node", js, "stdio"}, `{"message":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}`, false})
	}
	fmt.Printf("# Many servers from one file\n\n%s, %d CPUs, %d sessions that call at a time, median of %d rounds of %v (least to most).\nThe kinds take turns; a ratio is of the same round. %s\n", runtime.Version(), runtime.NumCPU(), s.sessions, s.rounds, s.each, loadAverage())
	for _, sub := range all {
		if !strings.Contains(sub.name, s.only) {
			continue
		}
		if err := s.measure(ctx, sub, program, dir); err != nil {
			return fmt.Errorf("%s: %w", sub.name, err)
		}
	}
	fmt.Printf("\n%s\n", loadAverage())
	return nil
}

// configuration returns a file that serves the subject in each way.
func (sub subject) configuration() []byte {
	type entry map[string]any
	run := func(settings entry) entry {
		return entry{"command": sub.command[0], "args": sub.command[1:], "holdfast": settings}
	}
	servers := entry{"each": run(entry{}), "share": run(entry{"share": true})}
	if sub.merged {
		servers["other"] = run(entry{})
	}
	text, err := json.Marshal(entry{"mcpServers": servers, "holdfast": entry{"merge": sub.merged}})
	if err != nil {
		panic(err) // texts and maps always have a JSON
	}
	return text
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "Load average unknown."
	}
	return "Load average " + strings.Join(strings.Fields(string(text))[:3], ", ") + "."
}
