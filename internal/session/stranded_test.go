package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/jsonrpc"
)

// In a chain of requests each is the one before it made again, and none has begun. One of them runs, and the last one gets the result.
func TestStrandedBeforeBegun(t *testing.T) {
	t.Parallel()
	for _, size := range []int{2, 3, 5} {
		safe := []func(string) bool{nil, func(string) bool { panic("by Options.Safe") }}[size%2] // Safe is called after the call has begun
		h := newHouse(t, Options{AttachWithin: time.Hour, Safe: safe}, nil)
		s := h.open("")
		var calls []*Call
		for i := range size {
			c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(i))}, false)
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		for _, c := range calls[:size-1] {
			h.flights.Strand(flightSession{s}, c.Number(), c.Like())
		}
		for i := range calls { // the last request is delivered first, or in the midst of the others
			i = (i + size - 1 + size/2) % size
			calls[i].Deliver(t.Context(), []jsonrpc.Message{mcptest.Parse(request(i))}, nil)
		}
		link := h.desk.last()
		in := <-link.in
		link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
		for i, c := range calls {
			said := readAll(t, s, c.Number())
			if len(said) != 1 || !strings.Contains(said[0], fmt.Sprintf(`"id":%d`, i)) || i == size-1 && !strings.Contains(said[0], "result") {
				t.Errorf("%d of %d is answered %q", i, size, said)
			}
		}
		if len(link.in) != 0 {
			t.Errorf("%d more ran", len(link.in))
		}
		h.close()
	}
}

// A call with a webhook begins even if its client has left and an equal call is in flight: that client waits for the webhook.
func TestStrandedWebhook(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{AttachWithin: time.Hour, OnEnded: func(webhook.Ended) bool { return true }}, nil)
	defer h.close()
	s := h.open("")
	const text = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x","_meta":{%s}}}`
	ask := func(id int, meta string, left bool) *Call {
		conn := &clientConn{}
		conn.left.Store(left)
		msgs := []jsonrpc.Message{mcptest.Parse(fmt.Sprintf(text, id, meta))}
		c, err := s.Begin(msgs, true, Origin{Conn: conn})
		if err != nil {
			t.Fatal(err)
		}
		c.Deliver(t.Context(), msgs, nil)
		return c
	}
	first := ask(1, "", false)
	link := h.desk.last()
	in := <-link.in
	if said := waitFor(t, ask(2, "", true)); !strings.Contains(said, "not delivered") {
		t.Errorf("without a webhook: %s", said)
	}
	hooked := ask(3, `"holdfast/webhook":{"url":"http://127.0.0.1/"}`, true)
	if said := h.answers(hooked); !strings.Contains(said, "result") {
		t.Errorf("with one: %s", said)
	}
	link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
	waitFor(t, first)
}

// A request that equals a cancelled one begins, even if its client has left: it is not that request made again.
func TestStrandedCancelled(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(s *Session, link *deskConn, in backend.Inbound){
		"answered": func(_ *Session, link *deskConn, in backend.Inbound) {
			link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
		},
		"cancelled": func(s *Session, _ *deskConn, in backend.Inbound) { s.cancel(in.ID) },
		"withdrawn": func(_ *Session, link *deskConn, in backend.Inbound) {
			callOf(&in).Withdraw("")
			<-link.in // the cancellation
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
			defer h.close()
			s := h.open("")
			begin := func(id int, left bool) *Call {
				conn := &clientConn{}
				conn.left.Store(left)
				msgs := []jsonrpc.Message{mcptest.Parse(request(id))}
				c, err := s.Begin(msgs, true, Origin{Conn: conn})
				if err != nil {
					t.Fatal(err)
				}
				c.Deliver(t.Context(), msgs, nil)
				return c
			}
			first := begin(1, false)
			link := h.desk.last()
			end(s, link, <-link.in)
			waitFor(t, first)
			second := begin(2, true)
			if what == "answered" { // the client seems not to have read the answer, and to have made the request again
				if said := waitFor(t, second); !strings.Contains(said, "not delivered") {
					t.Errorf("the second one is answered %s", said)
				}
			} else if said := h.answers(second); !strings.Contains(said, "result") {
				t.Errorf("the second one is answered %s", said)
			}
		})
	}
}

// A call is not stranded if its client is back, and has read all, before the loss of its connection is noticed.
func TestStrandedBack(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
	defer h.close()
	s := h.open("")
	first := begin(t, s, false, request(1))
	link, number := h.desk.last(), first.Number()
	in := <-link.in
	s.streams.Cut(number, first.Like(), func() {
		link.say(in.Call, response(1))
		r := attach(t, s, number)
		tell(t, r, 1)
		r.Detach(false, true, false)
		h.flights.Strand(flightSession{s}, number, first.Like())
	})
	if said := h.answers(begin(t, s, true, request(2))); !strings.Contains(said, "result") {
		t.Error(said)
	}
}

