package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	hf "holdfast/engine"
	"holdfast/stream"
)

// appended is the result of one measurement of appends.
type appended struct {
	perSecond float64
	p50, p99  time.Duration
	cpu       time.Duration // of the engine's server process (engine.pid) and of this process, per append
}

const payload = 256

// appends measures and prints the cost of appends, bare and through Holdfast, in turns.
func (s settings) appends(ctx context.Context, all []engine) error {
	fmt.Printf("Fenced appends of %d bytes; engine and load share this machine; median of %d rounds of %v.\n\n", payload, s.rounds, s.each)
	fmt.Println("| engine | sessions | | appends/s | p50 | p99 | CPU | holdfast / bare: rate, CPU |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, e := range all {
		st, err := hf.Open(ctx, e.url, hf.Options{})
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		for _, n := range s.sessions {
			if err := s.appendsOf(ctx, e, st, n); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
		if err := st.Close(); err != nil {
			return err
		}
	}
	fmt.Println()
	return nil
}

func (s settings) appendsOf(ctx context.Context, e engine, st stream.Store, sessions int) error {
	var bare, ours []appended
	for round := range s.rounds {
		if e.bare != nil {
			a, err := s.measure(e, sessions, func(i int) (func([]byte) error, error) { return e.bare(ctx, i) })
			if err != nil {
				return fmt.Errorf("bare: %w", err)
			}
			bare = append(bare, a)
		}
		a, err := s.measure(e, sessions, func(i int) (func([]byte) error, error) {
			return through(ctx, st, stream.SessionKey(fmt.Sprintf("r%d-%d-%d", round, sessions, i)))
		})
		if err != nil {
			return err
		}
		ours = append(ours, a)
	}
	o := median(ours)
	ratio := ""
	if bare != nil {
		b := median(bare)
		b.print(e.name, sessions, "bare", "")
		ratio = fmt.Sprintf("%.2f, %.2f", o.perSecond/b.perSecond, float64(o.cpu)/float64(b.cpu))
	}
	o.print(e.name, sessions, "holdfast", ratio)
	return nil
}

// through returns a function that appends to a session of Holdfast's store.
func through(ctx context.Context, st stream.Store, key stream.SessionKey) (func([]byte) error, error) {
	lease, err := st.Create(ctx, key, []byte("bench"))
	if err != nil {
		return nil, err
	}
	seq, number := uint64(0), uint64(1)
	records := make([]stream.Record, 1)
	return func(data []byte) error {
		seq++
		last := seq == 1000 // calls end, so that the store can drop them from memory
		records[0] = stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Data: data, Last: last}}
		if last {
			seq, number = 0, number+1
		}
		return st.Append(ctx, lease, records)
	}, nil
}

func (a appended) print(name string, sessions int, how, ratio string) {
	fmt.Printf("| %s | %d | %s | %.0f | %v | %v | %v | %s |\n", name, sessions, how, a.perSecond,
		a.p50.Round(100*time.Nanosecond), a.p99.Round(time.Microsecond), a.cpu.Round(100*time.Nanosecond), ratio)
}

func median(all []appended) appended {
	slices.SortFunc(all, func(a, b appended) int { return int(a.perSecond - b.perSecond) })
	return all[len(all)/2]
}

// measure measures sessions that append at the same time, each session one entry after another.
func (s settings) measure(e engine, sessions int, open func(i int) (func([]byte) error, error)) (appended, error) {
	data := make([]byte, payload)
	writers := make([]func([]byte) error, sessions)
	for i := range writers {
		var err error
		if writers[i], err = open(i); err == nil {
			err = writers[i](data) // the first append creates the session's log
		}
		if err != nil {
			return appended{}, err
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	began, cpu := time.Now(), spent(e.pid)
	for i := range writers {
		wg.Go(func() {
			mine := make([]time.Duration, 0, 1<<14)
			var err error
			for now := time.Now(); now.Sub(began) < s.each && err == nil; {
				err = writers[i](data)
				then := time.Now()
				mine = append(mine, then.Sub(now))
				now = then
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return appended{}, failed
	}
	n := len(took)
	a := appended{perSecond: float64(n) / time.Since(began).Seconds(), cpu: (spent(e.pid) - cpu) / time.Duration(n)}
	slices.Sort(took)
	a.p50, a.p99 = took[n/2], took[n*99/100]
	return a, nil
}

// spent returns the CPU time of this process, and of another unless its pid is 0.
func spent(pid int) time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	cpu := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if pid == 0 {
		return cpu
	}
	return cpu + spentBy(pid)
}

// spentBy returns the CPU time of another process.
func spentBy(pid int) (cpu time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	for _, f := range fields[11:13] { // utime and stime, in ticks of 10 ms
		ticks, _ := strconv.Atoi(f)
		cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	return cpu
}
