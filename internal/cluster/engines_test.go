//go:build unix && !fuzzing

// The tag fuzzing leaves the engines out: to make them ready for fuzzing takes most of its time.

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

func init() { engineMain, engineLeft = natstest.Main, natstest.Left }

// An engine is one that carries the nodes' bus, with a server that can be killed.
type engine struct {
	name  string
	start func(t testing.TB) (open func(context.Context) (durable.Log, error), kill, restart func())
}

var quiet = slog.New(slog.DiscardHandler)

var engines = []engine{
	{"nats", func(t testing.TB) (func(context.Context) (durable.Log, error), func(), func()) {
		s, err := natstest.Start(t.TempDir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		open := func(ctx context.Context) (durable.Log, error) {
			return jetstream.Open(ctx, s.URL(), durable.Options{Logger: quiet})
		}
		restart := func() {
			if err := s.Restart(0); err != nil {
				t.Error(err)
			}
		}
		return open, func() { s.Kill(0) }, restart
	}},
	{"redis", func(t testing.TB) (func(context.Context) (durable.Log, error), func(), func()) {
		s := redistest.Start(t)
		open := func(ctx context.Context) (durable.Log, error) {
			return redis.Open(ctx, s.URL(), durable.Options{Logger: quiet})
		}
		return open, s.Kill, s.Restart
	}},
}

// over returns a town with buses of an engine.
func over(t testing.TB, e engine, count int, o cluster.Options) (w *town, names []string, kill, restart func()) {
	t.Helper()
	open, kill, restart := e.start(t)
	o.Logger = quiet
	w = &town{t: t, nodes: make(map[string]*cluster.Node)}
	for range count {
		l := mcptest.Must(open(context.Background()))(t)
		n := mcptest.Must(cluster.Join(l, o))(t)
		w.nodes[n.Name()] = n
		names = append(names, n.Name())
		t.Cleanup(func() {
			n.Close()
			l.Close()
		})
	}
	return w, names, kill, restart
}

func BenchmarkEngines(b *testing.B) {
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			w, names, _, _ := over(b, e, 2, cluster.Options{})
			w.serve(names[1], light())
			client := w.client(names[0])
			b.Run("request", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					request(b, client, names[1])
				}
			})
			b.Run("requests", func(b *testing.B) {
				b.SetParallelism(8)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						request(b, client, names[1])
					}
				})
			})
			b.Run("events", func(b *testing.B) {
				for b.Loop() {
					stream(b, client, names[1])
				}
			})
		})
	}
}

// A hundred streams at once, a thousand with -long, arrive whole.
func TestEngineMany(t *testing.T) { // not parallel: a node that is too busy to answer is gone
	many := testlong.Either(100, 1000)
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			w, names, _, _ := over(t, e, 2, cluster.Options{})
			var stood atomic.Int64
			w.nodes[names[0]].OnWake(func() { stood.Add(1) })
			w.serve(names[1], office(make(chan struct{}, many)))
			client := w.client(names[0])
			var wait sync.WaitGroup
			begun := time.Now()
			for range many {
				wait.Go(func() {
					for {
						before := stood.Load()
						err := getMuch(client, names[1])
						if err == nil {
							return
						}
						// While the machine stands still, messages may be lost.
						if stood.Load() == before {
							t.Error(err)
							return
						}
					}
				})
			}
			wait.Wait()
			t.Logf("%d answers of 300 kB in %v", many, time.Since(begun))
		})
	}
}