// A request that makes a stranded call again, and is cancelled before it is delivered, ends that call, also if that call is stranded later.
func TestStrandedCancelledEarly(t *testing.T) {
	t.Parallel()
	for _, later := range []bool{false, true} {
		h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
		s := h.open("")
		conn := &clientConn{}
		conn.unsettled.Store(later)
		of := func(id int) []jsonrpc.Message { return []jsonrpc.Message{mcptest.Parse(request(id))} }
		first, err := s.Begin(of(1), false, Origin{Conn: conn})
		if err != nil {
			t.Fatal(err)
		}
		first.Deliver(t.Context(), of(1), nil)
		link := h.desk.last()
		<-link.in
		lost := func() { h.flights.Strand(flightSession{s}, first.Number(), first.Like()) }
		if !later {
			lost()
		}
		second, err := s.Begin(of(2), false)
		if err != nil {
			t.Fatal(err)
		}
		s.cancel([]byte("2"))
		second.Deliver(t.Context(), of(2), nil)
		if later {
			lost()
		}
		if in := <-link.in; in.Method != "notifications/cancelled" {
			t.Errorf("later %v: %s", later, in.Raw)
		}
		h.close()
	}
}

// The network may tell twice that a client has left. A call that a request was attached to is not stranded by the second time: a later request is
// another call. But if the client of the first one comes back and is lost again, it is.
func TestStrandedTwice(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
		s := h.open("")
		first := begin(t, s, false, request(1))
		link, number := h.desk.last(), first.Number()
		in := <-link.in
		lost := func() { h.flights.Strand(flightSession{s}, number, first.Like()) }
		lost()
		second := begin(t, s, false, request(2))
		link.say(in.Call, response(1))
		if said := readAll(t, s, second.Number()); len(said) != 1 || !strings.Contains(said[0], `"result"`) {
			t.Errorf("the request that was made again is answered %q", said)
		}
		if back {
			r := attach(t, s, number)
			r.Through(observe.DoorResume, first.Like())
			tell(t, r, 1)
			r.Detach(false, true, false)
		}
		lost()
		third := begin(t, s, !back, request(3))
		if back {
			if said := readAll(t, s, third.Number()); len(said) != 1 || !strings.Contains(said[0], `"result"`) {
				t.Errorf("once the client was back, and lost: %q", said)
			}
		} else if said := h.answers(third); !strings.Contains(said, "result") {
			t.Error(said)
		}
		h.close()
	}
}

// A request that is a stranded call of another session made again does not end with the server of its own session, which does not have it.
func TestStrandedElsewhere(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
	defer h.close()
	named := func(id int) string {
		return strings.Replace(request(id), `"name":"x"`, `"name":"x","_meta":{"callId":"c"}`, 1)
	}
	s := h.open("alice")
	first := begin(t, s, false, named(1))
	link := h.desk.last()
	in := <-link.in
	h.flights.Strand(flightSession{s}, first.Number(), first.Like())
	other := h.open("alice")
	second := begin(t, other, false, named(2))
	sent := func() (is bool) {
		other.requests.locked(func() { is = len(other.requests.all) == 1 && other.requests.all["2"].sent })
		return is
	}
	mcptest.Eventually(t, "the request to be attached", time.Minute, sent)
	h.desk.last().sink.Closed(errors.New("died"), true)
	link.say(in.Call, response(1))
	if said := readAll(t, other, second.Number()); len(said) != 1 || !strings.Contains(said[0], `"result"`) {
		t.Errorf("the request that was made again is answered %q", said)
	}
}

// A server is not told of the end of a request that is a stranded call of another session made again: it does not have the request.
func TestStrandedElsewhereWithdrawn(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
	defer h.close()
	named := func(id int) string {
		return strings.Replace(request(id), `"name":"x"`, `"name":"x","_meta":{"callId":"c"}`, 1)
	}
	s := h.open("alice")
	first := begin(t, s, false, named(1))
	link := h.desk.last()
	<-link.in
	h.flights.Strand(flightSession{s}, first.Number(), first.Like())
	other := h.open("alice")
	begin(t, other, false, named(2))
	mcptest.Eventually(t, "the request to be attached", time.Minute, func() (is bool) {
		other.requests.locked(func() { is = other.requests.all["2"].sent })
		return is
	})
	if !other.CancelByOperator("2") {
		t.Fatal("the request is not in flight")
	}
	if in := link.next(t, "notifications/cancelled"); string(jsonrpc.Field(in.Params, "requestId")) != "1" {
		t.Errorf("the server of the first call was told %s", in.Raw)
	}
	if n := len(h.desk.last().in); n != 0 {
		t.Errorf("the other server was told %s", (<-h.desk.last().in).Raw)
	}
}
