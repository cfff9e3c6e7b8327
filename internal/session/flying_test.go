package session

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// neighbour is the one other node of a house.
type neighbour struct {
	name  string // of the house itself
	house *house
	asked atomic.Int32 // how often this node was asked for a call
}

func (n *neighbour) Alone() bool                     { return n.house == nil }
func (n *neighbour) Fly(all []again.Flight)          { n.house.Flights().HintFlights(n.name, all) }
func (n *neighbour) Strand(keys []byte, call uint64) { n.house.Flights().Hint(n.name, keys, call) }
func (n *neighbour) Unstrand(node string, keys []byte, c uint64) {
	if node == "" {
		node = n.name
	}
	n.house.Flights().Unhint(node, keys, c)
}

func (n *neighbour) Borrow(ctx context.Context, _ string, query []byte) (io.ReadCloser, error) {
	n.asked.Add(1)
	r, w := io.Pipe()
	answer := &lendWriter{w, make(chan bool, 2)}
	go func() {
		answer.found <- n.house.Flights().Lend(ctx, query, answer)
		_ = w.Close()
	}()
	if !<-answer.found {
		return nil, nil
	}
	return r, nil
}

// A lendWriter is the answer to a query, which is found once something is written.
type lendWriter struct {
	*io.PipeWriter
	found chan bool
}

func (w *lendWriter) Write(p []byte) (int, error) {
	select {
	case w.found <- true:
	default:
	}
	return w.PipeWriter.Write(p)
}

// neighbours returns two houses that know each other as nodes.
func neighbours(t *testing.T) (a, b *house) {
	a, b = newHouse(t, Options{AttachWithin: time.Hour}, nil), newHouse(t, Options{AttachWithin: time.Hour}, nil)
	a.Flights().On(&neighbour{name: "a", house: b})
	b.Flights().On(&neighbour{name: "b", house: a})
	t.Cleanup(func() {
		a.close()
		b.close()
	})
	return a, b
}

// clientConn is the connection of a client.
type clientConn struct {
	left      atomic.Bool
	unsettled atomic.Bool
	asked     atomic.Int64 // how often it was asked whether it has left
}

func (c *clientConn) Unsettled() bool    { return c.unsettled.Load() }
func (c *clientConn) HasLeft() bool      { c.asked.Add(1); return c.left.Load() }
func (c *clientConn) IsFar() bool        { return false }
func (c *clientConn) Wrote(again.Source) {}

// call makes a call in the carrier of a client of 2026-07-28 at a house.
func (h *house) call(id int, conn *clientConn) *Call {
	h.t.Helper()
	return h.callOf("x", id, conn)
}

func (h *house) callOf(tool string, id int, conn *clientConn) *Call {
	h.t.Helper()
	c, deliver := h.beginOf(tool, id, conn)
	deliver()
	return c
}

// beginOf is callOf, but the call is delivered by deliver.
func (h *house) beginOf(tool string, id int, conn *clientConn) (c *Call, deliver func()) {
	h.t.Helper()
	s := mcptest.Must(h.carry("192.0.2.1", `{"name":"host","version":"1"},{}`))(h.t)
	msgs := []jsonrpc.Message{mcptest.Parse(strings.Replace(request(id), `"x"`, string(jsonrpc.Quote(tool)), 1))}
	c = mcptest.Must(s.Begin(msgs, true, Origin{Conn: conn}))(h.t)
	return c, func() { c.Deliver(h.t.Context(), msgs, nil) }
}

// answers answers the next request that a house's backend gets, and returns the response of the call c.
func (h *house) answers(c *Call) string {
	h.t.Helper()
	link := h.desk.last()
	select {
	case in := <-link.in:
		link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
	case <-time.After(time.Minute):
		h.t.Fatal("no request has begun")
	}
	return waitFor(h.t, c)
}

// waitFor returns the response of a call.
func waitFor(t testing.TB, c *Call) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for ctx.Err() == nil {
		if answers, done := c.Wait(ctx, 0); done {
			return fmt.Sprintf("%s", answers)
		}
	}
	t.Fatal("a call has not ended")
	return ""
}

