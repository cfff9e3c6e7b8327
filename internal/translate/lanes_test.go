package translate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// An asker is a legacy server that is opened several times. Each opening keeps the messages that it gets.
type asker struct {
	t    *testing.T
	mu   sync.Mutex
	all  []*opened
	fail error  // the error of later openings
	deaf bool   // later openings answer no pings
	slow bool   // later openings do not answer initialize
	more string // further capabilities of later openings, as JSON members after a comma
}

// An opened is an opening of an asker.
type opened struct {
	sink backend.Sink

	deaf bool // does not answer pings
	slow bool // does not answer initialize
	more string

	mu   sync.Mutex
	full bool     // takes no answers
	told []string // messages, without the handshake and pings
	over bool
}

// heard returns the messages that the opening got.
func (o *opened) heard() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.told)
}

// closed reports whether the opening was closed.
func (o *opened) closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

func (a *asker) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	if a.fail != nil {
		return nil, a.fail
	}
	o := &opened{sink: sink, deaf: a.deaf, slow: a.slow, more: a.more}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, o)
	return o, nil
}

func (o *opened) Deliver(in backend.Inbound) error {
	switch in.Method {
	case protocol.MethodInitialize:
		if o.slow {
			return nil
		}
		o.sink.Emit(nil, mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{}%s},"serverInfo":{"name":"s","version":"2"}}}`, in.ID, o.more)))
	case protocol.MethodInitialized:
	case protocol.MethodPing:
		if !o.deaf {
			o.answers(string(in.ID))
		}
	default:
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.full && in.Kind == jsonrpc.Response {
			return errors.New("full")
		}
		o.told = append(o.told, string(in.Raw))
	}
	return nil
}

func (o *opened) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	return nil
}

// says has the opening send a message that belongs to no call.
func (o *opened) says(text string) { o.sink.Emit(nil, mcptest.Parse(text)) }

// asks has the opening send an elicitation with the message who, under an id.
func (o *opened) asks(id int, who string) {
	o.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{"message":%q}}`, id, who))
}

// answers has the opening answer a call.
func (o *opened) answers(id string) { o.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)) }

// crowd is a modern conversation with an asker.
type crowd struct {
	*holdfast
	server *asker
	places int           // for more processes; -1: no bound
	gate   chan struct{} // closed when places are given; nil: at once
	lock   sync.Mutex
	taken  int
}

