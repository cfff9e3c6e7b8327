package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/mcptest"
)

// The round trip of one byte.
func BenchmarkLatency(b *testing.B) {
	w := newTown(b, 1, cluster.Options{}, "a", "b")
	here, there := w.pair("b")
	go func() {
		_, _ = io.Copy(there, there)
		there.Close()
	}()
	p := make([]byte, 1)
	b.ReportAllocs()
	for b.Loop() {
		mcptest.Must(here.Write(p))(b)
		mcptest.Must(io.ReadFull(here, p))(b)
	}
	here.Close()
}

// The throughput in one direction, in writes of a size.
func BenchmarkThroughput(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			w := newTown(b, 1, cluster.Options{}, "a", "b")
			here, there := w.pair("b")
			read := make(chan struct{})
			go func() {
				_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{there}, make([]byte, 32<<10))
				close(read)
			}()
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				mcptest.Must(here.Write(p))(b)
			}
			here.Close()
			<-read
			there.Close()
		})
	}
}

// light is a handler with an answer like a light call's, and a stream of events.
func light() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/light", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(make([]byte, 200))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		flush := http.NewResponseController(w)
		for i := range 10_000 {
			fmt.Fprintf(w, "id: %d\ndata: %0200d\n\n", i, i)
			if flush.Flush() != nil {
				return
			}
		}
	})
	return mux
}

// both runs a benchmark over the cluster and over TCP.
func both(b *testing.B, do func(b *testing.B, client *http.Client, host string)) {
	b.Run("cluster", func(b *testing.B) {
		w := newTown(b, 1, cluster.Options{}, "a", "b")
		w.serve("b", light())
		do(b, w.client("a"), "b")
	})
	b.Run("tcp", func(b *testing.B) {
		l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(b)
		server := &http.Server{Handler: light()}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(l)
		}()
		defer func() {
			server.Close()
			<-done
		}()
		transport := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
		defer transport.CloseIdleConnections()
		do(b, &http.Client{Transport: transport}, l.Addr().String())
	})
}

// Forwarded light requests, one at a time.
func BenchmarkRequest(b *testing.B) {
	both(b, func(b *testing.B, client *http.Client, host string) {
		b.ReportAllocs()
		for b.Loop() {
			request(b, client, host)
		}
	})
}

// Sixteen forwarded light requests at a time.
func BenchmarkRequests(b *testing.B) {
	both(b, func(b *testing.B, client *http.Client, host string) {
		b.SetParallelism(16 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				request(b, client, host)
			}
		})
	})
}

func request(b *testing.B, client *http.Client, host string) {
	res, err := client.Get("http://" + host + "/light")
	if err != nil {
		b.Error(err)
		return
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		b.Error(err)
	}
}

// A stream of 10,000 events, each flushed.
func BenchmarkEvents(b *testing.B) {
	both(b, func(b *testing.B, client *http.Client, host string) {
		for b.Loop() {
			stream(b, client, host)
		}
	})
}

func stream(b *testing.B, client *http.Client, host string) {
	res, err := client.Get("http://" + host + "/events")
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	lines := 0
	for s := bufio.NewScanner(res.Body); s.Scan(); lines++ {
	}
	if lines != 30_000 {
		b.Fatalf("%d lines", lines)
	}
}

// The memory of an idle connection, for both ends.
func BenchmarkIdle(b *testing.B) {
	w := newTown(b, 1, cluster.Options{}, "a", "b")
	const count = 5000
	for b.Loop() {
		before := heap()
		var all []net.Conn
		var wait sync.WaitGroup
		wait.Go(func() {
			for range count {
				c, err := w.nodes["b"].Listener().Accept()
				if err != nil {
					b.Error(err)
					return
				}
				all = append(all, c)
			}
		})
		var mine []net.Conn
		for range count {
			c := mcptest.Must(w.nodes["a"].Dial(b.Context(), "b"))(b)
			mine = append(mine, c)
		}
		wait.Wait()
		all = append(all, mine...)
		b.ReportMetric((float64(heap())-float64(before))/count/2, "B/end")
		for _, c := range all {
			c.Close()
		}
		mcptest.Eventually(b, "connections to end", time.Minute, func() bool { return w.nodes["a"].Conns() == 0 && w.nodes["b"].Conns() == 0 })
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