// A request of a client that left before it begins does not begin if the client has made it again at another node. Otherwise it begins, as a client
// need not stay.
func TestFlightEarly(t *testing.T) {
	t.Parallel()
	a, b := neighbours(t)
	left := &clientConn{}
	left.left.Store(true)
	if said := a.answers(a.call(1, left)); !strings.Contains(said, "result") {
		t.Errorf("a request whose client has left is answered %s", said)
	}
	// On a busy machine another node's notice may come too late: then both requests begin.
	for try := 0; ; try++ {
		tool := fmt.Sprint("early", try)
		early := a.callOf(tool, 2+2*try, left)
		again := b.callOf(tool, 3+2*try, &clientConn{})
		said, began := "", false
		for said == "" {
			select {
			case in := <-a.desk.last().in:
				began = true
				a.desk.last().say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
			case <-time.After(10 * time.Millisecond):
			}
			if early.IsOver() {
				said = waitFor(t, early)
			}
		}
		if said := b.answers(again); !strings.Contains(said, "result") {
			t.Errorf("the one made again is answered %s", said)
		}
		if strings.Contains(said, "not delivered") && !began {
			break
		}
		if try == 5 {
			t.Fatalf("a request whose client has made it again elsewhere is answered %s", said)
		}
	}
	// Of two equal requests of clients that have left one begins, or both on a busy machine, but at least one.
	for i := range 4 {
		tool := fmt.Sprint("tool", i)
		both := []*Call{a.callOf(tool, 10+2*i, left), b.callOf(tool, 11+2*i, left)}
		over := make(chan struct{})
		var serving sync.WaitGroup
		for _, h := range []*house{a, b} {
			link := h.desk.last()
			serving.Go(func() {
				for {
					select {
					case in := <-link.in:
						link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
					case <-over:
						return
					}
				}
			})
		}
		if said := waitFor(t, both[0]) + waitFor(t, both[1]); !strings.Contains(said, "result") {
			t.Errorf("of two whose clients have left: %s", said)
		}
		close(over)
		serving.Wait()
	}
}

// Other nodes know of a call from its begin to a second after its end. A call in flight on a lost node stays known from the loss on.
func TestFlights(t *testing.T) {
	t.Parallel()
	a, b := neighbours(t)
	flies := func(n int) {
		t.Helper()
		mcptest.Eventually(t, fmt.Sprintf("%d flights to be known", n), time.Minute, func() bool { return b.Flights().Counts().Far == n })
	}
	first, second := a.call(1, &clientConn{}), a.call(2, &clientConn{})
	flies(2)
	if said := a.answers(first); !strings.Contains(said, "result") {
		t.Error(said)
	}
	flies(1)
	b.Flights().NodeLost("a")
	flies(0)
	if n := b.Flights().Counts().Kept; n != 1 {
		t.Errorf("%d stranded calls are known", n)
	}
	b.Flights().NodeLost("a")
	if said := a.answers(second); !strings.Contains(said, "result") {
		t.Error(said)
	}
	mcptest.Eventually(t, "nothing to be known of it", time.Minute, func() bool { return a.Flights().Counts().Near == 0 })
	// Other nodes do not know a call that ends before they are told of it. A call that ends just before its node is lost is not stranded there.
	a.answers(a.call(3, &clientConn{}))
	third := a.call(4, &clientConn{})
	flies(1)
	told := b.Flights().Counts().Told
	a.answers(third)
	a.Flights().Tell()
	b.Flights().NodeLost("a")
	flies(0)
	if n := b.Flights().Counts().Told - told; n != 0 {
		t.Errorf("%d calls are stranded after their end", n)
	}
}