func (c *crowd) TakePlace() (func(), bool) {
	if c.gate != nil {
		<-c.gate
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.taken == c.places {
		return nil, false
	}
	c.taken++
	return func() {
		c.lock.Lock()
		defer c.lock.Unlock()
		c.taken--
	}, true
}

// inCrowd runs a test in a bubble.
func inCrowd(t *testing.T, test func(t *testing.T, c *crowd)) {
	t.Helper()
	inCrowdOf(t, &asker{}, test)
}

// inCrowdOf runs a test in a bubble, with a server.
func inCrowdOf(t *testing.T, server *asker, test func(t *testing.T, c *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server.t = t
		c := &crowd{holdfast: &holdfast{t: t, more: make(chan struct{})}, server: server, places: -1}
		conn := mcptest.Must(New(c.server, quiet).Open(t.Context(), backend.Start{Session: "s", Revision: protocol.V20260728}, c))(t)
		c.conn = conn
		c.deliver(&call{"d"}, modernRequest("0", "server/discover", "", ""))
		c.next()
		defer func() {
			if t.Failed() {
				_ = conn.Close() // otherwise the bubble does not end
			}
		}()
		test(t, c)
		synctest.Wait()
		c.quiet()
		if t.Failed() {
			return
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if c.taken != 0 {
			t.Errorf("%d places are taken", c.taken)
		}
		for i, o := range c.server.all {
			if !o.closed() {
				t.Errorf("opening %d is not closed", i)
			}
		}
	})
}

// calls makes a call of a tool.
func (c *crowd) calls(id, tool string) *call {
	c.t.Helper()
	of := &call{id}
	c.deliver(of, modernRequest(id, "tools/call", fmt.Sprintf(`"name":%q`, tool), ""))
	synctest.Wait()
	return of
}

// where returns the index of the opening that has a call, or -1.
func (c *crowd) where(id string) int {
	synctest.Wait()
	for i, o := range c.server.all {
		for _, text := range o.heard() {
			if strings.HasPrefix(text, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call"`) {
				return i
			}
		}
	}
	return -1
}

// asked checks that a server's request has reached a call, and returns its id.
func (c *crowd) asked(of *call, who string) string {
	c.t.Helper()
	synctest.Wait()
	s := c.next()
	if s.call != of || s.m.Kind != jsonrpc.Request || jsonrpc.String(jsonrpc.Field(s.m.Params, "message")) != who {
		c.t.Fatalf("%v was said in %v, want the question %q in %v", string(s.m.Raw), s.call, who, of)
	}
	return string(s.m.ID)
}

// replies answers a server's request, as the client.
func (c *crowd) replies(id string) {
	c.deliver(nil, `{"jsonrpc":"2.0","id":`+id+`,"result":{"action":"accept"}}`)
	synctest.Wait()
}

// ended checks that the response to a call came, with a text in it.
func (c *crowd) ended(of *call, text string) {
	c.t.Helper()
	synctest.Wait()
	s := c.next()
	if s.call != of || s.m.Kind != jsonrpc.Response || !strings.Contains(string(s.m.Raw), text) {
		c.t.Fatalf("%v was said in %v, want the response to %v with %s", string(s.m.Raw), s.call, of, text)
	}
}

// last returns the last message that an opening got.
func (o *opened) last() string {
	all := o.heard()
	return all[len(all)-1]
}

func TestQuestionsFindTheirCalls(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		a, b, d := c.calls("1", "ask"), c.calls("2", "ask"), c.calls("3", "ask")
		if c.where("1") != 0 || c.where("2") != -1 {
			t.Fatal("the first call of the tool is not alone")
		}
		main := c.server.all[0]
		main.asks(1, "a")
		qa := c.asked(a, "a")
		if two, three := c.where("2"), c.where("3"); two < 1 || three < 1 || two == three {
			t.Fatalf("calls 2 and 3 are in %d and %d", two, three)
		}
		second, third := c.server.all[c.where("2")], c.server.all[c.where("3")]
		third.asks(1, "d") // with the same id
		qd := c.asked(d, "d")
		second.asks(1, "b")
		qb := c.asked(b, "b")
		second.asks(2, "b again") // while the first request waits
		qb2 := c.asked(b, "b again")
		for q, o := range map[string]*opened{qa: main, qb: second, qd: third} {
			c.replies(q)
			if want := `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`; o.last() != want {
				t.Errorf("the answer to %s: the server heard %s", q, o.last())
			}
		}
		c.replies(qb2)
		for of, o := range map[*call]*opened{a: main, b: second, d: third} {
			o.answers(of.name)
			c.ended(of, `"resultType":"complete"`)
		}
		// The first call alone has the same process as before. A second call gets the existing lane.
		e, f := c.calls("4", "ask"), c.calls("5", "ask")
		if c.where("4") != 0 || c.where("5") != 1 && c.where("5") != 2 {
			t.Errorf("calls 4 and 5 are in %d and %d", c.where("4"), c.where("5"))
		}
		main.answers("4")
		c.ended(e, "complete")
		c.server.all[c.where("5")].answers("5")
		c.ended(f, "complete")
		time.Sleep(2 * idleLane)
		synctest.Wait()
		if !second.closed() || !third.closed() || c.taken != 0 || main.closed() {
			t.Error("what no call needs was not closed")
		}
	})
}

// An answer that a lane does not take just now can be delivered again.
func TestLaneTakesNoAnswer(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		a, b := c.calls("1", "ask"), c.calls("2", "ask")
		c.server.all[0].asks(1, "a")
		c.replies(c.asked(a, "a"))
		lane := c.server.all[c.where("2")]
		lane.asks(1, "b")
		q := c.asked(b, "b")
		lane.full = true
		answer := mcptest.Parse(`{"jsonrpc":"2.0","id":` + q + `,"result":{"action":"accept"}}`)
		if err := c.conn.Deliver(backend.Inbound{Message: answer}); err == nil {
			t.Error("the answer was taken")
		}
		lane.full = false
		c.replies(q)
		if want := `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`; lane.last() != want {
			t.Errorf("the server heard %s", lane.last())
		}
		c.server.all[0].answers("1")
		c.ended(a, "complete")
		lane.answers("2")
		c.ended(b, "complete")
	})
}

// If a server ends, the calls that wait for a lane, or for another process to begin, have not begun.
func TestEndsAsCallsWait(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		inCrowd(t, func(t *testing.T, c *crowd) {
			c.server.slow = true
			a, b := c.calls("1", "ask"), c.calls("2", "ask")
			main := c.server.all[0]
			if known {
				main.asks(1, "a")
				c.asked(a, "a")
			}
			if c.where("2") != -1 || len(c.server.all) > 1 != known {
				t.Fatalf("a server has call 2, of %d openings", len(c.server.all))
			}
			main.sink.Closed(errors.New("gone"), true)
			c.ended(b, `"tools/call: gone"`)
			if s := c.next(); s.closed == nil {
				t.Errorf("not closed: %s", s.m.Raw)
			}
		})
	}
}

