package cluster_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/cluster"
	"holdfast/internal/cluster/bustest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// Hooks of the tests with engines, if they are built: the engines may run in this process, and leave goroutines.
var (
	engineMain = func() {}
	engineLeft = func() []goleak.Option { return nil }
)

func TestMain(m *testing.M) {
	engineMain()
	testlong.AtOnce(4)
	goleak.VerifyTestMain(m, engineLeft()...)
}

// quick has short times, so that tests are fast.
var quick = cluster.Options{
	Heartbeat: 40 * time.Millisecond, Silence: 400 * time.Millisecond,
	Answer: 100 * time.Millisecond, Grace: 60 * time.Millisecond,
}

// A town is a network of nodes.
type town struct {
	*bustest.Net
	t     testing.TB
	buses map[string]*bustest.Bus
	nodes map[string]*cluster.Node
}

func newTown(t testing.TB, seed uint64, o cluster.Options, names ...string) *town {
	t.Helper()
	w := &town{bustest.New(seed), t, make(map[string]*bustest.Bus), make(map[string]*cluster.Node)}
	for _, name := range names {
		w.join(name, o)
	}
	t.Cleanup(func() {
		w.Set(bustest.Faults{})
		for name, n := range w.nodes {
			w.buses[name].Pause(false)
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, b := range w.buses {
			b.Close()
		}
	})
	return w
}

func (w *town) join(name string, o cluster.Options) {
	w.t.Helper()
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	w.buses[name] = w.Bus(name)
	w.nodes[name] = mcptest.Must(cluster.Join(w.buses[name], o))(w.t)
}

// kill ends a node's process without a farewell.
func (w *town) kill(name string) {
	w.buses[name].Close()
	w.nodes[name].Close()
	delete(w.nodes, name)
}

// pair returns both ends of a connection from node a.
func (w *town) pair(to string) (a, b net.Conn) {
	w.t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := w.nodes[to].Listener().Accept()
		if err == nil {
			accepted <- c
		}
	}()
	a = mcptest.Must(w.nodes["a"].Dial(context.Background(), to))(w.t)
	return a, <-accepted
}

// within bounds how long something takes, in a bubble, where only waiting takes time.
func within(t testing.TB, most time.Duration, what string, do func()) {
	t.Helper()
	begun := time.Now()
	do()
	if took := time.Since(begun); took > most {
		t.Errorf("%s took %v", what, took)
	}
}

// Bytes arrive as they were sent, whatever the sizes of writes and reads, also when
// messages overtake each other.
func TestBytes(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]bustest.Faults{"plain": {}, "reordered": {Jitter: 3 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t, 1, cluster.Options{}, "a", "b")
			w.Set(f)
			a, b := w.pair("b")
			var wait sync.WaitGroup
			for i, end := range []net.Conn{a, b} {
				sent := noise(uint64(i), 1<<21)
				wait.Go(func() {
					r := rand.New(rand.NewPCG(7, uint64(i)))
					for left := sent; len(left) > 0; {
						size := min(len(left), 1+r.IntN(1<<(1+r.IntN(18))))
						n, err := end.Write(left[:size])
						if err != nil || n != size {
							t.Error(n, err)
							return
						}
						left = left[size:]
					}
				})
				other := []net.Conn{b, a}[i]
				wait.Go(func() {
					got := make([]byte, len(sent))
					if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("the bytes differ: %v", err)
					}
				})
			}
			wait.Wait()
			a.Close()
			b.Close()
		})
	}
}

