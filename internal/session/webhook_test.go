package session

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// bell records the webhooks that a house calls.
type bell struct {
	mu    sync.Mutex
	rings []string
}

func (b *bell) ended(e webhook.Ended) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	status := "completed"
	if e.Failed {
		status = "failed"
	}
	if time.Since(e.Time) > time.Minute {
		status += " at " + e.Time.String()
	}
	b.rings = append(b.rings, fmt.Sprintf("%s %s %s", e.ID, e.Webhook, status))
	return true
}

// rang returns the calls of the webhooks since rang was last called.
func (b *bell) rang() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	rings := strings.Join(b.rings, ", ")
	b.rings = nil
	return rings
}

func (b *bell) want(t testing.TB, want string) {
	t.Helper()
	if got := b.rang(); got != want {
		t.Errorf("rang %q, want %q", got, want)
	}
}

// belled returns a house with a bell and a session in it.
func belled(t *testing.T, o Options) (*house, *bell, *Session, *deskConn) {
	t.Helper()
	b := &bell{}
	o.OnEnded = b.ended
	h := newHouse(t, o, nil)
	t.Cleanup(h.close)
	s := h.open("")
	return h, b, s, h.desk.last()
}

// hookedRequest is a request that names a webhook.
func hookedRequest(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x","_meta":{"holdfast/webhook":{"url":"https://h/%d"}}}}`, id, id)
}

func response(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, id) }

func failure(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"no"}}`, id)
}

// attach reads a stream from its beginning.
func attach(t testing.TB, s *Session, number uint64) *reading.Reader {
	t.Helper()
	r := mcptest.Must(s.Read(t.Context(), number, 0, 0, make(chan struct{}, 1)))(t)
	return r
}

// tell reads so many entries as a connection does, and writes them.
func tell(t testing.TB, r *reading.Reader, n int) {
	t.Helper()
	for range n {
		if entries, err := r.Next(t.Context(), make([]stream.Entry, 0, 1)); err != nil || len(entries) != 1 {
			t.Fatalf("Next: %v, %v", entries, err)
		}
		r.Delivered()
	}
}

// When a call ends after its client has left, its webhook is called, once.
func TestEndedAway(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	for id, answer := range map[int]string{1: response(1), 2: failure(2)} {
		c := begin(t, s, false, hookedRequest(id))
		r := attach(t, s, c.Number())
		r.Detach(true, true, false)
		b.want(t, "")
		desk.say(c, answer)
		b.want(t, fmt.Sprintf("%d https://h/%d %s", id, id, map[int]string{1: "completed", 2: "failed"}[id]))
		attach(t, s, c.Number()).Detach(true, true, false)
		b.want(t, "")
	}
	if !s.untold.IsIdle() {
		t.Error("calls are still hooked")
	}
}

// A connected client gets the response, and the webhook is not called.
func TestEndedConnected(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	c := begin(t, s, false, hookedRequest(1))
	r := attach(t, s, c.Number())
	desk.say(c, response(1))
	tell(t, r, 1)
	r.Detach(false, true, false)
	b.want(t, "")
	if !s.untold.IsIdle() {
		t.Error("calls are still hooked")
	}
}

// A connection that breaks before the response is written does not count.
func TestEndedBreaks(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	for name, leave := range map[string]func(*reading.Reader){
		"unread": func(*reading.Reader) {},
		"read, not written": func(r *reading.Reader) {
			if _, err := r.Next(t.Context(), make([]stream.Entry, 0, 4)); err != nil {
				t.Fatal(err)
			}
		},
		"in part": func(r *reading.Reader) { tell(t, r, 1) },
		"kicked":  func(r *reading.Reader) { s.streams.Disconnect(r.Cursor().Stream.Number, reading.Disconnect{}) },
	} {
		c := begin(t, s, false, hookedRequest(1))
		r := attach(t, s, c.Number())
		desk.say(c, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		desk.say(c, response(1))
		b.want(t, "")
		leave(r)
		b.want(t, "")
		r.Detach(name != "kicked", true, false)
		if got := b.rang(); got != "1 https://h/1 completed" {
			t.Errorf("%s: rang %q", name, got)
		}
	}
}

// Of two connections the later one counts.
func TestEndedTaken(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	for _, late := range []bool{false, true} { // whether the earlier connection leaves last
		for _, reads := range []bool{false, true} {
			c := begin(t, s, false, hookedRequest(1))
			first := attach(t, s, c.Number())
			if !late {
				desk.say(c, response(1))
			}
			second := attach(t, s, c.Number())
			if late {
				desk.say(c, response(1))
			} else {
				first.Detach(true, true, false)
				b.want(t, "")
			}
			want := "1 https://h/1 completed"
			if reads {
				tell(t, second, 1)
				want = ""
			}
			second.Detach(!reads, true, false)
			if late {
				first.Detach(true, true, false)
			}
			if got := b.rang(); got != want {
				t.Errorf("late %v, reads %v: rang %q, want %q", late, reads, got, want)
			}
		}
	}
	// The earlier connection has written all before it leaves.
	c := begin(t, s, false, hookedRequest(1))
	first := attach(t, s, c.Number())
	desk.say(c, response(1))
	tell(t, first, 1)
	attach(t, s, c.Number()).Detach(true, true, false)
	first.Detach(false, true, false)
	b.want(t, "")
}

// The client of a light call counts as connected while its request waits, and until
// it has come to read the stream that the call became.
func TestEndedLight(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})

	answered := begin(t, s, true, hookedRequest(1))
	desk.say(answered, response(1))
	if _, done := answered.Wait(t.Context(), 0); !done {
		t.Error("not answered")
	}
	b.want(t, "")

	say := func(c *Call) { desk.say(c, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`) }
	upgraded := begin(t, s, true, hookedRequest(2))
	say(upgraded) // before the request waits for it
	desk.say(upgraded, response(2))
	b.want(t, "")
	r := attach(t, s, upgraded.Number())
	b.want(t, "")
	tell(t, r, 2)
	r.Detach(false, true, false)
	b.want(t, "")

	lost := begin(t, s, true, hookedRequest(3))
	say(lost)
	desk.say(lost, response(3))
	r = attach(t, s, lost.Number())
	tell(t, r, 1)
	b.want(t, "")
	r.Detach(true, true, false)
	b.want(t, "3 https://h/3 completed")

	left := begin(t, s, true, hookedRequest(4))
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, done := left.Wait(gone, 0); done {
		t.Error("answered")
	}
	left.ConnectionLost()
	b.want(t, "")
	desk.say(left, response(4))
	b.want(t, "4 https://h/4 completed")

	both := begin(t, s, true, hookedRequest(5))
	say(both)
	desk.say(both, response(5))
	b.want(t, "")
	both.ConnectionLost()
	b.want(t, "5 https://h/5 completed")
	both.ConnectionLost()
	b.want(t, "")
}

