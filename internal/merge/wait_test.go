package merge

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// told returns the responses so far, by their ids, and the methods of other messages.
func (c *client) told() (responses map[string][]jsonrpc.Message, others []string) {
	responses = make(map[string][]jsonrpc.Message)
	for {
		select {
		case m := <-c.said:
			if m.Kind == jsonrpc.Response {
				responses[string(m.ID)] = append(responses[string(m.ID)], m)
			} else {
				others = append(others, m.Method)
			}
		default:
			return responses, others
		}
	}
}

// answered waits for a response, and returns it and how long it took.
func (c *client) answered(id string) (jsonrpc.Message, time.Duration) {
	began := time.Now()
	for m := range c.said {
		if m.Kind == jsonrpc.Response && string(m.ID) == id {
			return m, time.Since(began)
		}
	}
	return jsonrpc.Message{}, 0
}

// A call waits for a starting server as long as a list does, and is not sent once it has failed or was
// cancelled. Other calls are sent when the server has started, in order.
func TestCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const starts = 20 * time.Second
		a := &fake{tool: "x", starts: starts}
		c := newClient(t, New(func() []Member {
			return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
		}, slog.New(slog.DiscardHandler)))
		began := time.Now()
		at := func(when time.Duration) { time.Sleep(when - time.Since(began)) }
		call := func(id string) { c.tell(t, id, "tools/call", `{"name":"a_x"}`) }
		wantFailed := func(id string, after time.Duration) {
			t.Helper()
			m, took := c.answered(id)
			if text := string(m.Error); took != after || !strings.Contains(text, `the server \"a\"`) || !strings.Contains(text, "not sent, so it has not begun") || strings.Contains(text, "unknown") {
				t.Errorf("call %s: %s after %v, want it after %v", id, m.Raw, took, after)
			}
		}
		c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		c.tell(t, "", "notifications/initialized", "{}")
		at(2 * time.Second)
		call("20")
		wantFailed("20", initWait-2*time.Second)
		synctest.Wait()
		call("21")
		wantFailed("21", lateWait)
		for id, method := range map[string]string{"30": "logging/setLevel", "31": "resources/read", "32": "resources/subscribe"} {
			c.tell(t, id, method, `{"level":"info","uri":"x://`+id+`"}`)
			if m, took := c.answered(id); m.Error != nil || took > lateWait {
				t.Errorf("%s: %s after %v", method, m.Raw, took)
			}
		}
		at(starts - lateWait/2)
		for id := 40; id < 50; id++ {
			call(fmt.Sprint(id))
		}
		c.tell(t, "", "notifications/cancelled", `{"requestId":43}`)
		c.told()
		at(time.Minute)
		responses, others := c.told()
		var ids, want []string
		for id := 20; id < 50; id++ {
			id := fmt.Sprint(id)
			ids = append(ids, id)
			if id < "40" || id == "43" {
				if n := len(responses[id]); n != 0 {
					t.Errorf("call %s is answered %d times more", id, n)
				}
				continue
			}
			want = append(want, id)
			if all := responses[id]; len(all) != 1 || all[0].Error != nil {
				t.Errorf("call %s is answered %d times: %v", id, len(all), all)
			}
		}
		if heard := a.hearing(ids...); !slices.Equal(heard, want) {
			t.Errorf("the server heard of the calls %v, want %v", heard, want)
		}
		if heard := a.hearing("logging/setLevel", "resources/subscribe"); !slices.Contains(heard, "logging/setLevel") || !slices.Contains(heard, "resources/subscribe") {
			t.Errorf("what was set meanwhile is not told to the server: it heard %v", heard)
		}
		if !slices.Contains(others, "notifications/tools/list_changed") {
			t.Errorf("the client is not told of the server that came late, but %v", others)
		}
		if wait := c.conn.(*conn).b.waitFor(matter{member: "a"}); wait != initWait {
			t.Errorf("a server that works is waited for %v", wait)
		}
	})
}

// If all servers are slow to start, no client is refused: the first is served without them, and is notified when they have started.
// Later clients wait as long as the first.
func TestAllSlowToStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, y := &fake{tool: "x", starts: 7 * time.Second}, &fake{tool: "y", starts: 8 * time.Second}
		b := New(func() []Member {
			return []Member{{Name: "x", Backend: x, Prefix: "x_"}, {Name: "y", Backend: y, Prefix: "y_"}}
		}, slog.New(slog.DiscardHandler))
		begin := func(want time.Duration) *client {
			t.Helper()
			c := newClient(t, b)
			c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
			if m, took := c.answered("1"); m.Error != nil || took != want || !strings.Contains(string(m.Result), `"tools"`) {
				t.Errorf("initialize: %s after %v, want it after %v", m.Raw, took, want)
			}
			c.tell(t, "", "notifications/initialized", "{}")
			return c
		}
		tools := func(c *client, id string) string {
			c.tell(t, id, "tools/list", "{}")
			m, _ := c.answered(id)
			return string(m.Raw)
		}
		first := begin(initWait)
		time.Sleep(initWait)
		if _, others := first.told(); !slices.Contains(others, "notifications/tools/list_changed") {
			t.Errorf("the client is not told of the servers that came late, but %v", others)
		}
		if got := tools(first, "2"); !strings.Contains(got, "x_x") || !strings.Contains(got, "y_y") {
			t.Errorf("the client sees %s", got)
		}
		begin(initWait) // the next client does not depend on this one
		x.startsIn(2 * time.Second)
		y.startsIn(3 * time.Second) // a client waits until one of the servers has started
		if got := tools(begin(2*time.Second), "2"); !strings.Contains(got, "x_x") {
			t.Errorf("a later client sees %s", got)
		}
		x.startsIn(0)
		y.startsIn(0)
		begin(0)
	})
}

