package merge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server that starts, and then leaves a method unanswered, delays a client once. Afterwards no client waits longer than
// lateWait for it, also for requests that only that server could answer, until it answers again. The log says so once.
func TestWaitedForOnce(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"tools/list", "resources/list", "logging/setLevel", "resources/read"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said mcptest.Log
				a := &fake{tool: "x", mute: []string{method}}
				b := New(func() []Member {
					return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
				}, slog.New(slog.NewTextHandler(&said, nil)))
				id := 20
				ask := func(c *client) time.Duration {
					t.Helper()
					id++
					c.tell(t, fmt.Sprint(id), method, fmt.Sprintf(`{"level":"info","uri":"b://%d"}`, id))
					m, took := c.answered(fmt.Sprint(id))
					if m.Error != nil {
						t.Errorf("%s", m.Raw)
					}
					return took
				}
				for i := range 3 {
					c := newClient(t, b)
					c.ask(t, "initialize")
					c.tell(t, "", "notifications/initialized", "{}")
					for n := range 20 {
						if took := ask(c); took > lateWait && (i > 0 || n > 0) {
							t.Errorf("client %d waited %v, in turn %d", i, took, n)
						}
						time.Sleep(time.Second)
					}
				}
				if n := len(said.Lines("")); n > 2 {
					t.Errorf("the log has %d lines", n)
				}
				a.leaves()
				time.Sleep(time.Minute)
				c := newClient(t, b)
				c.ask(t, "initialize")
				ask(c)
				if method != "resources/read" && b.waitFor(matter{"a", method}) != initWait {
					t.Error("a server that answers again is waited for no longer")
				}
			})
		})
	}
}

// tell sends a request, or a notification if it has no id.
func (c *client) tell(t *testing.T, id, method, params string) {
	t.Helper()
	m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: method, Params: []byte(params)}
	if id != "" {
		m.Kind, m.ID = jsonrpc.Request, []byte(id)
	}
	m.Raw = jsonrpc.AppendRequest(nil, m.ID, method, m.Params)
	mcptest.Check(t, c.conn.Deliver(backend.Inbound{Message: m, Context: t.Context(), Call: &struct{ backend.Call }{}}))
}

// hears reports whether a request is answered within an hour.
func (c *client) hears(id string) bool {
	for late := time.After(time.Hour); ; {
		select {
		case m := <-c.said:
			if m.Kind == jsonrpc.Response && string(m.ID) == id {
				return true
			}
		case <-late:
			return false
		}
	}
}

// asked returns how many requests of servers wait for the client's answer.
func (c *client) asked() int {
	of, _ := c.conn.(*conn)
	of.mu.Lock()
	defer of.mu.Unlock()
	return len(of.asked)
}

// The requests of a server that does not start are dropped. A client that waits for a server goes on when the server is closed.
func TestNotOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{tool: "x", asks: "initialize", mute: []string{"initialize"}}
		c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
		c.tell(t, "1", "initialize", "{}")
		synctest.Wait()
		if n := c.asked(); n != 1 {
			t.Errorf("%d questions wait", n)
		}
		if !c.hears("1") {
			t.Error("initialize is not answered")
		}
		time.Sleep(openFor - initWait + firstRetry/2)
		if n := c.asked(); n != 0 {
			t.Errorf("%d questions of a server that did not start are kept", n)
		}
		c.tell(t, "2", "initialize", "{}")
		synctest.Wait()
		of, _ := c.conn.(*conn)
		of.links()[0].close()
		began := time.Now()
		if c.hears("2"); time.Since(began) > 0 {
			t.Errorf("a server that is closed is waited for: %v", time.Since(began))
		}
	})
}