// The webhook of a cancelled call is not called.
func TestEndedCancelled(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	c := begin(t, s, false, hookedRequest(1))
	attach(t, s, c.Number()).Detach(true, true, false)
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), nil); err != nil {
		t.Fatal(err)
	}
	desk.say(c, response(1))
	b.want(t, "")
	if !s.untold.IsIdle() {
		t.Error("calls are still hooked")
	}
}

// Calls fail when their backend or session ends. The error of a call that
// was never delivered goes out on the connection on which the call came.
func TestEndedFailed(t *testing.T) {
	t.Parallel()
	h, b, s, desk := belled(t, Options{})
	c := begin(t, s, false, hookedRequest(1))
	attach(t, s, c.Number()).Detach(true, true, false)
	desk.sink.Closed(errBroken, true)
	b.want(t, "1 https://h/1 failed")

	c = begin(t, s, false, hookedRequest(2))
	attach(t, s, c.Number()).Detach(true, true, false)
	h.End(s)
	b.want(t, "2 https://h/2 failed")

	s = h.open("")
	c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(hookedRequest(3))}, false)
	if err != nil {
		t.Fatal(err)
	}
	c.Abort([]jsonrpc.Message{mcptest.Parse(hookedRequest(3))}, jsonrpc.Errorf(jsonrpc.CodeServer, "no"))
	b.want(t, "")
	if !s.untold.IsIdle() {
		t.Error("calls are still hooked")
	}
}

// A message that the store did not take is lost to the client, even if the server said that the call succeeded.
func TestEndedNotStored(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func([]stream.Record) error{"full": full, "broken": brokenDisk} {
		b := &bell{}
		h, d := diskHouse(t, Options{OnEnded: b.ended})
		s := h.open("")
		c := begin(t, s, false, hookedRequest(1), hookedRequest(2))
		attach(t, s, c.Number()).Detach(true, true, false)
		if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`), nil); err != nil {
			t.Fatal(err)
		}
		d.set(refuse)
		h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{"text":"`+strings.Repeat("x", 2*stream.Reserve)+`"}}`)
		if got := b.rang(); got != "1 https://h/1 failed" {
			t.Errorf("%s: rang %q", name, got)
		}
		d.set(nil)
	}
}

// In a batch the webhooks are called of those requests with a response that was not written.
func TestEndedBatch(t *testing.T) {
	t.Parallel()
	h, b, s, _ := belled(t, Options{})
	able := h.able("") // its streams begin with a resume policy for each request
	for i, s := range []*Session{s, s, able, able} {
		c := begin(t, s, i%2 == 0, hookedRequest(1), request(2), hookedRequest(3), hookedRequest(4))
		desk := h.desk.links[i/2]
		desk.say(c, response(1))
		c.Promote()
		r := attach(t, s, c.Number())
		tell(t, r, 1)
		if s == able {
			tell(t, r, 4)
		}
		desk.say(c, response(2))
		desk.say(c, failure(3))
		r.Detach(true, true, false)
		b.want(t, "")
		desk.say(c, response(4))
		b.want(t, "3 https://h/3 failed, 4 https://h/4 completed")
	}
	// The policies were written, but the response to the first request was not.
	c := begin(t, able, true, hookedRequest(1), hookedRequest(2))
	h.desk.links[1].say(c, response(1))
	c.Promote()
	r := attach(t, able, c.Number())
	tell(t, r, 2)
	r.Detach(true, true, false)
	h.desk.links[1].say(c, response(2))
	b.want(t, "1 https://h/1 completed, 2 https://h/2 completed")
}