// If a server has worked before, a call waits for its slow process, although a list does not. It waits once for a
// process that hangs.
func TestCallWaitsForSlowStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{tool: "x", starts: 9 * time.Second}
		b := New(func() []Member {
			return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
		}, slog.New(slog.DiscardHandler))
		begin := func(most time.Duration) *client {
			c := newClient(t, b)
			c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
			if m, took := c.answered("1"); m.Error != nil || took > most {
				t.Errorf("initialize: %s after %v", m.Raw, took)
			}
			c.tell(t, "", "notifications/initialized", "{}")
			return c
		}
		call := func(c *client, id string) (failed bool, took time.Duration) {
			c.tell(t, id, "tools/call", `{"name":"a_x"}`)
			m, took := c.answered(id)
			return m.Error != nil, took
		}
		c := begin(initWait)
		time.Sleep(time.Minute)
		if failed, took := call(c, "2"); failed || took > 0 {
			t.Errorf("a call of a server that works: %t after %v", failed, took)
		}
		if failed, took := call(begin(initWait), "2"); failed || took != 4*time.Second {
			t.Errorf("a call of a server that is slow to start again: %t after %v", failed, took)
		}
		a.startsIn(time.Hour)
		for i, want := range []time.Duration{partFor - initWait, lateWait, lateWait} {
			if failed, took := call(begin(initWait), "2"); !failed || took != want {
				t.Errorf("call %d of a server that hangs now: %t after %v, want %v", i, failed, took, want)
			}
		}
	})
}

// If a server starts at the very moment at which calls have waited long enough, each call is answered once, and
// failed calls are not sent.
func TestCallWaitsRace(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			a := &fake{tool: "x", starts: initWait}
			c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
			const calls = 20
			var ids, want []string
			for id := 20; id < 20+calls; id++ {
				ids = append(ids, fmt.Sprint(id))
				c.tell(t, fmt.Sprint(id), "tools/call", `{"name":"a_x"}`)
			}
			time.Sleep(time.Minute)
			responses, _ := c.told()
			for _, id := range ids {
				if n := len(responses[id]); n != 1 {
					t.Fatalf("call %s is answered %d times", id, n)
				}
				if responses[id][0].Error == nil {
					want = append(want, id)
				}
			}
			if heard := a.hearing(ids...); !slices.Equal(heard, want) {
				t.Errorf("the server heard of the calls %v, and %v are answered by it", heard, want)
			}
		})
	}
}

// If a conversation ends while calls wait, no message is sent after its end.
func TestCallWaitsClosed(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			a := &fake{tool: "x", mute: []string{"initialize"}}
			c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
			for id := 20; id < 40; id++ {
				c.tell(t, fmt.Sprint(id), "tools/call", `{"name":"a_x"}`)
			}
			time.Sleep(initWait)
			_ = c.conn.Close()
			c.told()
			time.Sleep(time.Minute)
			if responses, _ := c.told(); len(responses) > 0 {
				t.Errorf("%d responses after the conversation has ended", len(responses))
			}
		})
	}
}

// stuck returns a fake that blocks at the request 3 until goOn is closed. With full it does not take the request then.
func stuck(full bool) (f *fake, goOn chan struct{}) {
	goOn = make(chan struct{})
	return &fake{tool: "x", takes: func(in backend.Inbound) error {
		if string(in.ID) != "3" {
			return nil
		}
		if <-goOn; full {
			return errors.New("the pipe is broken")
		}
		return nil
	}}, goOn
}

// A server that ends while it gets the waiting calls is opened again for the next call.
func TestEndsWhenOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, goOn := stuck(false)
		a.startsIn(time.Second)
		a.leaves("tools/call")
		c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
		c.said = make(chan jsonrpc.Message) // unbuffered: a sender waits for the client
		c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		c.tell(t, "2", "tools/call", `{"name":"a_x"}`)
		c.tell(t, "3", "tools/call", `{"name":"a_x"}`)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		go a.ends(errors.New("gone"))
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		a.leaves()
		a.startsIn(0)
		for range 3 {
			<-c.said
		}
		synctest.Wait()
		c.said = make(chan jsonrpc.Message, 100)
		c.tell(t, "4", "tools/call", `{"name":"a_x"}`)
		if m, _ := c.answered("4"); m.Error != nil {
			t.Errorf("the next call: %s", m.Raw)
		}
		if n := len(a.hearing("initialize")); n < 2 {
			t.Errorf("the server was opened %d times", n)
		}
	})
}

// If a server ends, or its conversation is closed, while it is being sent a request, the outcome of the request is unknown only if the server
// has got it.
func TestEndsAmidRequest(t *testing.T) {
	t.Parallel()
	for full, want := range map[bool]string{true: "did not take the request: the pipe is broken", false: "outcome unknown"} {
		for _, closes := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				a, goOn := stuck(full)
				a.leaves("tools/call")
				c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
				c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
				synctest.Wait()
				c.told()
				go c.tell(t, "3", "tools/call", `{"name":"a_x"}`)
				synctest.Wait()
				if closes {
					go func() { _ = c.conn.Close() }()
				} else {
					a.ends(errors.New("gone"))
				}
				synctest.Wait()
				if got, _ := c.told(); len(got["3"]) > 0 {
					t.Errorf("closed %v: before it is known whether the server has it: %s", closes, got["3"][0].Raw)
				}
				close(goOn)
				synctest.Wait()
				if got, _ := c.told(); len(got["3"]) != 1 || !strings.Contains(string(got["3"][0].Raw), want) {
					t.Errorf("closed %v: the client is told %v; want %s", closes, got, want)
				}
			})
		}
	}
}
