package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/resume"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// gone reports whether a call was cancelled because its client was away, and
// checks that its backend got the cancellation.
func gone(t *testing.T, link *deskConn, c *Call) bool {
	t.Helper()
	if !c.IsOver() {
		if len(link.in) > 0 {
			t.Fatalf("the backend was told %s", (<-link.in).Raw)
		}
		return false
	}
	said := readAll(t, c.s, c.number)
	for _, text := range said[:c.resume().Len()] {
		id := policyIn(t, text).RequestID
		if q, err := c.s.Resumes().Status(c.number, id); err != nil || q.Status != resume.Failed {
			t.Errorf("request %s is %s: %v", id, q.Status, err)
		}
		in := <-link.in
		if in.Method != "notifications/cancelled" || string(jsonrpc.Field(in.Params, "requestId")) != string(id) || in.Context == nil {
			t.Errorf("the backend was told %s", in.Raw)
		}
		if m := mcptest.Parse(string(in.Raw)); string(m.Params) != string(in.Params) {
			t.Errorf("the message says %s, its params %s", m.Raw, in.Params)
		}
	}
	last := said[len(said)-1]
	if m := mcptest.Parse(last); string(jsonrpc.Field(m.Error, "code")) != "-32000" ||
		!strings.HasPrefix(jsonrpc.String(jsonrpc.Field(m.Error, "message")), "cancelled: its client was away for longer than maxWait (1m0s)") {
		t.Errorf("the call ended with %s", last)
	}
	return true
}

func TestAwayForTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{MaxWait: time.Minute}, nil)
		defer h.close()
		s := h.able("")
		link := h.desk.last()
		start := func(ids ...int) *Call {
			var texts []string
			for _, id := range ids {
				texts = append(texts, request(id))
			}
			c := begin(t, s, false, texts...)
			for range ids {
				<-link.in
			}
			return c
		}
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}

		never := start(1)
		wait(59 * time.Second)
		if gone(t, link, never) {
			t.Error("cancelled too early")
		}
		wait(2 * time.Second)
		if !gone(t, link, never) {
			t.Error("nobody came, and it goes on")
		}
		link.say(never, response(1)) // too late

		both := start(2, 3)
		link.say(both, response(2))
		wait(61 * time.Second)
		if first, err := s.Resumes().Status(both.number, []byte("2")); !both.IsOver() || err != nil || first.Status != resume.Completed {
			t.Error("what was answered is", first, err)
		}
		<-link.in

		// A call goes on as long as a client reads it, and for as long again after the reader has left.
		read := start(4)
		r, err := s.Read(t.Context(), read.Number(), 0, 0, make(chan struct{}, 1))
		if err != nil {
			t.Fatal(err)
		}
		wait(10*time.Minute + 30*time.Second)
		r.Detach(true, true, false)
		wait(59 * time.Second)
		if gone(t, link, read) {
			t.Error("cancelled though its client was there just now")
		}
		token := tokenFor(s, read.Number(), []byte("4"))
		for range 5 {
			if _, _, err := h.resumes.Find(token, []byte("4"), caller.Principal{}); err != nil { // as for getStatus
				t.Fatal(err)
			}
			wait(59 * time.Second)
			if gone(t, link, read) {
				t.Fatal("cancelled though its client asked for it")
			}
		}
		h.resumes.All(caller.Principal{}, s, Range{})
		wait(59 * time.Second)
		if gone(t, link, read) {
			t.Error("cancelled though its client asked for all")
		}
		wait(2 * time.Second)
		if !gone(t, link, read) {
			t.Error("its client is away, and it goes on")
		}

		ended := start(5)
		link.say(ended, response(5))
		wait(2 * time.Minute)
		if five, err := s.Resumes().Status(ended.number, []byte("5")); len(link.in) > 0 || err != nil || five.Status != resume.Completed {
			t.Error("an ended call was cancelled", five, err)
		}
		// The backend gets no cancellation of a call that it never got.
		c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(6))}, false)
		if err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Minute)
		if !c.IsOver() || len(link.in) > 0 || h.Calls() != 0 {
			t.Errorf("%d calls in flight, %d messages", h.Calls(), len(link.in))
		}
		// Clients that got no resume policy may stay away.
		plain := h.open("")
		kept := begin(t, plain, false, request(7))
		wait(3 * time.Hour)
		if kept.IsOver() {
			t.Error("a call of a client without the capability was cancelled")
		}
	})
}

func TestAwayForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{MaxWait: -1}, nil)
		defer h.close()
		c := begin(t, h.able(""), false, request(1))
		if p := policyIn(t, readSome(t, c.s, c.number, 1)[0]); p.MaxWait != 0 || p.MinWait != 0 {
			t.Errorf("the policy is %+v", p)
		}
		time.Sleep(20 * time.Hour)
		synctest.Wait()
		if c.IsOver() {
			t.Error("cancelled")
		}
	})
}

// The policy promises no more time than the store keeps a call.
func TestPromise(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ maxWait, ttl, keep, want time.Duration }{
		{0, 0, 0, 30 * time.Minute},
		{0, 3 * time.Hour, 0, time.Hour},
		{0, 3 * time.Hour, 10 * time.Minute, 10 * time.Minute},
		{time.Second, 0, 10 * time.Minute, time.Second},
		{-1, 0, 10 * time.Minute, 0},
	} {
		h := newHouse(t, Options{MaxWait: test.maxWait, TTL: test.ttl, Keep: test.keep}, nil)
		c := begin(t, h.able(""), false, request(1))
		if p := policyIn(t, readSome(t, c.s, c.number, 1)[0]); p.MaxWait != test.want.Seconds() {
			t.Errorf("%v: %v", test, p.MaxWait)
		}
		h.close()
	}
}

// TestAnswerElsewhere answers a backend's request from other sessions than the one in which it was made.
func TestAnswerElsewhere(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("alice")
	link := h.desk.last()
	other, plain, bob := h.able("alice"), h.open("alice"), h.able("bob")
	c := begin(t, s, false, request(1))
	<-link.in
	asks := 0
	ask := func() []byte {
		asks++
		link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{}}`, asks))
		m := mcptest.Parse(readSome(t, s, c.Number(), asks+1)[asks])
		if m.ID[0] != '"' || len(jsonrpc.String(m.ID)) < 32 {
			t.Fatalf("the client is asked under %s", m.ID)
		}
		return m.ID
	}
	reply := func(id []byte, n int) jsonrpc.Message {
		return mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"n":%d}}`, id, n))
	}
	heard := func(n int) {
		t.Helper()
		in := <-link.in
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","result":{"n":%d}}`, asks, n); string(in.Raw) != want {
			t.Errorf("the backend got %s, want %s", in.Raw, want)
		}
	}

	id := ask()
	header := http.Header{"X": {"y"}}
	if taken, err := h.Answer(t.Context(), caller.At("", "alice"), reply(id, 1), header); !taken || err != nil {
		t.Error(taken, err)
	}
	heard(1)
	if taken, err := h.Answer(t.Context(), caller.At("", "alice"), reply(id, 1), header); !taken || err != nil { // a second time
		t.Error(taken, err)
	}
	for n, from := range []*Session{s, other, plain} {
		if err := from.Send(t.Context(), reply(ask(), n), nil); err != nil {
			t.Error(err)
		}
		heard(n)
	}

	id = ask()
	text := jsonrpc.String(id)
	forged := text[:20] + string(text[20]^1) + text[21:]
	for what, bad := range map[string][]byte{
		"another number": jsonrpc.Quote(text[:len(text)-1] + "0"), "forged": jsonrpc.Quote(forged), "a number": []byte("5"),
		"the number alone": []byte(fmt.Sprint(asks)), "quoted": []byte(`"5"`), "another session": jsonrpc.Quote(other.Name() + text[16:]),
		"a token": jsonrpc.Quote(tokenFor(s, uint64(asks), nil)), "empty": []byte(`""`),
	} {
		if taken, err := h.Answer(t.Context(), caller.At("", "alice"), reply(bad, 9), nil); taken || err != nil {
			t.Errorf("%s: %v, %v", what, taken, err)
		}
		if err := s.Send(t.Context(), reply(bad, 9), nil); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for who, from := range map[string]*Session{"bob": bob, "": h.able("")} {
		if taken, _ := h.Answer(t.Context(), caller.At("", who), reply(id, 9), nil); taken {
			t.Errorf("%q answered", who)
		}
		if err := from.Send(t.Context(), reply(id, 9), nil); err != nil {
			t.Error(err)
		}
	}
	if len(link.in) > 0 {
		t.Fatalf("the backend got %s", (<-link.in).Raw)
	}
	// The backend does not wait any more. The cancellation names the request by the id that the client knows.
	link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q%d","reason":"r"}}`, asks))
	m := mcptest.Parse(readSome(t, s, c.Number(), asks+2)[asks+1])
	if string(jsonrpc.Field(m.Params, "requestId")) != string(id) || string(jsonrpc.Field(m.Params, "reason")) != `"r"` {
		t.Errorf("the client is told %s", m.Raw)
	}
}

