// Engine measures Holdfast over each of its engines, beside the engine itself: the cost of an
// append through Holdfast and as a bare fenced publish, the cost of a light call with each engine,
// the memory of many calls that wait on one node and how soon the node is back after a SIGKILL, how
// soon other nodes end the calls of a node that is killed or stopped, and the cost of a call that
// one node forwards to another.
//
//	go run ./bench/engine                 appends and light calls, 2 minutes
//	go run ./bench/engine -waiting 1e6    a million calls on one node with file:
//	go run ./bench/engine -killed 1000    a node with 1,000 sessions is killed
//	go run ./bench/engine -stopped 1000   the same with SIGSTOP, under load
//	go run ./bench/engine -forwarded      calls at their owner, and at another node
//	go run ./bench/engine -idle 1e5       calls beside 100,000 sessions without use
//	go run ./bench/engine -asleep 1e6     a million sessions that sleep, with file: or -store redis
//
// It needs Linux, and redis-server for Redis's figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	_ "holdfast/engine/file"
	_ "holdfast/engine/nats"
	_ "holdfast/engine/redis"
	"holdfast/internal/engine/jetstream/natstest"
)

// settings are the values of the flags.
type settings struct {
	each     time.Duration
	rounds   int
	sessions []int
	only     string
	waiting  int
	killed   int
	quiet    int
	stopped  int
	forwards bool
	child    string
	dir      string
	sleepers int
	ttl      time.Duration
	store    string
	sleeping int
	awake    int
	profiles bool
}

func main() {
	natstest.Main()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	var s settings
	var sessions string
	var waiting, idle, asleep, awake float64
	flag.DurationVar(&s.each, "for", 2*time.Second, "how long one measurement takes")
	flag.IntVar(&s.rounds, "rounds", 3, "how often each is made; the median counts")
	flag.StringVar(&sessions, "sessions", "1,64,256", "how many append at a time")
	flag.StringVar(&s.only, "only", "", "measure only what has this in its name")
	flag.Float64Var(&waiting, "waiting", 0, "measure as many calls that wait, instead")
	flag.IntVar(&s.killed, "killed", 0, "measure the end of so many sessions' node, instead")
	flag.IntVar(&s.quiet, "quiet", 0, "with -killed: so many sessions besides, without a call")
	flag.IntVar(&s.stopped, "stopped", 0, "measure how so many sessions go on whose node is stopped under load, instead")
	flag.BoolVar(&s.forwards, "forwarded", false, "measure calls that one node forwards to another, instead")
	flag.StringVar(&s.child, "child", "", "for its own use")
	flag.StringVar(&s.dir, "dir", "", "where file: keeps its data; a new temporary directory by default")
	flag.Float64Var(&idle, "idle", 0, "measure calls beside so many sessions that nobody uses, instead")
	flag.Float64Var(&asleep, "asleep", 0, "measure so many sessions that sleep, instead; -store redis: with a Redis")
	flag.Float64Var(&awake, "awake", 0, "measure the memory of so many sessions that are awake, instead; -store redis, -store memory:")
	flag.DurationVar(&s.ttl, "ttl", 3*time.Minute, "with -idle: how long such a session lives")
	flag.StringVar(&s.store, "store", "", "with -idle: the store's URL; file: in a temporary directory by default")
	flag.BoolVar(&s.profiles, "profiles", false, "say where profiles of the nodes can be read")
	flag.Parse()
	s.waiting, s.sleepers, s.sleeping, s.awake = int(waiting), int(idle), int(asleep), int(awake)
	for n := range strings.SplitSeq(sessions, ",") {
		v, err := strconv.Atoi(n)
		if err != nil || v < 1 {
			fmt.Fprintf(os.Stderr, "-sessions %q: want numbers with commas between\n", sessions)
			os.Exit(2)
		}
		s.sessions = append(s.sessions, v)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

func (s settings) run(ctx context.Context) error {
	switch {
	case s.child == "idle":
		return s.idleNode(ctx)
	case s.child == "member":
		return s.member(ctx)
	case s.child != "":
		return s.node(ctx)
	case s.killed > 0, s.stopped > 0:
		return s.lose(ctx)
	case s.forwards:
		return s.forward(ctx)
	case s.sleeping > 0:
		return s.asleep(ctx)
	case s.awake > 0:
		return s.stayAwake(ctx)
	case s.sleepers > 0:
		return s.idle(ctx)
	case s.waiting > 0:
		return s.wait(ctx)
	}
	all, stop, err := start(ctx, s.only)
	defer stop()
	if err != nil {
		return err
	}
	if err := s.appends(ctx, all); err != nil {
		return err
	}
	return s.light(ctx, all)
}