// In a session with one stream, the reader of that stream counts as connected.
func TestEndedSingle(t *testing.T) {
	t.Parallel()
	b := &bell{}
	h := newHouse(t, Options{OnEnded: b.ended}, nil)
	t.Cleanup(h.close)
	s, err := h.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	desk := h.desk.last()
	call := func(id int) *Call { return begin(t, s, true, hookedRequest(id)) }

	r := attach(t, s, standalone)
	desk.say(call(1), response(1))
	tell(t, r, 1)
	desk.say(call(2), response(2))
	b.want(t, "")
	r.Detach(true, true, false)
	b.want(t, "2 https://h/2 completed")
	desk.say(call(3), failure(3))
	b.want(t, "3 https://h/3 failed")

	r = attach(t, s, standalone)
	c := call(4)
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`), nil); err != nil {
		t.Fatal(err)
	}
	desk.say(c, response(4))
	tell(t, r, 3)
	r.Detach(true, true, false)
	b.want(t, "")
	if n := reflect.ValueOf(s.standalone.untold()).Elem().FieldByName("list").Len(); n > 0 {
		t.Errorf("%d webhooks are kept", n)
	}
}

// Members that are not a webhook are ignored. A webhook without a usable URL is passed on with an empty one.
func TestEndedMeta(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	for params, want := range map[string]string{
		`{"name":"x"}`: "",
		`{"name":"x","arguments":{"_meta":{"holdfast/webhook":{"url":"https://h"}}}}`:       "",
		`{"name":"x","_meta":{"webhook":{"url":"https://h"}}}`:                              "",
		`{"name":"x","_meta":{"holdfast/webhook":"https://h"}}`:                             "",
		`{"name":"x","_meta":{"holdfast/webhook":{}}}`:                                      "",
		`{"name":"x","_meta":{"holdfast\/webhook":{"url":"https:\/\/h"}}}`:                  `"a" https://h completed`,
		`{"name":"x","_meta":{"holdfast/webhook":{"url":7}}}`:                               `"a"  completed`,
		`{"_meta":{"holdfast/webhook":{"url":"` + strings.Repeat("x", 3000) + `"}}}`:        `"a"  completed`,
		`{"_meta":{"progressToken":1,"holdfast/webhook":{"url":"https://h","other":true}}}`: `"a" https://h completed`,
	} {
		c := begin(t, s, false, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":`+params+`}`)
		attach(t, s, c.Number()).Detach(true, true, false)
		if (c.record != nil) != (want != "") {
			t.Errorf("%.80s: the call has a record: %v", params, c.record != nil)
		}
		desk.say(c, `{"jsonrpc":"2.0","id":"a","result":{}}`)
		if got := b.rang(); got != want {
			t.Errorf("%.80s: rang %q, want %q", params, got, want)
		}
	}
}

// Without OnEnded, and without sessions, webhooks are ignored.
func TestEndedOff(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	t.Cleanup(h.close)
	if c := begin(t, h.open(""), false, hookedRequest(1)); c.record != nil {
		t.Error("the call keeps a webhook")
	}
	_, _, s, _ := belled(t, Options{Shared: Shared{Stateless: true}})
	if c := begin(t, s, false, hookedRequest(1)); c.record != nil {
		t.Error("a stateless call keeps a webhook")
	}
}

// Whichever comes first, the end of a connection or that of a call: the
// response is written, or the webhook is called once.
func TestEndedRaces(t *testing.T) {
	t.Parallel()
	_, b, s, desk := belled(t, Options{})
	for i := range 500 { // a new request each time: an equal request would be attached to the first
		c := begin(t, s, false, hookedRequest(i+1))
		ready := make(chan struct{}, 1)
		r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() { desk.say(c, response(i+1)) })
		told := false
		both.Go(func() {
			for range i % 4 {
				entries, err := r.Next(t.Context(), make([]stream.Entry, 0, 4))
				if err != nil {
					t.Error(err)
					break
				}
				if len(entries) > 0 {
					r.Delivered()
					told = true
					break
				}
			}
			r.Detach(!told, true, false)
		})
		both.Wait()
		if got := b.rang(); (got == "") != told || strings.Contains(got, ",") {
			t.Fatalf("told: %v, rang %q", told, got)
		}
	}
	if !s.untold.IsIdle() {
		t.Error("calls are still hooked")
	}
}