// If a server ends before its tools are listed, neither the calls that wait for the list nor those behind them have begun, and none is taken any more.
func TestEndsAsToolsAreListed(t *testing.T) {
	t.Parallel()
	inCrowdOf(t, &asker{more: `,"tasks":{"requests":{"tools":{"call":{}}}}`}, func(t *testing.T, c *crowd) {
		a, b := c.calls("1", "ask"), c.calls("2", "ask")
		if c.where("1") != -1 || c.where("2") != -1 {
			t.Fatal("the server has a call")
		}
		c.server.all[0].sink.Closed(errors.New("gone"), true)
		c.ended(b, `"tools/call: gone"`)
		c.ended(a, `"tools/call was not delivered: gone"`)
		if s := c.next(); s.closed == nil {
			t.Errorf("not closed: %s", s.m.Raw)
		}
		l := c.conn.(*legacyServer).out.conn.(*lanes)
		if l.habits.proven("tools/call ask") {
			t.Error("an answer of our own says that the tool asks nothing")
		}
		late := backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"ask"}}`), Call: &call{"3"}}
		if err := l.Deliver(late); err == nil {
			t.Error("a call is taken after the end")
		}
		if err := l.main.out.conn.Deliver(late); err == nil {
			t.Error("a call waits after the end until the tools are listed")
		}
	})
}

// Once a server is known not to send requests, its calls share one process as before.
func TestServerThatDoesNotAsk(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		a, b := c.calls("1", "slow"), c.calls("2", "slow")
		if took := c.until("2"); took > lookAfter {
			t.Errorf("another call waited for %v", took)
		}
		d := c.calls("3", "slow")
		if c.where("3") != 0 || len(c.server.all) != 1 {
			t.Error("a tool that is known to be quiet is not called at once, in the one process")
		}
		for _, of := range []*call{a, b, d} {
			c.server.all[0].answers(of.name)
			c.ended(of, "complete")
		}
		e, f := c.calls("4", "new"), c.calls("5", "slow")
		c.server.all[0].answers("4") // so that the other call goes at once
		c.ended(e, "complete")
		if c.where("5") != 0 {
			t.Error("a call waits for one that has ended")
		}
		c.server.all[0].answers("5")
		c.ended(f, "complete")
	})
	for _, deaf := range []bool{false, true} { // the waits for several slow calls do not add up
		inCrowd(t, func(t *testing.T, c *crowd) {
			c.server.all[0].deaf = deaf
			var all []*call
			for i := range 9 {
				all = append(all, c.calls(fmt.Sprint(i+1), fmt.Sprint("slow", i)))
			}
			want := mostLooks * lookAfter
			if deaf { // this is noticed once
				want += longest
			}
			if took := c.until("9"); took > want {
				t.Errorf("a call waits for %v, with a server that answers no pings: %v", took, deaf)
			}
			for _, of := range all {
				c.server.all[0].answers(of.name)
				c.ended(of, "complete")
			}
			a, b := c.calls("21", "late"), c.calls("22", "later")
			if took := c.until("22"); took > lookAfter {
				t.Errorf("a later call waits for %v, with a server that answers no pings: %v", took, deaf)
			}
			for _, of := range []*call{a, b} {
				c.server.all[0].answers(of.name)
				c.ended(of, "complete")
			}
		})
	}
}

// until waits until the server has a call, and returns how long that took.
func (c *crowd) until(id string) time.Duration {
	c.t.Helper()
	began := time.Now()
	for c.where(id) < 0 {
		if time.Since(began) > time.Minute {
			c.t.Fatalf("no server has call %s", id)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// If a server's request may belong to several calls, it waits until its call is known.
func TestQuestionThatMayBeOfSeveral(t *testing.T) {
	t.Parallel()
	both := func(t *testing.T, c *crowd) (a, b *call, main *opened) {
		t.Helper()
		a, b = c.calls("1", "late"), c.calls("2", "late")
		c.until("2")
		if c.where("2") != 0 {
			t.Fatal("the second call is not in the same process")
		}
		main = c.server.all[0]
		main.asks(1, "b")
		synctest.Wait()
		c.quiet()
		return a, b, main
	}
	t.Run("the other ends", func(t *testing.T) {
		t.Parallel()
		inCrowd(t, func(t *testing.T, c *crowd) {
			a, b, main := both(t, c)
			main.answers("1")
			c.ended(a, "complete")
			q := c.asked(b, "b")
			c.replies(q)
			main.answers("2")
			c.ended(b, "complete")
		})
	})
	t.Run("both ask", func(t *testing.T) {
		t.Parallel()
		inCrowd(t, func(t *testing.T, c *crowd) {
			a, b, main := both(t, c)
			d := c.calls("3", "late") // from now on each call has a process
			if c.where("3") != 1 {
				t.Errorf("call 3 is in %d", c.where("3"))
			}
			time.Sleep(time.Second)
			main.asks(2, "a")
			time.Sleep(heldFor)
			synctest.Wait()
			if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,`; !strings.HasPrefix(main.heard()[2], want) {
				t.Errorf("the first question: %s", main.heard()[2])
			}
			main.answers("2") // call 2 ends without an answer to its request
			c.ended(b, "complete")
			c.asked(a, "a")
			main.answers("1")
			c.ended(a, "complete")
			c.server.all[1].answers("3")
			c.ended(d, "complete")
		})
	})
	t.Run("the server takes it back", func(t *testing.T) {
		t.Parallel()
		inCrowd(t, func(t *testing.T, c *crowd) {
			a, b, main := both(t, c)
			main.says(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			time.Sleep(2 * heldFor)
			main.answers("1")
			c.ended(a, "complete")
			main.answers("2")
			c.ended(b, "complete")
		})
	})
}