// A server that leaves some methods unanswered does not delay other requests. When it is no
// longer a member, its conversations are closed.
func TestSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{tool: "x", asks: "tools/call", mute: []string{"tools/call", "logging/setLevel", "resources/read", "resources/subscribe"}}
		both := []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
		var members atomic.Pointer[[]Member]
		members.Store(&both)
		b := New(func() []Member { return *members.Load() }, slog.New(slog.DiscardHandler))
		c := newClient(t, b)
		c.ask(t, "initialize")
		c.tell(t, "", "notifications/initialized", "{}")
		for i, method := range []string{"logging/setLevel", "resources/read", "resources/subscribe"} {
			id := fmt.Sprint(10 + i)
			c.tell(t, id, method, `{"level":"info","uri":"b://`+id+`"}`)
			if !c.hears(id) {
				t.Errorf("%s is not answered, as one of the servers is silent", method)
			}
		}
		time.Sleep(partFor) // until no request waits any more for the server's subscription
		a.ends(errors.New("killed"))
		if tools, _ := c.tools(t); tools != "a_x b_y" {
			t.Errorf("a server that does not answer logging/setLevel is not there when it is opened again: %s", tools)
		}
		c.tell(t, "20", "tools/call", `{"name":"a_x"}`)
		c.tell(t, "", "notifications/cancelled", `{"requestId":20}`)
		synctest.Wait()
		if n := a.cancelled.Load(); n != 4 {
			t.Errorf("the server was told of %d cancelled requests, want 4", n)
		}
		only := both[1:]
		members.Store(&only)
		b.Changed()
		time.Sleep(time.Minute)
		if a.closed.Load() != 2 { // the first time after it was killed
			t.Errorf("a server that does not answer a cancelled call was closed %d times after it was removed", a.closed.Load()-1)
		}
		if n := c.asked(); n != 0 {
			t.Errorf("%d questions of a server that was removed are kept", n)
		}
	})
}

// If the members change while servers start, initialize succeeds, and does not wait for removed members.
func TestChangeWhileOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func() Member {
			return Member{Name: "a", Backend: &fake{tool: "x", starts: 3 * time.Second}, Prefix: "a_"}
		}
		members := []Member{slow()}
		b := New(func() []Member { return slices.Clone(members) }, slog.New(slog.DiscardHandler))
		c := newClient(t, b)
		c.tell(t, "1", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		time.Sleep(time.Second)
		members = []Member{slow()}
		b.Changed()
		began := time.Now()
		if m := <-c.said; m.Kind != jsonrpc.Response || m.Error != nil {
			t.Errorf("initialize: %s", m.Raw)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("it took %v more", took)
		}
	})
}

// A request that a server sends outside any call belongs to the server's only call, whatever calls
// other servers have.
func TestAsksInItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := &fake{tool: "x", mute: []string{"tools/call"}}, &fake{tool: "y", mute: []string{"tools/call"}, asks: "tools/call"}
		c := newClient(t, New(func() []Member {
			return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: b, Prefix: "b_"}}
		}, slog.New(slog.DiscardHandler)))
		c.ask(t, "initialize")
		c.tell(t, "20", "tools/call", `{"name":"a_x"}`)
		c.tell(t, "21", "tools/call", `{"name":"b_y"}`)
		synctest.Wait()
		if m := <-c.said; m.Method != "elicitation/create" || c.last.Load() == nil || *c.last.Load() != b.called {
			t.Errorf("%s was not asked in the call of its server", m.Raw)
		}
	})
}

// An answer that a server does not take just now, as its stdin is full for example, can be delivered again, unless the server ends.
func TestAnswerNotTaken(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			goOn, room := make(chan struct{}), false
			a := &fake{tool: "x", mute: []string{"tools/call"}, asks: "tools/call", takes: func(in backend.Inbound) error {
				if in.Kind != jsonrpc.Response {
					return nil
				}
				if <-goOn; !room {
					return errors.New("the pipe is full")
				}
				return nil
			}}
			c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
			c.tell(t, "20", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
			synctest.Wait()
			c.told()
			c.tell(t, "21", "tools/call", `{"name":"a_x"}`)
			asked := <-c.said
			answer := backend.Inbound{Message: response(asked.ID, nil, nil), Context: t.Context()}
			delivered := make(chan error, 1)
			go func() { delivered <- c.conn.Deliver(answer) }()
			synctest.Wait()
			if ends {
				a.ends(errors.New("gone"))
			}
			close(goOn)
			if err := <-delivered; (err == nil) != ends || c.asked() != map[bool]int{false: 1}[ends] {
				t.Errorf("ends %v: %v; %d questions wait", ends, err, c.asked())
			}
			room = true
			if err := c.conn.Deliver(answer); err != nil || c.asked() != 0 {
				t.Errorf("ends %v: once there is room: %v; %d questions wait", ends, err, c.asked())
			}
			if n := len(a.hearing("")); (n == 0) != ends {
				t.Errorf("ends %v: the server gets %d answers", ends, n)
			}
		})
	}
}

