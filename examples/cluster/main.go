// Cluster shows nodes that share a store, on one machine with nothing installed but Go:
//
//	go run ./examples/cluster
//
// It starts an engine (three JetStream servers), three nodes, and a load balancer that sends each
// request to the next node. Each server and each node is a process. Clients make calls while nodes
// are killed at random, with SIGKILL. At the end it counts the results of the calls.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"holdfast/internal/engine/jetstream/natstest"
)

// settings are the flags.
type settings struct {
	duration  time.Duration
	clients   int
	killEvery time.Duration
	engine    string
}

func main() {
	beChild()
	s := settings{}
	flag.DurationVar(&s.duration, "duration", 30*time.Second, "how long clients make calls; 0: until Ctrl-C")
	flag.IntVar(&s.clients, "clients", 50, "how many clients make calls at a time")
	flag.DurationVar(&s.killEvery, "kill-every", time.Second, "how often a node is killed; 0: never")
	flag.StringVar(&s.engine, "engine", "jetstream", "the `engine`: jetstream, redis (an installed redis-server), or the URL of a store")
	flag.Parse()
	if flag.NArg() > 0 || s.clients < 1 || s.duration < 0 || s.killEvery < 0 {
		fmt.Fprintln(os.Stderr, "want only flags, at least one client, and no negative time: see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	sum, err := run(ctx, os.Stdout, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(sum.report())
	if sum.lost > 0 || sum.doubled > 0 {
		os.Exit(1)
	}
}

// beChild runs a node, or a server of the engine, if the parent started this process as one.
func beChild() {
	natstest.Main()
	if len(os.Args) > 1 && os.Args[1] == "node" {
		if err := runNode(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// run starts everything, kills nodes while clients make calls, and returns the score.
func run(ctx context.Context, out io.Writer, s settings) (*score, error) {
	fmt.Fprintf(out, "starting an engine (%s), three nodes and a load balancer\n", s.engine)
	storeURL, stopEngine, err := startEngine(s.engine)
	if err != nil {
		return nil, err
	}
	defer stopEngine()
	sum := &score{calls: make(map[string]*call)}
	ledger, err := serve(sum) // tools report each run to it
	if err != nil {
		return nil, err
	}
	defer ledger.close()
	nodes, err := startNodes(3, storeURL, ledger.url)
	if err != nil {
		return nil, err
	}
	defer nodes.stop()
	front, err := serve(balancer(nodes.addresses))
	if err != nil {
		return nil, err
	}
	defer front.close()

	limited := ctx
	if s.duration > 0 {
		var stop context.CancelFunc
		limited, stop = context.WithTimeout(ctx, s.duration)
		defer stop()
	}
	finished := callers(limited, front.url+"/mcp", s.clients, sum)
	often, line := 200*time.Millisecond, "\r%4.0f s  %s "
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		often, line = 5*time.Second, "%4.0f s  %s\n"
	}
	show, ticks := time.NewTicker(often), time.NewTicker(200*time.Millisecond)
	defer show.Stop()
	defer ticks.Stop()
	begun, killed := time.Now(), time.Now()
	for {
		select {
		case err := <-finished:
			fmt.Fprintln(out)
			sum.judge()
			return sum, err
		case <-show.C:
			fmt.Fprintf(out, line, time.Since(begun).Seconds(), sum.line())
		case <-ticks.C:
		}
		if s.killEvery > 0 && time.Since(killed) >= s.killEvery && limited.Err() == nil {
			killed = time.Now()
			if err := nodes.killOne(); err != nil {
				return nil, err
			}
			sum.killed()
		}
	}
}