// A server may still send a request for a cancelled call: that request does not go to another call.
func TestQuestionOfCancelledCall(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.calls("1", "ask")
		main := c.server.all[0]
		c.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		main.asks(1, "a")
		synctest.Wait()
		if !strings.Contains(main.last(), `"id":1,"error"`) {
			t.Errorf("a question of a cancelled call: %s", main.last())
		}
		b := c.calls("2", "ask")
		if c.where("2") != 1 {
			t.Fatalf("call 2 is in %d", c.where("2"))
		}
		main.asks(2, "a again")
		c.server.all[1].asks(1, "b")
		c.asked(b, "b")
		c.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		synctest.Wait()
		if !strings.Contains(c.server.all[1].last(), "cancelled") || !c.server.all[1].closed() {
			t.Errorf("the process of a cancelled call: %s, closed %v", c.server.all[1].last(), c.server.all[1].closed())
		}
		time.Sleep(ghostFor + time.Second)
		d := c.calls("3", "ask")
		if c.where("3") != 0 {
			t.Errorf("call 3 is in %d", c.where("3"))
		}
		main.answers("3")
		c.ended(d, "complete")
	})
}

// If there is no process for a call, it waits for its turn. Waiting calls can be cancelled.
func TestCallsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.places = 1
		a := c.calls("1", "ask")
		c.server.all[0].asks(1, "a")
		q := c.asked(a, "a")
		b, d, e := c.calls("2", "ask"), c.calls("3", "ask"), c.calls("4", "ask")
		c.calls("5", "ask")
		if c.where("2") != 1 || c.where("3") != -1 {
			t.Fatalf("calls 2 and 3 are in %d and %d", c.where("2"), c.where("3"))
		}
		c.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
		c.replies(q) // the answer waits for no other
		c.server.all[0].answers("1")
		c.ended(a, "complete")
		time.Sleep(time.Second)
		if c.where("3") != 0 || c.where("4") != -1 {
			t.Fatalf("calls 3 and 4 are in %d and %d", c.where("3"), c.where("4"))
		}
		time.Sleep(laneWait)
		c.ended(e, "has not begun")
		c.server.all[0].answers("3")
		c.ended(d, "complete")
		c.server.all[1].answers("2")
		c.ended(b, "complete")
		if c.where("5") != -1 {
			t.Error("a call was made that was cancelled before")
		}
	})
	inCrowd(t, func(_ *testing.T, c *crowd) {
		c.places = 0
		a := c.calls("0", "ask")
		c.server.all[0].asks(1, "a")
		c.asked(a, "a")
		for i := range mostWaiting {
			c.calls(fmt.Sprint(i+1), "ask")
		}
		c.ended(c.calls("9000", "ask"), "it has not begun")
		time.Sleep(laneWait)
		synctest.Wait()
		for range mostWaiting {
			c.next()
		}
		c.server.all[0].answers("0")
		c.ended(a, "complete")
	})
}