// A server that is being opened is told of a subscription that the client makes while the server is told of those before.
func TestSubscribedWhileOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{tool: "x", starts: initWait + time.Second, mute: []string{"resources/subscribe"}}
		c := newClient(t, New(func() []Member {
			return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
		}, slog.New(slog.DiscardHandler)))
		c.ask(t, "initialize") // the server is late: clients wait for lateWait from now on
		c.tell(t, "20", "resources/subscribe", `{"uri":"r:/1"}`)
		time.Sleep(time.Second + lateWait/2) // the server is told of it, and does not answer
		c.tell(t, "21", "resources/subscribe", `{"uri":"r:/2"}`)
		time.Sleep(2 * restateFor)
		if n := len(a.hearing("resources/subscribe")); n != 2 {
			t.Errorf("the server is told of %d subscriptions", n)
		}
		for _, id := range []string{"20", "21"} {
			if !c.hears(id) {
				t.Errorf("subscription %s is not answered", id)
			}
		}
	})
}

// An answer that came before there was a conversation with its server is delivered until the server takes it: the client was told that it is taken.
func TestEarlyAnswerNotTaken(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			opened, refused := make(chan struct{}), 0
			var end func()
			a := &fake{tool: "x", opens: func(_ context.Context, sink backend.Sink) error {
				sink.Emit(nil, mcptest.Parse(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`))
				end = func() { sink.Closed(errors.New("gone"), false) }
				<-opened
				return nil
			}, takes: func(in backend.Inbound) error {
				if in.Kind != jsonrpc.Response || refused == 3 {
					return nil
				}
				if refused++; ends {
					end()
				}
				return errors.New("the pipe is full")
			}}
			c := newClient(t, New(func() []Member { return []Member{{Name: "a", Backend: a, Prefix: "a_"}} }, slog.New(slog.DiscardHandler)))
			c.tell(t, "20", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
			asked := <-c.said
			mcptest.Check(t, c.conn.Deliver(backend.Inbound{Message: response(asked.ID, []byte(`{}`), nil), Context: t.Context()}))
			close(opened)
			time.Sleep(time.Second)
			synctest.Wait()
			want, tries := 1, 3
			if ends {
				want, tries = 0, 1
			}
			if n := len(a.hearing("")); n != want || refused != tries {
				t.Errorf("ends %v: the server gets %d answers, and has refused %d", ends, n, refused)
			}
		})
	}
}

// slowPair returns a client that has given up to wait for the server a, which starts in a second, and has the server b.
func slowPair(t *testing.T, a, b *fake) *client {
	t.Helper()
	a.tool, a.starts, b.tool = "x", initWait+time.Second, "y"
	c := newClient(t, New(func() []Member {
		return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: b, Prefix: "b_"}}
	}, slog.New(slog.DiscardHandler)))
	c.ask(t, "initialize")
	return c
}

// A server that was being opened is told that a subscription has ended of which it was told in this opening.
func TestUnsubscribedWhileOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{mute: []string{"resources/subscribe"}}
		c := slowPair(t, a, &fake{})
		c.tell(t, "20", "resources/subscribe", `{"uri":"r:/1"}`)
		time.Sleep(time.Second + lateWait/2) // the server is told of it, and does not answer
		c.tell(t, "21", "resources/unsubscribe", `{"uri":"r:/1"}`)
		time.Sleep(2 * restateFor)
		if n := len(a.hearing("resources/unsubscribe")); n != 1 {
			t.Errorf("the server is told %d times that the subscription has ended", n)
		}
	})
}

// A server is told of a subscription whose client has given up to wait for the server, and that is noted after the server has opened.
func TestSubscribedBeforeOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := new(fake)
		c := slowPair(t, a, &fake{tells: func(c *fakeConn, in backend.Inbound) bool {
			if in.Method != "resources/subscribe" {
				return false
			}
			time.AfterFunc(3*time.Second, func() { c.sink.Emit(in.Call, response(in.ID, nil, nil)) })
			return true
		}})
		c.tell(t, "20", "resources/subscribe", `{"uri":"r:/1"}`)
		time.Sleep(time.Minute)
		if n := len(a.hearing("resources/subscribe")); n != 1 {
			t.Errorf("the server is told of %d subscriptions", n)
		}
	})
}

// A server is told of a subscription that is noted while the server gets the messages that have waited for it.
func TestSubscribedAsOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		a := &fake{takes: func(in backend.Inbound) error {
			if in.Method == "tools/call" {
				<-goOn
			}
			return nil
		}}
		c := slowPair(t, a, &fake{})
		time.Sleep(time.Second - lateWait/2)
		c.tell(t, "20", "tools/call", `{"name":"a_x"}`)
		time.Sleep(lateWait)
		c.tell(t, "21", "resources/subscribe", `{"uri":"r:/1"}`)
		if !c.hears("21") {
			t.Error("the subscription is not answered")
		}
		close(goOn)
		synctest.Wait()
		if n := len(a.hearing("resources/subscribe")); n != 1 {
			t.Errorf("the server is told of %d subscriptions", n)
		}
	})
}

// If a server does not answer a subscription, the request fails, and no state of it is kept.
func TestSubscriptionNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fake{tool: "x", mute: []string{"resources/subscribe", "resources/unsubscribe"}}
		c := newClient(t, New(func() []Member {
			return []Member{{Name: "a", Backend: a, Prefix: "a_"}, {Name: "b", Backend: &fake{tool: "y"}, Prefix: "b_"}}
		}, slog.New(slog.DiscardHandler)))
		c.ask(t, "initialize")
		of, _ := c.conn.(*conn)
		of.claim("a://1", of.links()[0])
		for i, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
			id := fmt.Sprint(10 + i)
			c.tell(t, id, method, `{"uri":"a://1"}`)
			if !c.hears(id) {
				t.Errorf("%s is not answered, as the server is silent", method)
			}
		}
		synctest.Wait()
		if n := a.cancelled.Load(); n != 2 {
			t.Errorf("the server was told of %d cancelled requests, want 2", n)
		}
		l := of.links()[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.pending) != 0 || len(l.subs) != 0 {
			t.Errorf("%d requests and %d subscriptions are kept", len(l.pending), len(l.subs))
		}
	})
}

// A subscription that no server takes ends with the error of the server that says why, and not with that of one that has no resources.
func TestSubscriptionRefused(t *testing.T) {
	t.Parallel()
	refuses := func(code int, text string) func(*fakeConn, backend.Inbound) bool {
		return func(c *fakeConn, in backend.Inbound) bool {
			if in.Method == "resources/subscribe" {
				c.sink.Emit(in.Call, response(in.ID, nil, jsonrpc.Errorf(code, "%s", text)))
			}
			return in.Method == "resources/subscribe"
		}
	}
	b := New(func() []Member {
		return []Member{
			{Name: "a", Prefix: "a_", Backend: &fake{tells: refuses(jsonrpc.CodeMethodNotFound, "no method")}},
			{Name: "b", Prefix: "b_", Backend: &fake{tells: refuses(jsonrpc.CodeServer, "no licence")}},
		}
	}, slog.New(slog.DiscardHandler))
	c := newClient(t, b)
	c.ask(t, "initialize")
	if m, _ := c.askWith(t, "resources/subscribe", []byte(`{"uri":"x://1"}`)); !strings.Contains(string(m.Error), "no licence") {
		t.Errorf("%s", m.Raw)
	}
}