// If the engine is away for longer than nodes may be silent, for ten seconds with -long, no request hangs, no node
// counts as gone, and requests go through again afterwards.
func TestEngineAway(t *testing.T) {
	t.Parallel()
	away := testlong.Either(2500*time.Millisecond, 10*time.Second) // more than Silence
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			w, names, kill, restart := over(t, e, 3, cluster.Options{})
			var gone, woken atomic.Int64
			for _, n := range w.nodes {
				n.Watch(func(string) { gone.Add(1) })
				n.OnWake(sync.OnceFunc(func() { woken.Add(1) })) // called again if the whole machine stands still
			}
			w.serve(names[1], office(make(chan struct{}, 1000)))
			client := w.client(names[0])
			idle := events(t.Context(), t, client, "http://"+names[1]+"/events?count=5&stay=1", 5) //nolint:bodyclose // it is closed below
			mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes[names[0]].Peers()) == 2 })
			defer idle.Body.Close()
			kill()
			var slowest time.Duration
			var failed int
			var last error
			for end := time.Now().Add(away); time.Now().Before(end); failed++ {
				begun := time.Now()
				if last = get(client, names[1]); last == nil {
					t.Error("an answer without an engine")
				}
				slowest = max(slowest, time.Since(begun))
				time.Sleep(50 * time.Millisecond) // leave time between failures
			}
			t.Logf("%d failed, the slowest after %v, with %v", failed, slowest, last)
			if slowest > 20*time.Second {
				t.Errorf("a request took %v", slowest)
			}
			restart()
			back := time.Now()
			mcptest.Eventually(t, "an answer", time.Minute, func() bool { return get(client, names[1]) == nil })
			t.Logf("an answer %v after the engine is back", time.Since(back))
			mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes[names[0]].Peers()) == 2 })
			mcptest.Eventually(t, "all to hear that they were away", time.Minute, func() bool { return woken.Load() == 3 })
			if gone.Load() > 0 {
				t.Errorf("%d nodes were found gone", gone.Load())
			}
			ended := make(chan error, 1)
			go func() {
				_, err := bufio.NewReader(idle.Body).ReadByte()
				ended <- err
			}()
			select {
			case err := <-ended:
				t.Logf("the stream that was there before has ended: %v", err)
			case <-time.After(testlong.Either(0, 2*time.Second)): // either outcome is right
				t.Log("the stream that was there before goes on")
			}
		})
	}
}

// If one server of three dies, the nodes that used it do not count as gone, and
// requests go through.
func TestServerDies(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it takes 20 seconds")
	const silence = 5 * time.Second // for nodes to find another server on a busy machine
	s := natstest.Processes(t)
	three := engine{"three servers", func(testing.TB) (func(context.Context) (durable.Log, error), func(), func()) {
		return func(ctx context.Context) (durable.Log, error) {
			return jetstream.Open(ctx, s.URL(), durable.Options{Logger: quiet})
		}, nil, nil
	}}
	w, names, _, _ := over(t, three, 6, cluster.Options{Silence: silence})
	var gone atomic.Int64
	for _, n := range w.nodes {
		n.Watch(func(string) { gone.Add(1) })
	}
	for _, name := range names {
		w.serve(name, office(make(chan struct{}, 1000)))
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes[name].Peers()) == 5 })
	}
	var failed, whole atomic.Int64
	var wait sync.WaitGroup
	stop := make(chan struct{})
	for i, name := range names {
		client := w.client(name)
		wait.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				begun := time.Now()
				if err := get(client, names[n%6]); err != nil {
					failed.Add(1)
				} else {
					whole.Add(1)
				}
				if took := time.Since(begun); took > 20*time.Second {
					t.Errorf("a request took %v", took)
				}
			}
		})
	}
	for i := range 2 {
		s.Kill(i)
		time.Sleep(2 * silence) // longer than a node without a server may be silent
		if err := s.Restart(i); err != nil {
			t.Error(err)
		}
		before := whole.Load()
		mcptest.Eventually(t, "answers", time.Minute, func() bool { return whole.Load() > before+100 })
	}
	close(stop)
	wait.Wait()
	t.Logf("%d answers, %d errors", whole.Load(), failed.Load())
	if gone.Load() > 0 {
		t.Errorf("%d nodes were found gone", gone.Load())
	}
}

// getMuch requests a large body, and checks it.
func getMuch(client *http.Client, host string) error {
	res, err := client.Get("http://" + host + "/much")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && !bytes.Equal(got, much) {
		err = errCorrupt
	}
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", len(got), err)
	}
	return nil
}

func get(client *http.Client, host string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/bytes?size=100&seed=1", nil)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}