// A lane that cannot be opened, or that ends, fails its own call and no other.
func TestLaneThatEnds(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(_ *testing.T, c *crowd) {
		a := c.calls("1", "ask")
		c.server.all[0].asks(1, "a")
		c.asked(a, "a")
		b := c.calls("2", "ask")
		c.server.all[1].sink.Closed(errors.New("exit status 1"), true)
		c.ended(b, fmt.Sprint(protocol.CodeOutcomeUnknown))
		c.server.fail = errors.New("no such command")
		c.ended(c.calls("3", "ask"), "no such command")
		c.server.fail = nil
		d := c.calls("4", "ask")
		c.server.all[2].asks(1, "d")
		c.asked(d, "d")
		c.server.all[2].answers("4")
		c.ended(d, "complete")
		c.server.all[0].answers("1")
		c.ended(a, "complete")
	})
}

// repeatedCall is a call that runs again after a takeover.
type repeatedCall struct{ call }

func (*repeatedCall) Repeated() bool { return true }

// A lane whose process has ended just when it had begun has none of its calls.
func TestLaneThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		synctest.Wait()
		l := c.conn.(*legacyServer).out.conn.(*lanes)
		for range 50 {
			ln := &lane{of: l, calls: make(map[string]*laneCall), answer: make(chan jsonrpc.Message, 1), ended: make(chan struct{})}
			ln.out.failed, ln.out.log = ln.failed, quiet
			ln.out.open(&opened{sink: ln, deaf: true})
			waits := &laneCall{in: backend.Inbound{Message: newRequest([]byte("9"), "tools/call", nil)}, unsent: true}
			l.mu.Lock()
			ln.calls["9"] = waits
			ln.answer <- newResult([]byte("0"), nil)
			ln.end(errors.New("it has ended"))
			l.mu.Unlock()
			if err := ln.initialized(t.Context(), waits.in); err == nil || !waits.unsent {
				t.Fatalf("it goes on (%v), and its call is sent: %v", err, !waits.unsent)
			}
			ln.out.stop()
		}
	})
}

// A call waits for another one no longer than until the server has not taken that.
func TestCallThatIsNotTaken(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		synctest.Wait()
		l := c.conn.(*legacyServer).out.conn.(*lanes)
		l.habits.ask()
		l.most = 0
		refuse := &refusing{Conn: l.main.out.conn, now: make(chan error)}
		l.main.out.conn = refuse
		failed := make(chan error)
		go func() {
			failed <- c.conn.Deliver(backend.Inbound{Message: mcptest.Parse(modernRequest("1", "tools/call", `"name":"a"`, "")), Call: &call{"1"}})
		}()
		synctest.Wait()
		c.calls("2", "a")
		if at := c.where("2"); at >= 0 {
			t.Errorf("the server has both calls")
		}
		refuse.now <- errors.New("full")
		if err := <-failed; err == nil {
			t.Error("the first call was taken")
		}
		if at := c.where("2"); at != 0 {
			t.Error("the second call waits on")
		}
		c.server.all[0].answers("2")
		c.next()
	})
}

// A refusing conn does not take the request 1, once it is told so.
type refusing struct {
	backend.Conn
	now chan error
}

func (r *refusing) Deliver(in backend.Inbound) (err error) {
	if string(in.ID) == "1" {
		return <-r.now
	}
	return r.Conn.Deliver(in)
}

// Calls that run again begin at the same time: each has a process of its own, as long as there are places.
func TestCallsAfterTakeOver(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.places = 1
		for i := range 3 {
			m := mcptest.Parse(modernRequest(fmt.Sprint(i+1), "tools/call", `"name":"late"`, ""))
			mcptest.Check(t, c.conn.Deliver(backend.Inbound{Message: m, Context: t.Context(), Call: &repeatedCall{}}))
			synctest.Wait()
		}
		if one, two, three := c.where("1"), c.where("2"), c.where("3"); one != 0 || two != 1 || three != 0 {
			t.Errorf("calls 1, 2 and 3 are in %d, %d and %d", one, two, three)
		}
		for id, i := range map[string]int{"1": 0, "2": 1, "3": 0} {
			c.server.all[i].answers(id)
			c.ended(nil, "complete")
		}
	})
}

// A call that gets no process when its conversation has just ended waits for none, and no timer answers it later.
func TestNoPlaceAfterClose(t *testing.T) {
	t.Parallel()
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.places, c.gate = 0, make(chan struct{})
		for i := range 2 {
			m := mcptest.Parse(modernRequest(fmt.Sprint(i+1), "tools/call", `"name":"late"`, ""))
			mcptest.Check(t, c.conn.Deliver(backend.Inbound{Message: m, Context: t.Context(), Call: &repeatedCall{}}))
			synctest.Wait()
		}
		closed := make(chan error, 1)
		go func() { closed <- c.conn.Close() }()
		synctest.Wait()
		close(c.gate)
		mcptest.Check(t, <-closed)
		time.Sleep(2 * laneWait)
	})
}
