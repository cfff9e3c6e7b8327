package translate

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

func listenTo(id, filter string) string {
	return modernRequest(id, "subscriptions/listen", `"notifications":`+filter, "")
}

func acknowledged(id, filter string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":%s,"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, filter, id)
}

func ended(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s,"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}},"resultType":"complete"}}`, id, id)
}

func updated(uri, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q%s}}`, uri, more)
}

const (
	asks   = `{"jsonrpc":"2.0","id":ID,"method":"resources/subscribe","params":{"uri":"%s"}}`
	leaves = `{"jsonrpc":"2.0","id":ID,"method":"resources/unsubscribe","params":{"uri":"%s"}}`
	done   = `{"jsonrpc":"2.0","id":%s,"result":{}}`
)

func TestListen(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a, b := &call{"a"}, &call{"b"}
	h.deliver(a, listenTo(`"l"`, `{"toolsListChanged":true,"promptsListChanged":true,"taskIds":["x"]}`))
	h.expect(a, acknowledged(`"l"`, `{"toolsListChanged":true}`))
	h.deliver(b, listenTo("2", `{"promptsListChanged":true}`))
	h.expect(b, acknowledged("2", `{}`))
	h.expect(b, ended("2"))
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	s.say(nil, changed)
	h.expect(nil, changed)
	h.expect(a, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l"}}`)
	s.say(nil, changed)
	h.expect(nil, changed)
	h.deliver(a, listenTo("3", `[]`))
	if got := h.next(); string(jsonrpc.Field(got.m.Error, "code")) != "-32602" {
		t.Errorf("no filter: %s", got.m.Raw)
	}
}

func TestListenToResources(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a, b := &call{"a"}, &call{"b"}
	h.deliver(a, listenTo("1", `{"resourceSubscriptions":["r:/1","r:/2","r:/1"]}`))
	one := s.hears(fmt.Sprintf(asks, "r:/1"))
	two := s.hears(fmt.Sprintf(asks, "r:/2"))
	s.say(nil, fmt.Sprintf(done, one))
	s.say(nil, updated("r:/1", "")) // before the client has the acknowledgement
	h.deliver(b, listenTo("2", `{"resourceSubscriptions":["r:/1"]}`))
	h.expect(b, acknowledged("2", `{"resourceSubscriptions":["r:/1"]}`))
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32002,"message":"none"}}`, two))
	h.expect(a, acknowledged("1", `{"resourceSubscriptions":["r:/1"]}`))
	tag := func(id string) string { return `,"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}` }
	h.expect(a, updated("r:/1", tag("1")))
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.say(nil, updated("r:/2", ""))
	s.say(nil, updated("r:/11", ""))
	s.say(nil, updated("r:/1/part", ""))
	h.expect(b, updated("r:/1/part", tag("2")))

	// A new listen that comes while the last one ends waits until the server has unsubscribed.
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	left := s.hears(fmt.Sprintf(leaves, "r:/1"))
	h.deliver(a, listenTo("3", `{"resourceSubscriptions":["r:/1"]}`))
	s.untold()
	s.say(nil, fmt.Sprintf(done, left))
	s.say(nil, fmt.Sprintf(done, s.hears(fmt.Sprintf(asks, "r:/1"))))
	h.expect(a, acknowledged("3", `{"resourceSubscriptions":["r:/1"]}`))

	// When the server ends, all listens end.
	s.sink.Closed(errors.New("over"), true)
	h.expect(a, ended("3"))
	if got := h.next(); got.closed == nil {
		t.Errorf("not closed: %s", got.m.Raw)
	}
}

// A resource is left out of a listen if the server does not answer the subscription.
func TestListenUnanswered(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a := &call{"a"}
	h.deliver(a, listenTo("1", `{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`))
	id := s.hears(fmt.Sprintf(asks, "r:/1"))
	c := h.conn.(*legacyServer)
	c.giveUp(c.inFlight["1"].listen) // as after subscribeTimeout
	h.expect(a, acknowledged("1", `{"toolsListChanged":true}`))
	s.say(nil, fmt.Sprintf(done, id))
	s.say(nil, fmt.Sprintf(done, s.hears(fmt.Sprintf(leaves, "r:/1"))))
	if len(c.subs) != 0 {
		t.Errorf("still subscribed: %v", c.subs)
	}
}

// No state of subscriptions is kept if a server never answers them, whether or not their client stays.
func TestListenNeverAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := modernConversation(t)
		c := h.conn.(*legacyServer)
		const listens = 10
		a := &call{"a"}
		kept := func() (subs, own int) {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.own.mu.Lock()
			defer c.own.mu.Unlock()
			return len(c.subs), len(c.own.waiting)
		}
		for i := range listens {
			uri := fmt.Sprintf("r:/%d", i)
			h.deliver(a, listenTo(fmt.Sprint(i), `{"toolsListChanged":true,"resourceSubscriptions":["`+uri+`"]}`))
			s.hears(fmt.Sprintf(asks, uri))
			if i%2 == 0 { // this client does not wait
				h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i))
			}
		}
		if subs, own := kept(); subs != listens || own != listens {
			t.Errorf("%d subscriptions and %d requests wait", subs, own)
		}
		time.Sleep(subscribeTimeout)
		synctest.Wait()
		for range listens / 2 { // in any order
			if got := h.next(); got.m.Method != protocol.MethodAcknowledged || string(jsonrpc.Field(got.m.Params, "notifications")) != `{"toolsListChanged":true}` {
				t.Errorf("a client is told %s", got.m.Raw)
			}
		}
		time.Sleep(answerTimeout)
		if subs, own := kept(); subs != 0 || own != 0 {
			t.Errorf("%d subscriptions and %d requests are kept", subs, own)
		}
		for range listens {
			if in := <-s.heard; in.Method != protocol.MethodCancelled {
				t.Errorf("the server hears %s", in.Raw)
			}
		}

		// A resource that was given up can be subscribed to again. An unanswered unsubscription leaves no state either.
		h.deliver(a, listenTo("20", `{"resourceSubscriptions":["r:/1"]}`))
		s.say(nil, fmt.Sprintf(done, s.hears(fmt.Sprintf(asks, "r:/1"))))
		h.expect(a, acknowledged("20", `{"resourceSubscriptions":["r:/1"]}`))
		h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":20}}`)
		s.hears(fmt.Sprintf(leaves, "r:/1"))
		time.Sleep(answerTimeout)
		if subs, own := kept(); subs != 0 || own != 0 {
			t.Errorf("%d subscriptions and %d requests are kept", subs, own)
		}
		if in := <-s.heard; in.Method != protocol.MethodCancelled {
			t.Errorf("the server hears %s", in.Raw)
		}
	})
}

func TestFilter(t *testing.T) {
	t.Parallel()
	f := filter{URIs: []string{"r:/a", "r:/dir/"}}
	for uri, want := range map[string]bool{"r:/a": true, "r:/a/b": true, "r:/a?q": true, "r:/ab": false, "r:/dir/x": true, "r:/dir": false, "": false} {
		if got := f.wants(newRequest(nil, protocol.MethodResourceUpdated, jsonrpc.Object("uri", uri))); got != want {
			t.Errorf("%s: %v", uri, got)
		}
	}
}