func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// Close delivers all bytes that were written before it, and ends all readers and writers.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newTown(t, 2, cluster.Options{}, "a", "b")
	w.Set(bustest.Faults{Jitter: 2 * time.Millisecond})
	a, b := w.pair("b")
	sent := noise(1, 200<<10)
	mcptest.Must(a.Write(sent))(t)
	blocked := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		blocked <- err
	}()
	a.Close()
	if err := <-blocked; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read while Close: %v", err)
	}
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("wrote to an end that is closed")
	}
	b.Close()
	for name, err := range map[string]error{
		"read":     second(a.Read(make([]byte, 1))),
		"write":    second(a.Write([]byte("x"))),
		"close":    a.Close(),
		"deadline": a.SetDeadline(time.Now()),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s of a closed connection: %v", name, err)
		}
	}
	mcptest.Eventually(t, "connections to be forgotten", time.Minute, func() bool {
		return w.nodes["a"].Conns() == 0 && w.nodes["b"].Conns() == 0
	})
}

func second(_ int, err error) error { return err }

// A writer waits for its reader.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, cluster.Options{}, "a", "b")
		a, b := w.pair("b")
		mcptest.Check(t, a.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		n, err := a.Write(make([]byte, 1<<20))
		if n != 256<<10 || !isTimeout(err) {
			t.Fatalf("wrote %d, %v", n, err)
		}
		mcptest.Check(t, a.SetWriteDeadline(time.Time{}))
		go func() {
			_, _ = io.Copy(io.Discard, b)
			b.Close()
		}()
		mcptest.Must(a.Write(make([]byte, 1<<20)))(t)
		a.Close()
	})
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Deadlines in the past, present and future end reads and writes, including those
// that already wait, and can be removed.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 4, cluster.Options{Window: 100}, "a", "b")
		a, b := w.pair("b")
		defer a.Close()
		defer b.Close()
		full := make([]byte, 1000)
		for name, do := range map[string]func() error{
			"read":  func() error { return second(a.Read(full)) },
			"write": func() error { return second(a.Write(full)) },
		} {
			_ = a.SetDeadline(time.Unix(1, 0))
			if err := do(); !isTimeout(err) {
				t.Errorf("%s after a deadline: %v", name, err)
			}
			_ = a.SetDeadline(time.Now().Add(20 * time.Millisecond))
			if err := do(); !isTimeout(err) {
				t.Errorf("%s before a deadline: %v", name, err)
			}
			if err := do(); !isTimeout(err) {
				t.Errorf("%s again: %v", name, err)
			}
			_ = a.SetDeadline(time.Time{})
			done := make(chan error)
			go func() { done <- do() }()
			_ = a.SetDeadline(time.Now().Add(time.Hour))
			_ = a.SetDeadline(time.Now())
			if err := <-done; !isTimeout(err) {
				t.Errorf("%s while its deadline changes: %v", name, err)
			}
			_ = a.SetDeadline(time.Time{})
		}
		mcptest.Must(b.Write([]byte("hello")))(t)
		if _, err := io.ReadFull(a, full[:5]); err != nil {
			t.Errorf("Read without a deadline: %v", err)
		}
	})
}

// All methods of a connection may be called concurrently.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	w := newTown(t, 5, cluster.Options{}, "a", "b")
	a, b := w.pair("b")
	var wait sync.WaitGroup
	for i := range 10 {
		for _, c := range []net.Conn{a, b} {
			wait.Go(func() {
				for range 50 {
					_ = c.SetDeadline(time.Now().Add(time.Duration(i) * time.Millisecond))
					_, _ = c.Write(make([]byte, 100*i))
					_, _ = c.Read(make([]byte, 100))
					_, _ = c.LocalAddr(), c.RemoteAddr()
				}
				if i == 9 {
					c.Close()
				}
			})
		}
	}
	wait.Wait()
}

