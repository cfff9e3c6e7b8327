package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/load"
	"holdfast/bench/tools"
	hf "holdfast/engine"
	"holdfast/metrics"
)

// The stored calls beside the idle sessions: idleCallers clients begin one every idleEvery, whether
// the last one was slow or not. idleOpeners clients begin the sessions. In the calm phases, of
// idleCalm each, none begins or expires.
const (
	idleCallers = 8
	idleEvery   = 20 * time.Millisecond
	idleOpeners = 16
	idleCalm    = 5 * time.Second
)

// idle lets many clients begin a session on a node with file:, by HTTP, and never use it again,
// while some others make stored calls at a steady rate. It prints how long the calls took while
// sessions began, were kept alive, and expired.
func (s settings) idle(ctx context.Context) error {
	url, remove, err := s.idleStore()
	if err != nil {
		return err
	}
	defer remove()
	node, err := s.startIdle(ctx, url)
	if err != nil {
		return err
	}
	defer node.kill()
	w := watcher{node: node, began: time.Now()}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var callers sync.WaitGroup
	for i := range idleCallers {
		callers.Go(func() { w.call(ctx, time.Duration(i)*idleEvery/idleCallers) })
	}
	fmt.Printf("%d idle sessions on one node, --session-ttl %v, %d stored calls a second; %s\n\n", s.sleepers, s.ttl,
		int(time.Second/idleEvery)*idleCallers, loadAverage())
	fmt.Println("| phase | seconds | calls | p50 | p99 | worst | 503 | failed | CPU | allocated | GC pause |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|")
	var opened time.Duration
	var refused int64
	var held nodeStats
	var unread error
	for _, phase := range []struct {
		name string
		run  func()
	}{
		{"before", func() { pause(ctx, idleCalm) }},
		{"sessions begin", func() {
			at := time.Now()
			refused = w.open(ctx, s.sleepers)
			opened = time.Since(at)
		}},
		{"idle", func() { pause(ctx, idleCalm) }},
		{"", func() { held, unread = w.stats(ctx, true) }},
		// The store keeps sessions alive three times in their TTL. They expire as they began, one
		// TTL later.
		{"kept alive", func() {
			pause(ctx, max(s.ttl-opened-idleCalm, s.ttl/3))
		}},
		{"sessions expire", func() { pause(ctx, opened+s.ttl/8+idleCalm) }},
		{"after", func() { pause(ctx, idleCalm) }},
	} {
		if err := w.phase(ctx, phase.name, phase.run); err != nil {
			return err
		}
	}
	stop()
	callers.Wait()
	fmt.Printf("\nsessions begun in %v (%.0f a second), %d refused; heap with all of them %d MiB; %s\n", opened.Round(time.Millisecond),
		float64(s.sleepers)/opened.Seconds(), refused, held.Heap>>20, loadAverage())
	return unread
}

// idleStore returns the URL of the store, by default a new temporary folder, and a function that
// removes that folder.
func (s settings) idleStore() (url string, remove func(), err error) {
	remove = func() {}
	if s.store != "" {
		return s.store, remove, nil
	}
	dir := s.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
			return "", nil, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
	}
	return "file:" + filepath.Join(dir, "store"), remove, nil
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// phase runs do, and prints the results of the calls in that time, if the phase has a name.
func (w *watcher) phase(ctx context.Context, name string, do func()) error {
	before, err := w.stats(ctx, false)
	if err != nil {
		return err
	}
	from := time.Now()
	do()
	after, err := w.stats(ctx, false)
	if err == nil && name != "" {
		w.print(name, from, before, after)
	}
	return err
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load average not known"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return "load average " + one
}

func (s settings) startIdle(ctx context.Context, store string) (*member, error) {
	return startChild(ctx, "idle", s.profiles, "-store", store, "-asleep", strconv.Itoa(s.sleeping), "-awake", strconv.Itoa(s.awake), "-ttl", s.ttl.String())
}