// A client that makes a call again at another node, and cancels that request, cancels the call, also if the first node waits for the call to be
// stranded, and if it hears of the cancellation before it is asked for the call.
func TestFlightCancelledEarly(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := neighbours(t)
			other := &givingBack{Peers: &neighbour{name: "b", house: a}, late: late, asked: make(chan struct{}), told: make(chan struct{})}
			b.Flights().On(other)
			conn := &clientConn{}
			first := a.call(1, conn)
			link := a.desk.last()
			link.next(t, "tools/call")
			mcptest.Eventually(t, "the call to be known", time.Minute, func() bool { return b.Flights().Counts().Far == 1 })
			conn.left.Store(true)
			was := conn.asked.Load()
			second := b.call(2, &clientConn{})
			<-other.asked
			mcptest.Eventually(t, "the first node to wait for the call", time.Minute, func() bool { return late || conn.asked.Load() > was })
			second.Withdraw("cancelled")
			<-other.told
			first.ConnectionLost()
			in := link.next(t, "notifications/cancelled") // at once, and not as no client comes back
			if string(jsonrpc.Field(in.Params, "requestId")) != "1" || !strings.Contains(string(in.Params), "its client cancelled") {
				t.Errorf("late %v: the server was told %s", late, in.Raw)
			}
		})
	}
}

// A client that makes a call again at another node, and cancels that request before it is delivered, cancels the call, stranded or about to be.
func TestFlightCancelledBeforeDelivered(t *testing.T) {
	t.Parallel()
	for _, stranded := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, b := neighbours(t)
			conn := &clientConn{}
			first := a.call(1, conn)
			link := a.desk.last()
			link.next(t, "tools/call")
			counts := func() again.Counts { return b.Flights().Counts() }
			mcptest.Eventually(t, "the call to be known", time.Minute, func() bool { return counts().Far == 1 })
			conn.left.Store(true)
			if stranded {
				first.ConnectionLost()
				mcptest.Eventually(t, "the loss to be known", time.Minute, func() bool { return counts().Kept > 0 })
			}
			second, deliver := b.beginOf("x", 2, &clientConn{})
			was := conn.asked.Load()
			second.Withdraw("cancelled")
			deliver()
			if !stranded {
				mcptest.Eventually(t, "the first node to wait for the call", time.Minute, func() bool { return conn.asked.Load() > was })
				first.ConnectionLost()
			}
			in := link.next(t, "notifications/cancelled") // at once, and not as no client comes back
			if string(jsonrpc.Field(in.Params, "requestId")) != "1" || !strings.Contains(string(in.Params), "its client cancelled") {
				t.Errorf("the server was told %s", in.Raw)
			}
		})
	}
}

// A givingBack is a node's other node. It tells when it was asked for a call, and when it was told that a loan is cancelled.
type givingBack struct {
	again.Peers
	late        bool // it is told before it is asked
	asked, told chan struct{}
	ask, tell   sync.Once
}

func (n *givingBack) Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error) {
	if jsonrpc.Field(query, "cancel") != nil {
		defer n.tell.Do(func() { close(n.told) })
		return n.Peers.Borrow(ctx, node, query)
	}
	n.ask.Do(func() { close(n.asked) })
	if n.late {
		select {
		case <-n.told:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return n.Peers.Borrow(ctx, node, query)
}

// A question that a call would pass on to the client of a request like it, which has ended meanwhile, stays the question of the call: its client
// can answer it, and the server is not left without an answer.
func TestSaysToEnded(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	link := h.desk.last()
	first, again := begin(t, s, false, request(1)), begin(t, s, false, request(2))
	link.say(again, response(2))
	link.say(first, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`)
	asked := []byte(readSome(t, s, first.Number(), 1)[0])
	id := jsonrpc.Field(asked, "id")
	flightCall{again}.Say([]byte("2"), asked, id)
	first.Withdraw("its client has left")
	for {
		select {
		case in := <-link.in:
			if in.Kind == jsonrpc.Response {
				if string(in.ID) != `"q"` || in.Error == nil {
					t.Errorf("the server got %s", in.Raw)
				}
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("the server waits for an answer for ever")
		}
	}
}