// Dialling a node that does not exist fails at once, or after a second and a half if
// the bus does not report such nodes. A node that does not listen refuses.
func TestDialNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 6, cluster.Options{}, "a", "b")
		for _, test := range []struct {
			nobody bustest.NoNode
			most   time.Duration
		}{{bustest.AtOnce, 100 * time.Millisecond}, {bustest.Later, 100 * time.Millisecond}, {bustest.Never, 2 * time.Second}} {
			w.Set(bustest.Faults{NoNode: test.nobody})
			name := fmt.Sprint("nobody", test.nobody)
			within(t, test.most, fmt.Sprint("dialling ", name), func() {
				if _, err := w.nodes["a"].Dial(t.Context(), name); !errors.Is(err, cluster.ErrNoNode) {
					t.Errorf("Dial(%s): %v", name, err)
				}
			})
			within(t, 10*time.Millisecond, "asking again", func() {
				if !w.nodes["a"].Gone(t.Context(), name) {
					t.Errorf("%s is not gone", name)
				}
			})
		}
		w.nodes["b"].Listener().Close()
		if _, err := w.nodes["a"].Dial(t.Context(), "b"); err == nil || errors.Is(err, cluster.ErrNoNode) {
			t.Errorf("dialling one that does not listen: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.nodes["a"].Dial(ctx, "c"); err == nil {
			t.Error("dialled nobody")
		}
	})
}

// A node can dial itself.
func TestDialSelf(t *testing.T) {
	t.Parallel()
	w := newTown(t, 7, cluster.Options{}, "a")
	a, b := w.pair("a")
	go func() {
		_, _ = io.Copy(b, b)
		b.Close()
	}()
	sent, got := noise(1, 1<<20), make([]byte, 1<<20)
	go func() { _, _ = a.Write(sent) }()
	if _, err := io.ReadFull(a, got); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("echo: %v", err)
	}
	a.Close()
}

// Nodes find each other, drain, leave and die, and the others notice.
func TestPeers(t *testing.T) {
	t.Parallel()
	for _, nobody := range []bustest.NoNode{bustest.AtOnce, bustest.Later, bustest.Never} {
		t.Run(fmt.Sprint(nobody), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 8, quick, "a", "b", "c", "d")
				w.Set(bustest.Faults{NoNode: nobody})
				gone := make(chan string, 10)
				w.nodes["a"].Watch(func(name string) { gone <- name })
				peers := func(want ...string) {
					t.Helper()
					mcptest.Eventually(t, fmt.Sprint("peers ", want), time.Minute, func() bool {
						return slices.Equal(w.nodes["a"].Peers(), want)
					})
				}
				peers("b", "c", "d")
				w.nodes["b"].Drain()
				peers("c", "d")
				if w.nodes["a"].Gone(t.Context(), "b") {
					t.Error("one who drains is gone")
				}
				c, _ := w.pair("c")
				w.nodes["c"].Close()
				delete(w.nodes, "c")
				if name := <-gone; name != "c" {
					t.Errorf("%s is gone", name)
				}
				peers("d")
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("a connection outlives its peer")
				}
				c, _ = w.pair("d")
				w.kill("d")
				within(t, 3*time.Second, "noticing a death", func() {
					if _, err := c.Read(make([]byte, 1)); !errors.Is(err, cluster.ErrNoNode) {
						t.Errorf("reading from the dead: %v", err)
					}
				})
				if _, err := c.Write([]byte("x")); !errors.Is(err, cluster.ErrNoNode) {
					t.Errorf("writing to the dead: %v", err)
				}
				if name := <-gone; name != "d" {
					t.Errorf("%s is gone", name)
				}
				peers()
				if !w.nodes["a"].Gone(t.Context(), "d") || !w.nodes["a"].Gone(t.Context(), "c") {
					t.Error("the dead are not gone")
				}
				w.nodes["b"].Close()
				delete(w.nodes, "b")
				if name := <-gone; name != "b" {
					t.Errorf("%s is gone", name)
				}
			})
		})
	}
}

// Gone asks the node, and so notices that it died just now.
func TestGoneAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 9, cluster.Options{}, "a", "b", "c")
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes["a"].Peers()) == 2 })
		w.kill("b")
		within(t, 1500*time.Millisecond, "asking", func() {
			mcptest.Eventually(t, "b to be gone", time.Minute, func() bool { return w.nodes["a"].Gone(t.Context(), "b") })
		})
		if w.nodes["a"].Gone(t.Context(), "c") || w.nodes["a"].Gone(t.Context(), "a") {
			t.Error("who lives is gone")
		}
	})
}