// TestCancelElsewhere cancels calls by their tokens.
func TestCancelElsewhere(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("alice")
	link := h.desk.last()
	other, bob := h.able("alice"), h.able("bob")
	cancel := func(id int, token string) jsonrpc.Message {
		return mcptest.Parse(fmt.Sprintf(
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":"enough","_meta":{"holdfast/resumeToken":%q}}}`, id, token))
	}
	old := begin(t, s, false, request(1))
	<-link.in
	link.say(old, response(1))
	oldToken := tokenOf(t, old)
	c := begin(t, s, false, request(1))
	token := tokenOf(t, c)
	<-link.in
	ofOther := begin(t, other, false, request(1))
	ofBob := begin(t, bob, false, request(1))

	for what, m := range map[string]jsonrpc.Message{
		"an old token": cancel(1, oldToken), "another id": cancel(2, token), "forged": cancel(1, token[:len(token)-1]),
	} {
		if taken, err := h.resumes.Cancel(caller.At("", "alice"), &m, nil); !taken || err != nil {
			t.Errorf("%s: not taken", what)
		}
		if err := s.Send(t.Context(), m, nil); err != nil {
			t.Error(err)
		}
	}
	if err := bob.Send(t.Context(), cancel(1, token), nil); err != nil {
		t.Error(err)
	}
	m := mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if taken, _ := h.resumes.Cancel(caller.At("", "alice"), &m, nil); taken {
		t.Error("a cancellation without a token was taken")
	}
	if len(link.in) > 0 || c.IsOver() || ofBob.IsOver() {
		t.Fatal("a call was cancelled with another's token")
	}
	if err := other.Send(t.Context(), cancel(1, token), nil); err != nil {
		t.Error(err)
	}
	in := <-link.in
	if want := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`; string(in.Raw) != want {
		t.Errorf("the backend got %s, want %s", in.Raw, want)
	}
	if !c.IsOver() || ofOther.IsOver() {
		t.Errorf("over: %v, and the other's %v", c.IsOver(), ofOther.IsOver())
	}
}

// A request that is cancelled while its server is being opened never gets to the server, and neither does the cancellation.
func TestCancelBeforeOpen(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	h.desk.last().sink.Closed(errors.New("died"), true)
	opens, open := make(chan struct{}), make(chan struct{})
	h.desk.slow = func() { close(opens); <-open }
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		begin(t, s, false, request(1))
	}()
	<-opens
	cancelled := make(chan error, 1)
	go func() {
		cancelled <- s.Send(context.Background(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), nil)
	}()
	mcptest.Eventually(t, "the request to be cancelled", time.Minute, func() bool { return s.CallFrom("", []byte("1")) == nil })
	close(open)
	<-delivered
	if err := <-cancelled; err != nil {
		t.Error(err)
	}
	h.desk.slow = nil
	begin(t, s, false, request(2))
	if in := <-h.desk.last().in; in.Method != "tools/call" || string(in.ID) != "2" {
		t.Errorf("the server got %s", in.Raw)
	}
}
