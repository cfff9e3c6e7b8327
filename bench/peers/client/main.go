// Command client is one client under measurement: it makes calls and prints their cost for its process.
// Command compare starts it many times.
//
//	client -kind KIND -url URL [-tool echo|progress|slow] [-callers 16] [-for 1s] [-held 0] [-cpuprofile FILE]
//
// Once it is connected and warm it prints "ready" and waits for a line on its
// standard input. Then it measures, prints a [Figures] as JSON, and ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Figures are the results of one measurement.
type Figures struct {
	Calls  int `json:"calls"`
	Events int `json:"events"` // progress notifications received
	// CPU is the CPU time of the process, in user and kernel mode, in microseconds.
	CPU    int64  `json:"cpu"`
	Allocs uint64 `json:"allocs"`
	Bytes  uint64 `json:"bytes"` // allocated
	// Latency is a call's median, in microseconds.
	Latency float64 `json:"latency"`
	// Held is how many calls waited. The fields after it are the cost of one of them.
	Held       int     `json:"held"`
	InUse      float64 `json:"in_use"` // bytes in spans and stacks
	Alive      float64 `json:"alive"`  // bytes in objects and stacks
	Goroutines float64 `json:"goroutines"`
}

// warmUp is how many calls a caller makes before calls count.
const warmUp = 30

// heldWarm is how many calls wait before those that count.
const heldWarm = 50

// timeout bounds a call, so that a server that hangs fails a run.
const timeout = 60 * time.Second

type options struct {
	kind, url, tool, profile string
	callers, held            int
	each                     time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.kind, "kind", "holdfast", "sdk, holdfast, conn, bare or alone")
	flag.StringVar(&o.url, "url", "", "of the server")
	flag.StringVar(&o.tool, "tool", "echo", "that is called: echo, progress or slow")
	flag.IntVar(&o.callers, "callers", 16, "how many call at a time")
	flag.DurationVar(&o.each, "for", time.Second, "how long calls are made")
	flag.IntVar(&o.held, "held", 0, "let as many calls wait, instead, and measure memory")
	flag.StringVar(&o.profile, "cpuprofile", "", "where to write a CPU profile")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintf(os.Stderr, "client: %s: %v\n", o.kind, err)
		os.Exit(1)
	}
}

func run(o *options) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	f, err := measure(o, c)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return err
	}
	if o.held > 0 {
		return nil // close would wait for the held calls
	}
	return c.close()
}

func measure(o *options, c *client) (*Figures, error) {
	if o.held > 0 {
		return hold(o, c)
	}
	if _, err := drive(o, c, func(n int) bool { return n < warmUp }); err != nil {
		return nil, err
	}
	if err := ready(); err != nil {
		return nil, err
	}
	if o.profile != "" {
		file, err := os.Create(o.profile)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	events, spent, memory := c.events.Load(), cpu(), mem()
	end := time.Now().Add(o.each)
	took, err := drive(o, c, func(int) bool { return time.Now().Before(end) })
	if err != nil {
		return nil, err
	}
	spent = cpu() - spent
	now := mem()
	slices.Sort(took)
	return &Figures{
		Calls: len(took), Events: int(c.events.Load() - events),
		CPU: spent.Microseconds(), Allocs: now.Mallocs - memory.Mallocs, Bytes: now.TotalAlloc - memory.TotalAlloc,
		Latency: float64(took[len(took)/2].Nanoseconds()) / 1e3,
	}, nil
}

// ready prints that the client is warm, and waits for a line on stdin.
func ready() error {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// drive lets each caller make calls while more, which gets the number of its calls so far, returns true. It
// returns how long each call took, after every event has come.
func drive(o *options, c *client, more func(n int) bool) ([]time.Duration, error) {
	ctx, stop := context.WithTimeout(context.Background(), o.each+timeout)
	defer stop()
	took := make([][]time.Duration, o.callers)
	errs := make([]error, o.callers)
	before := c.events.Load()
	var wg sync.WaitGroup
	for i := range o.callers {
		wg.Go(func() {
			for n := 0; more(n) && errs[i] == nil; n++ {
				start := time.Now()
				errs[i] = c.call(ctx, i)
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := slices.Concat(took...)
	if o.tool != "progress" {
		return all, nil
	}
	// The client may pass on notifications after the answer that followed them.
	for want := before + int64(len(all)*events); c.events.Load() != want; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d events came of %d", c.events.Load()-before, len(all)*events)
		}
	}
	return all, nil
}

// cpu returns the CPU time of the process, in user and kernel mode.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // it can't fail with these arguments
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func mem() (m runtime.MemStats) {
	runtime.ReadMemStats(&m)
	return m
}

// hold lets calls wait, and returns the cost of one of them.
func hold(o *options, c *client) (*Figures, error) {
	failed := make(chan error, o.held+heldWarm)
	wait := func(from, n int) {
		for i := range n {
			go func() { failed <- c.call(context.Background(), from+i) }()
		}
	}
	wait(0, heldWarm)
	before, err := settle(failed, 0)
	if err != nil {
		return nil, err
	}
	goroutines := runtime.NumGoroutine()
	if err := ready(); err != nil {
		return nil, err
	}
	wait(heldWarm, o.held)
	after, err := settle(failed, goroutines+o.held)
	if err != nil {
		return nil, err
	}
	each := func(of func(*runtime.MemStats) uint64) float64 {
		return (float64(of(&after)) - float64(of(&before))) / float64(o.held)
	}
	return &Figures{
		Held:       o.held,
		InUse:      each(func(m *runtime.MemStats) uint64 { return m.HeapInuse + m.StackInuse }),
		Alive:      each(func(m *runtime.MemStats) uint64 { return m.HeapAlloc + m.StackInuse }),
		Goroutines: float64(runtime.NumGoroutine()-goroutines) / float64(o.held),
	}, nil
}

// settle waits until there are at least so many goroutines, and their number stays the same. Then it collects
// garbage twice, as objects in a pool survive the first time.
func settle(failed <-chan error, atLeast int) (runtime.MemStats, error) {
	last, same := -1, 0
	for range 300 {
		select {
		case err := <-failed:
			return runtime.MemStats{}, fmt.Errorf("a call did not wait: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if n := runtime.NumGoroutine(); n != last {
			last, same = n, 0
		} else if same++; same >= 10 && n >= atLeast {
			runtime.GC()
			runtime.GC()
			return mem(), nil
		}
	}
	return runtime.MemStats{}, errors.New("goroutines still come and go")
}