// While a node's process is stopped, the other nodes take the node for gone. When it goes
// on, it takes no other node for gone, learns that it was away, and is a peer again.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 10, quick, "a", "b", "c")
		gone := make(chan string, 10)
		w.nodes["a"].Watch(func(name string) { gone <- name })
		wrong := make(chan string, 10)
		w.nodes["b"].Watch(func(name string) { wrong <- name })
		woke := make(chan struct{}, 10)
		w.nodes["b"].OnWake(func() { woke <- struct{}{} })
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes["a"].Peers()) == 2 })
		here, there := w.pair("b")
		for range 2 {
			w.buses["b"].Pause(true)
			if name := <-gone; name != "b" {
				t.Errorf("%s is gone", name)
			}
			if _, err := here.Read(make([]byte, 1)); !errors.Is(err, cluster.ErrNoNode) {
				t.Errorf("reading from one who is stopped: %v", err)
			}
			w.buses["b"].Pause(false)
			<-woke
			mcptest.Eventually(t, "b to be back", time.Minute, func() bool { return slices.Contains(w.nodes["a"].Peers(), "b") })
			if _, err := there.Read(make([]byte, 1)); err == nil {
				t.Error("a connection that was given up goes on")
			}
			here, there = w.pair("b")
		}
		here.Close()
		there.Close()
		select {
		case name := <-wrong:
			t.Errorf("%s is gone for one who was stopped", name)
		default:
		}
	})
}

// A node that is cut off takes no other node for gone, and learns afterwards that it was away.
func TestCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 11, quick, "a", "b", "c")
		wrong := make(chan string, 10)
		woke := make(chan struct{}, 10)
		w.nodes["b"].Watch(func(name string) { wrong <- name })
		w.nodes["b"].OnWake(func() { woke <- struct{}{} })
		gone := make(chan string, 10)
		w.nodes["a"].Watch(func(name string) { gone <- name })
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes["a"].Peers()) == 2 && len(w.nodes["b"].Peers()) == 2 })
		w.buses["b"].Cut(true)
		if name := <-gone; name != "b" {
			t.Errorf("%s is gone", name)
		}
		if w.nodes["b"].Gone(t.Context(), "a") {
			t.Error("the others are gone for one who is cut off")
		}
		if _, err := w.nodes["b"].Dial(t.Context(), "a"); err == nil || errors.Is(err, cluster.ErrNoNode) {
			t.Errorf("dialling when cut off: %v", err)
		}
		w.buses["b"].Cut(false)
		<-woke
		mcptest.Eventually(t, "b to be back", time.Minute, func() bool { return slices.Contains(w.nodes["a"].Peers(), "b") })
		select {
		case name := <-wrong:
			t.Errorf("%s is gone for one who was cut off", name)
		default:
		}
	})
}

// If the bus does not know a peer's name for a moment, as when the peer changes servers, the peer does not count as gone.
func TestDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 12, cluster.Options{}, "a", "b")
		gone := make(chan string, 10)
		w.nodes["a"].Watch(func(name string) { gone <- name })
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes["a"].Peers()) == 1 })
		w.Hide("b", true)
		time.AfterFunc(100*time.Millisecond, func() { w.Hide("b", false) })
		c := mcptest.Must(w.nodes["a"].Dial(t.Context(), "b"))(t)
		c.Close()
		select {
		case name := <-gone:
			t.Errorf("%s is gone", name)
		default:
		}
	})
}

// A notice arrives. A notice to a node that does not exist is an error.
func TestNotify(t *testing.T) {
	t.Parallel()
	w := newTown(t, 13, cluster.Options{}, "a", "b")
	got := make(chan string, 10)
	w.nodes["b"].Notices(func(data []byte) { got <- string(data) })
	mcptest.Check(t, w.nodes["a"].Notify("b", []byte("hello")))
	if s := <-got; s != "hello" {
		t.Errorf("got %q", s)
	}
	if err := w.nodes["a"].Notify("c", nil); !errors.Is(err, cluster.ErrNoNode) {
		t.Errorf("notifying nobody: %v", err)
	}
}