// idleNode runs in the node's process.
func (s settings) idleNode(ctx context.Context) error {
	st, err := hf.Open(ctx, s.store, hf.Options{SessionTTL: s.ttl})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	mux := http.NewServeMux()
	o := holdfast.Options{Store: st, Response: holdfast.ResponseSSE, SessionTTL: s.ttl, Logger: log}
	figures := prometheus.NewRegistry()
	if s.sleeping > 0 {
		o.SleepAfter, o.Metrics = asleepAfter, metrics.New(figures)
	}
	if s.sleeping > 0 || s.awake > 0 {
		o.Response = holdfast.ResponseAuto
	}
	mux.Handle("/mcp", holdfast.NewBackendHandler(message.New(message.HandlerFunc(tools.Answer)), &o))
	mux.HandleFunc("/stats", func(w http.ResponseWriter, r *http.Request) { serveStats(w, r, figures) })
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	runtime.SetMutexProfileFraction(100)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	if s.profiles {
		fmt.Fprintf(os.Stderr, "profiles: http://%s/debug/pprof/\n", l.Addr())
	}
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

// nodeStats are the figures that a node gives of its process.
type nodeStats struct {
	CPU       time.Duration
	Allocated uint64
	Heap      uint64
	Stacks    uint64
	Pause     time.Duration
	Sessions  int // sessions that are awake; 0 if the node has no metrics
}

func serveStats(w http.ResponseWriter, r *http.Request, figures *prometheus.Registry) {
	if r.URL.Query().Get("gc") == "1" {
		runtime.GC()
		debug.FreeOSMemory()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	_ = json.NewEncoder(w).Encode(nodeStats{CPU: spent(0), Allocated: m.TotalAlloc, Heap: m.HeapAlloc, Stacks: m.StackInuse, Pause: time.Duration(m.PauseTotalNs), Sessions: sessionsOf(figures)})
}

// sessionsOf returns how many sessions are awake.
func sessionsOf(figures *prometheus.Registry) (n int) {
	all, err := figures.Gather()
	if err != nil {
		return -1
	}
	for _, family := range all {
		if family.GetName() == "holdfast_sessions" {
			for _, m := range family.GetMetric() {
				n += int(m.GetGauge().GetValue())
			}
		}
	}
	return n
}

// A watcher notes how long calls to a node took.
type watcher struct {
	node  *member
	began time.Time

	mu    sync.Mutex
	calls []watched
}

type watched struct {
	at     time.Time // when the call was due
	took   time.Duration
	status int // 0: the connection broke
}

func (w *watcher) stats(ctx context.Context, gc bool) (n nodeStats, err error) {
	url := "http://" + w.node.addr + "/stats"
	if gc {
		url += "?gc=1"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return n, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return n, err
	}
	defer res.Body.Close()
	return n, json.NewDecoder(res.Body).Decode(&n)
}

// call makes calls until ctx is done. The time of a call counts from when it was due, so also while
// it waits behind a slow one.
func (w *watcher) call(ctx context.Context, first time.Duration) {
	var c *load.Client
	var request *load.Request
	due := w.began.Add(first)
	for ; ctx.Err() == nil; due = due.Add(idleEvery) {
		time.Sleep(time.Until(due))
		status := 0
		if c == nil {
			var err error
			if c, request, err = w.dial(); err != nil {
				w.note(watched{due, time.Since(due), status})
				continue
			}
		}
		switch res, err := c.Do(request.Next()); {
		case err != nil:
			_ = c.Close()
			c = nil
		default:
			status = res.Status
			if status == http.StatusOK && res.Expect(http.StatusOK, `"result"`) != nil {
				status = http.StatusTeapot // an error, or an answer without an end
			}
		}
		w.note(watched{due, time.Since(due), status})
	}
}

func (w *watcher) dial() (*load.Client, *load.Request, error) {
	c, err := load.Dial(w.node.addr)
	if err != nil {
		return nil, nil, err
	}
	session, err := c.Handshake("/mcp")
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, load.Post(w.node.addr, "/mcp", session, load.Echo(256)), nil
}

func (w *watcher) note(x watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, x)
}

// open begins n sessions, and returns how many attempts failed.
func (w *watcher) open(ctx context.Context, n int) (refused int64) {
	var left, failed atomic.Int64
	left.Store(int64(n))
	var group sync.WaitGroup
	for range idleOpeners {
		group.Go(func() {
			var c *load.Client
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				var err error
				if c == nil {
					if c, err = load.Dial(w.node.addr); err != nil {
						c = nil
					}
				}
				if err == nil {
					_, err = c.Handshake("/mcp")
				}
				if err == nil {
					continue
				}
				failed.Add(1)
				if c != nil && !errors.Is(err, load.ErrRefused) {
					_ = c.Close()
					c = nil
				}
			}
		})
	}
	group.Wait()
	return failed.Load()
}

// print prints the results of the calls that were due in a phase.
func (w *watcher) print(name string, from time.Time, before, after nodeStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var took []time.Duration
	busy, failed := 0, 0
	for _, c := range w.calls {
		if c.at.Before(from) {
			continue
		}
		took = append(took, c.took)
		switch c.status {
		case http.StatusOK:
		case http.StatusServiceUnavailable:
			busy++
		default:
			failed++
		}
	}
	if len(took) == 0 {
		took = []time.Duration{0}
	}
	slices.Sort(took)
	n := len(took)
	fmt.Printf("| %s | %.0f | %d | %v | %v | %v | %d | %d | %v | %d MiB | %v |\n", name, time.Since(from).Seconds(), n,
		took[n/2].Round(10*time.Microsecond), took[n*99/100].Round(100*time.Microsecond), took[n-1].Round(time.Millisecond),
		busy, failed, (after.CPU - before.CPU).Round(10*time.Millisecond), (after.Allocated-before.Allocated)>>20,
		(after.Pause - before.Pause).Round(100*time.Microsecond))
}
