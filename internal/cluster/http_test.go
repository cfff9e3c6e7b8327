package cluster_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/cluster/bustest"
	"holdfast/internal/mcptest"

	"holdfast/internal/testlong"
)

// serve has a node serve HTTP to the other nodes.
func (w *town) serve(name string, h http.Handler) {
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(w.nodes[name].Listener())
	}()
	w.t.Cleanup(func() {
		server.Close()
		<-done
	})
}

// client returns an HTTP client that dials nodes by name.
func (w *town) client(from string) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return w.nodes[from].Dial(ctx, host)
		},
		MaxIdleConnsPerHost: 100, DisableCompression: true,
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

var much = noise(1, 300_000)

// office is the handler for the tests' requests.
func office(left chan<- struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.FormValue("size"))
		seed, _ := strconv.Atoi(r.FormValue("seed"))
		body := noise(uint64(seed), size)
		sum := sha256.Sum256(body)
		w.Header().Set("Sum", hex.EncodeToString(sum[:]))
		for len(body) > 0 {
			part := min(len(body), 1+seed*97%5000)
			if _, err := w.Write(body[:part]); err != nil {
				return
			}
			body = body[part:]
		}
	})
	mux.HandleFunc("/much", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(much)
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		count, _ := strconv.Atoi(r.FormValue("count"))
		for i := range count {
			fmt.Fprintf(w, "data: %d\n\n", i)
			if flush.Flush() != nil {
				return
			}
		}
		if r.FormValue("stay") != "" {
			<-r.Context().Done()
			left <- struct{}{}
		}
	})
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		rw.Flush()
		_, _ = io.Copy(c, rw)
	})
	return mux
}

// net/http works over the bus: bodies both ways on a kept connection, a stream of
// events, a request that is given up, an upgrade.
func TestHTTP(t *testing.T) {
	t.Parallel()
	w := newTown(t, 20, cluster.Options{}, "a", "b")
	w.Set(bustest.Faults{Jitter: time.Millisecond})
	left := make(chan struct{}, 1)
	w.serve("b", office(left))
	client := w.client("a")
	for i := range 20 {
		body := string(noise(uint64(i), 1<<i%300_000))
		res, err := client.Post("http://b/echo", "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(got) != body {
			t.Errorf("echo of %d bytes: %d, %v", len(body), len(got), err)
		}
	}
	if conns := w.nodes["a"].Conns(); conns > 2 {
		t.Errorf("%d connections for one request at a time", conns)
	}

	ctx, cancel := context.WithCancel(t.Context())
	res := events(ctx, t, client, "http://b/events?count=1000&stay=1", 1000)
	cancel()
	<-left
	res.Body.Close()

	req, _ := http.NewRequest(http.MethodGet, "http://b/upgrade", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "x")
	res, err := client.Do(req)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res, err)
	}
	defer res.Body.Close()
	line := res.Body.(io.ReadWriteCloser)
	for i := range 10 {
		fmt.Fprintf(line, "%d\n", i)
		said, err := bufio.NewReader(line).ReadString('\n')
		if err != nil || said != fmt.Sprintf("%d\n", i) {
			t.Errorf("line %d: %q, %v", i, said, err)
		}
	}
	line.Close()
	client.CloseIdleConnections()
	mcptest.Eventually(t, "connections to end", time.Minute, func() bool { return w.nodes["a"].Conns() == 0 && w.nodes["b"].Conns() == 0 })
}

// events opens a stream and reads its first count events.
func events(ctx context.Context, t testing.TB, client *http.Client, url string, count int) *http.Response {
	t.Helper()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for i := range count {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
			t.Fatalf("event %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	return res
}

// A stream ends with an error that names the cause when its owner dies.
func TestStreamOfTheDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 21, quick, "a", "b")
		w.serve("b", office(make(chan struct{}, 1)))
		res := events(t.Context(), t, w.client("a"), "http://b/events?count=10&stay=1", 10)
		w.buses["b"].Close()
		within(t, 2*time.Second, "noticing a death", func() {
			if _, err := io.ReadAll(res.Body); !errors.Is(err, cluster.ErrNoNode) {
				t.Errorf("the stream ended with %v", err)
			}
		})
		res.Body.Close()
	})
}

// With any fault of the bus, each request soon gets its whole answer or an error.
func TestFaults(t *testing.T) {
	t.Parallel()
	for seed := range testlong.Either[uint64](1, 3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			faults(t, seed)
		})
	}
}

func faults(t *testing.T, seed uint64) {
	names := []string{"a", "b", "c"}
	w := newTown(t, seed, quick, names...)
	for _, name := range names {
		w.serve(name, office(make(chan struct{}, 1000)))
	}
	var whole, failed atomic.Int64
	var wait sync.WaitGroup
	stop := make(chan struct{})
	for i := range 24 {
		client := w.client(names[i%3])
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				begun := time.Now()
				err := ask(client, names[r.IntN(3)], r)
				if took := time.Since(begun); took > 30*time.Second {
					t.Errorf("a request took %v: %v", took, err)
				}
				switch {
				case err == nil:
					whole.Add(1)
				case errors.Is(err, errCorrupt):
					t.Error(err)
				default:
					failed.Add(1)
					time.Sleep(time.Millisecond) // leave time between failures
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, 1000))
	disturbances := 4
	if testlong.All() {
		disturbances = 8
	}
	for range disturbances {
		name := names[r.IntN(3)]
		switch r.IntN(5) {
		case 0:
			w.Set(bustest.Faults{Loss: []float64{.001, .01, .2}[r.IntN(3)], Jitter: time.Millisecond})
		case 1:
			w.Set(bustest.Faults{Delay: time.Duration(r.IntN(20)) * time.Millisecond, Jitter: 20 * time.Millisecond})
		case 2:
			w.buses[name].Cut(true)
		case 3:
			w.buses[name].Pause(true)
		}
		time.Sleep(time.Duration(r.IntN(700)) * time.Millisecond) // the fault's length
		w.buses[name].Cut(false)
		w.buses[name].Pause(false)
		w.Set(bustest.Faults{})
		before := whole.Load()
		mcptest.Eventually(t, "requests to go through again", time.Minute, func() bool { return whole.Load() > before+50 })
	}
	close(stop)
	wait.Wait()
	t.Logf("%d answers, %d errors", whole.Load(), failed.Load())
}

var errCorrupt = errors.New("corrupt")

// ask makes a random request, and checks its answer.
func ask(client *http.Client, host string, r *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if r.IntN(10) == 0 {
		time.AfterFunc(time.Duration(r.IntN(3))*time.Millisecond, cancel)
	}
	size := r.IntN(1 << (1 + r.IntN(17)))
	if r.IntN(2) == 0 {
		body := string(noise(r.Uint64(), size))
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+host+"/echo", strings.NewReader(body))
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		switch {
		case !strings.HasPrefix(body, string(got)):
			return fmt.Errorf("an echo of %d bytes: %w", len(got), errCorrupt)
		case err == nil && len(got) < len(body) && res.StatusCode == http.StatusOK:
			return fmt.Errorf("%d bytes of an echo of %d: %w", len(got), len(body), errCorrupt)
		}
		return err
	}
	url := fmt.Sprintf("http://%s/bytes?size=%d&seed=%d", host, size, r.IntN(1000))
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(got); hex.EncodeToString(sum[:]) != res.Header.Get("Sum") {
		return fmt.Errorf("%d bytes of %d: %w", len(got), size, errCorrupt)
	}
	return nil
}