// Lost messages do not count as in flight for ever.
func TestLossOfMuch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 15, quick, "a", "b")
		var wait sync.WaitGroup
		w.Set(bustest.Faults{})
		var ends []net.Conn
		for range 30 {
			a, b := w.pair("b")
			ends = append(ends, a, b)
		}
		w.Set(bustest.Faults{Loss: 1})
		for i := range 30 {
			wait.Go(func() {
				_, _ = io.ReadFull(ends[2*i+1], make([]byte, 250<<10))
				ends[2*i+1].Close()
			})
			wait.Go(func() {
				if _, err := ends[2*i].Write(make([]byte, 250<<10)); err != nil {
					return
				}
				if _, err := ends[2*i].Read(make([]byte, 1)); err == nil {
					t.Error("read what nobody wrote")
				}
			})
		}
		time.Sleep(20 * time.Millisecond) // until some messages are lost
		w.Set(bustest.Faults{})
		within(t, 5*time.Second, "losing it all", wait.Wait)
		for _, c := range ends {
			c.Close()
		}
		a, b := w.pair("b")
		go func() {
			_, _ = a.Write(make([]byte, 3<<20))
			a.Close()
		}()
		within(t, 3*time.Second, "writing after that", func() {
			if n, err := io.Copy(io.Discard, b); n != 3<<20 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
		b.Close()
	})
}

// The loss of a message soon fails its connection, at both ends, also if it was the
// last message or the one that closes the connection.
func TestLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 14, quick, "a", "b")
		for name, do := range map[string]func(a, b net.Conn){
			"a message in between": func(a, _ net.Conn) {
				_, _ = a.Write([]byte("1"))
				w.Set(bustest.Faults{})
				_, _ = a.Write([]byte("2"))
			},
			"the last message": func(a, _ net.Conn) {
				_, _ = a.Write([]byte("1"))
				w.Set(bustest.Faults{})
			},
			"fin": func(a, _ net.Conn) {
				a.Close()
				w.Set(bustest.Faults{})
			},
		} {
			a, b := w.pair("b")
			w.Set(bustest.Faults{Loss: 1})
			do(a, b)
			within(t, 3*time.Second, name, func() {
				if _, err := b.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("%s was lost: %v", name, err)
				}
				if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("%s was lost: %v", name, err)
				}
			})
			a.Close()
			b.Close()
			mcptest.Eventually(t, "connections to be forgotten", time.Minute, func() bool {
				return w.nodes["a"].Conns() == 0 && w.nodes["b"].Conns() == 0
			})
		}
	})
}

// A node chooses the peer with the least load, counts its own choices, and passes over doors.
// Nodes that do not report their load get an equal share.
func TestChoose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 10, quick, "a")
		if got := w.nodes["a"].Choose(); got != "" {
			t.Errorf("chose %q, and is alone", got)
		}
		for name, l := range map[string]cluster.Load{"idle": {Calls: 0, Sessions: 12}, "full": {Calls: 0, Sessions: 15}, "busy": {Calls: 9, Sessions: 0}} {
			o := quick
			o.Load = func() cluster.Load { return l }
			w.join(name, o)
		}
		o := quick
		o.Door = true
		w.join("door", o)
		a := w.nodes["a"]
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return slices.Equal(a.Peers(), []string{"busy", "full", "idle"}) })
		time.Sleep(2 * quick.Heartbeat)
		var got []string
		for range 3 {
			got = append(got, a.Choose())
		}
		if want := []string{"idle", "full", "idle"}; !slices.Equal(got, want) {
			t.Errorf("chose %v, want %v", got, want)
		}
		w.join("older", quick)
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(a.Peers()) == 4 })
		count := make(map[string]int)
		for range 4000 {
			count[a.Choose()]++
		}
		if n := count["older"]; n < 800 || n > 1200 || count["door"] > 0 {
			t.Errorf("chose %v", count)
		}
	})
}
