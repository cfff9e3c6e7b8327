package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// Some servers spell an id differently in their answers. The client gets its own spelling.
func TestIDSpelling(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	for _, spell := range [][2]string{{`"a/b"`, `"a\/b"`}, {`"é"`, `"\u00e9"`}} {
		c := begin(t, s, true, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping","params":{"_meta":{"progressToken":%[1]s}}}`, spell[0]))
		again := []jsonrpc.Message{mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, spell[1]))}
		if _, err := s.Begin(again, true); !errors.Is(err, ErrDuplicate) {
			t.Errorf("id %s beside %s: %v", spell[1], spell[0], err)
		}
		s.mu.Lock()
		if s.callByToken([]byte(spell[1])) != c {
			t.Errorf("progress for %s does not belong to %s", spell[1], spell[0])
		}
		s.mu.Unlock()
		h.desk.last().say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, spell[1]))
		answers, done := c.Wait(t.Context(), time.Second)
		if !done || len(answers) != 1 || !strings.Contains(string(answers[0]), `"id":`+spell[0]) {
			t.Errorf("id %s answered as %s: %q", spell[0], spell[1], answers)
		}
	}
}

// A client can cancel a request until the very moment at which it is put on record. A request
// cancelled before that does not begin.
func TestCancelledInTurn(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	ctx, over := s.AwaitTurn(t.Context(), []byte("5"))
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`), nil); err != nil {
		t.Error(err)
	}
	if !errors.Is(context.Cause(ctx), ErrCancelled) {
		t.Errorf("it waits: %v", context.Cause(ctx))
	}
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(5))}, true); !errors.Is(err, ErrCancelled) {
		t.Errorf("it begins: %v", err)
	}
	over()
	begin(t, s, true, request(5))
	if in := <-h.desk.last().in; in.Kind != jsonrpc.Request { // the backend gets no cancellation of a request that it did not get
		t.Errorf("%s arrived", in.Raw)
	}
}

// A batch may hold answers and notifications beside requests.
func TestMixedBatch(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	c := begin(t, s, false, request(5))
	<-h.desk.last().in
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":"mine","method":"elicitation/create","params":{}}`)
	begin(t, s, true, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`, request(6))
	if in := <-h.desk.last().in; string(in.ID) != `"mine"` {
		t.Errorf("the answer arrived as %s", in.Raw)
	}
	begin(t, s, true, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`, request(7))
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.IsOver() {
		t.Error("a call that was cancelled in a batch goes on")
	}
}

// Holdfast's own requests have ids that no client can use, not even a client that is another Holdfast.
func TestOwnIDs(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	seen := map[string]bool{}
	for range 3 {
		s := h.open("")
		id := string(s.backend.own.ids.Next())
		if seen[id] || len(id) != 13 {
			t.Errorf("%s again, or too short", id)
		}
		seen[id] = true
	}
}

// A late response to a cancelled request does not answer the next request with the same id.
func TestLateResponse(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	first := begin(t, s, true, request(5))
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`), nil); err != nil {
		t.Fatal(err)
	}
	second := begin(t, s, true, request(5))
	h.desk.last().say(first, `{"jsonrpc":"2.0","id":5,"result":{"of":"first"}}`)
	h.desk.last().say(second, `{"jsonrpc":"2.0","id":5,"result":{"of":"second"}}`)
	if answers, _ := second.Wait(t.Context(), time.Second); len(answers) != 1 || !strings.Contains(string(answers[0]), "second") {
		t.Errorf("got %q", answers)
	}
}

// When the backend does not take an answer, its sender gets an error, and can send the answer again.
func TestAnswerRefused(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	var full atomic.Bool
	h.desk.refuses = func(backend.Inbound) error {
		if full.Load() {
			return errors.New("queue is full")
		}
		return nil
	}
	s := h.open("")
	c := begin(t, s, false, request(5))
	<-h.desk.last().in
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":"mine","method":"elicitation/create","params":{}}`)
	full.Store(true)
	answer := mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	if err := s.Send(t.Context(), answer, nil); !errors.Is(err, ErrNotDelivered) {
		t.Errorf("refused with %v", err)
	}
	full.Store(false)
	if err := s.Send(t.Context(), answer, nil); err != nil {
		t.Error(err)
	}
	if in := <-h.desk.last().in; string(in.ID) != `"mine"` {
		t.Errorf("got %s", in.Raw)
	}
}

// A backend's request outside of any call goes out on the stream of some call. It can be answered after that call is over.
func TestAskedInSomeCall(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	link := h.desk.last()
	calls := []*Call{begin(t, s, false, request(5)), begin(t, s, false, request(6))}
	for range calls {
		<-link.in
	}
	link.say(nil, `{"jsonrpc":"2.0","id":"mine","method":"elicitation/create","params":{}}`)
	for i, c := range calls {
		link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, 5+i))
	}
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`), nil); err != nil {
		t.Error(err)
	}
	if in := <-link.in; string(in.ID) != `"mine"` || in.Error != nil {
		t.Errorf("got %s", in.Raw)
	}
}

// When a call ends, its requests to the client are forgotten, and the server gets an error for each.
// The number of the server's other requests is bounded.
func TestAskedBounded(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	link := h.desk.last()
	for i := range 10 {
		c := begin(t, s, false, request(i))
		<-link.in
		link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create"}`, i))
		link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
		if in := <-link.in; in.Error == nil || string(in.ID) != fmt.Sprintf(`"q%d"`, i) { // without the error the server would wait for ever
			t.Errorf("got %s", in.Raw)
		}
	}
	asked := func() int {
		s.asked.mu.Lock()
		defer s.asked.mu.Unlock()
		return len(s.asked.pending)
	}
	if n := asked(); n > 0 {
		t.Errorf("%d requests of ended calls are on record", n)
	}
	for i := range mostServerRequests + 1 {
		link.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":"r%d","method":"roots/list"}`, i))
	}
	if in := <-link.in; in.Error == nil || string(in.ID) != fmt.Sprintf(`"r%d"`, mostServerRequests) {
		t.Errorf("got %s", in.Raw)
	}
	if n := asked(); n != mostServerRequests {
		t.Errorf("%d requests are on record", n)
	}
}

// A call of a 2024-11-05 session has no stream of its own to be disconnected from.
func TestSingleDisconnect(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s, err := h.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := begin(t, s, true, request(1))
	c.Disconnect(-1)
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	if !s.streams.IsUnused() {
		t.Error("a stream is used")
	}
}

// A request that was never handed over when its backend died goes to the next
// backend. A request that was handed over ends with "outcome unknown".
func TestDiedBefore(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	sent := begin(t, s, true, request(1))
	msgs := []jsonrpc.Message{mcptest.Parse(request(2))}
	waits, err := s.Begin(msgs, true)
	if err != nil {
		t.Fatal(err)
	}
	h.desk.last().sink.Closed(errors.New("died"), true)
	waits.Deliver(t.Context(), msgs, nil)
	h.desk.last().say(waits, `{"jsonrpc":"2.0","id":2,"result":{"ran":"once"}}`)
	for c, want := range map[*Call]string{sent: "outcome unknown", waits: "once"} {
		if answers, _ := c.Wait(t.Context(), time.Second); len(answers) != 1 || !strings.Contains(string(answers[0]), want) {
			t.Errorf("got %q, want %s", answers, want)
		}
	}
}

// A request that is cancelled while the backend is opened again never runs.
func TestCancelDuringReopen(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	opening, gate := make(chan struct{}), make(chan struct{})
	h.desk.slow = func() { close(opening); <-gate }
	h.desk.last().sink.Closed(errors.New("died"), true)
	var wg sync.WaitGroup
	for i := range 2 {
		msgs := []jsonrpc.Message{mcptest.Parse(request(i))}
		c, err := s.Begin(msgs, true)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { c.Deliver(context.Background(), msgs, nil) })
	}
	<-opening
	wg.Go(func() {
		_ = s.Send(context.Background(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), nil)
	})
	mcptest.Eventually(t, "the cancellation", time.Minute, func() bool {
		return s.requests.len() == 1
	})
	close(gate)
	wg.Wait()
	for len(h.desk.last().in) > 0 {
		if in := <-h.desk.last().in; string(in.ID) == "1" {
			t.Error("it was run")
		}
	}
}

// A conversation is closed once, whatever ended it.
func TestClosedOnce(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	s := h.open("")
	h.desk.mute = true // a second conversation dies as it is initialized
	h.desk.refuses = func(in backend.Inbound) error {
		if in.Method == "initialize" {
			go h.desk.last().sink.Closed(errors.New("died at once"), true)
		}
		return nil
	}
	h.desk.last().sink.Closed(errors.New("died"), true)
	begin(t, s, false, request(1)) // opens the backend again, in vain
	h.close()
	for _, link := range h.desk.links {
		<-link.closed // a second Close would panic
	}
	if len(h.desk.links) < 2 {
		t.Errorf("%d conversations", len(h.desk.links))
	}
}

// Close may be called concurrently, and while sessions begin.
func TestConcurrentClose(t *testing.T) {
	for range 50 {
		h := newHouse(t, Options{}, nil)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if s, err := h.New(newRequest(), caller.Principal{}, false, nil); err == nil {
					h.End(s)
				}
			})
			wg.Go(h.Close)
		}
		wg.Wait()
		h.close()
	}
}

// A list of tools is not kept if the list has changed meanwhile. It is kept if the
// client of the call that needed it has left.
func TestHintsOutdated(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	h.desk.asked = make(chan backend.Inbound, 1)
	s := h.open("")
	m := mcptest.Parse(request(1))
	ctx, leave := context.WithCancel(t.Context())
	light := make(chan bool)
	look := func() { light <- s.Tools.Light(ctx, &m, nil) }
	answer := func(in backend.Inbound) {
		h.desk.last().say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","annotations":{"readOnlyHint":true}}]}}`, in.ID))
	}

	go look()
	in := <-h.desk.asked
	h.desk.last().say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	answer(in)
	if <-light {
		t.Error("an outdated list is believed")
	}
	go look()
	in = <-h.desk.asked
	leave()
	<-light
	answer(in)
	ctx = t.Context()
	mcptest.Eventually(t, "the list to be believed", time.Minute, func() bool {
		go look()
		return <-light
	})
}

// The session learns the tools from a list that a client asked for. If that list is whole, and has not
// changed since, the backend is not asked for another.
func TestToolsListedByClient(t *testing.T) {
	t.Parallel()
	const tools = `"tools":[{"name":"x","annotations":{"readOnlyHint":true}},{"name":"y"}]`
	for _, test := range []struct {
		name, params, result string
		changed, whole       bool
	}{
		{name: "all", result: `{` + tools + `}`, whole: true},
		{name: "none", result: `{"tools":[]}`, whole: true},
		{name: "a first page", result: `{` + tools + `,"nextCursor":"2"}`},
		{name: "a last page", params: `,"params":{"cursor":"2"}`, result: `{` + tools + `}`},
		{name: "changed meanwhile", result: `{` + tools + `}`, changed: true},
		{name: "no list", result: `{"tools":7}`},
		{name: "nothing", result: `{}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Options{}, nil)
			defer h.close()
			h.desk.asked = make(chan backend.Inbound, 1)
			s := h.open("")
			c := begin(t, s, true, `{"jsonrpc":"2.0","id":1,"method":"tools/list"`+test.params+`}`)
			in := <-h.desk.asked
			if test.changed {
				h.desk.last().say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			}
			h.desk.last().say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, test.result))
			if _, done := c.Wait(t.Context(), 0); !done {
				t.Fatal("not answered")
			}
			unknown := mcptest.Parse(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"y"}}`)
			if s.Tools.Light(t.Context(), &unknown, nil) {
				t.Error("a tool that says nothing is called safe")
			}
			if !test.whole {
				<-h.desk.asked // the backend is asked for all its tools
			} else if len(h.desk.asked) > 0 {
				t.Error("the backend is asked for its tools again")
			}
		})
	}
}

// Tools on later pages are known, whatever a server's cursors look like. The reading of a list without an end ends.
func TestToolsOnPages(t *testing.T) {
	t.Parallel()
	for name, cursors := range map[string][]string{
		"text": {`"a"`}, "numbers": {`1`, `2`}, "an empty one": {`""`}, "a circle": {`"a"`, `"b"`, `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Options{}, nil)
			defer h.close()
			h.desk.asked = make(chan backend.Inbound, 1)
			s := h.open("")
			call := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t%d"}}`, len(cursors)))
			go s.Tools.Light(t.Context(), &call, nil) // makes the session read the list
			for i := range len(cursors) + 1 {
				next := ""
				if i < len(cursors) {
					next = `,"nextCursor":` + cursors[i]
				} else if name == "a circle" {
					break
				}
				in := <-h.desk.asked
				if got := string(jsonrpc.Field(in.Params, "cursor")); i > 0 && got != cursors[i-1] {
					t.Errorf("page %d is asked for by %s", i+1, got)
				}
				h.desk.last().say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t%d","annotations":{"readOnlyHint":true}}]%s}}`, in.ID, i, next))
			}
			last := call
			if name == "a circle" {
				last = mcptest.Parse(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t2"}}`)
			}
			mcptest.Eventually(t, "the tool to be known", time.Minute, func() bool { return s.Tools.Light(t.Context(), &last, nil) })
		})
	}
}

// A server that is opened again is closed if it does not take notifications/initialized: it would refuse all later requests.
func TestReopenNotInitialized(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	if err := s.Send(t.Context(), initialized, nil); err != nil {
		t.Fatal(err)
	}
	h.desk.last().sink.Closed(errors.New("died"), true)
	h.desk.refuses = func(in backend.Inbound) error {
		if in.Method == initialized.Method {
			return errors.New("not now")
		}
		return nil
	}
	c := begin(t, s, false, request(1))
	if said := readAll(t, s, c.Number()); len(said) != 1 || !strings.Contains(said[0], "server did not start again: not now") {
		t.Errorf("the call has said %q", said)
	}
	<-h.desk.last().closed
	h.desk.refuses = nil
	begin(t, s, false, request(2))
	for _, want := range []string{initialized.Method, "tools/call"} {
		if in := <-h.desk.last().in; in.Method != want {
			t.Errorf("the server got %s, want %s", in.Method, want)
		}
	}
}

// A server that names no call, as over stdio, asks for the roots beside a call: the end of that call does not answer the question.
func TestRootsBesideCall(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		h := newHouse(t, Options{}, nil)
		s, err := h.New(newRequest(), caller.Principal{}, single, nil)
		if err != nil {
			t.Fatal(err)
		}
		begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"roots":{}}}}`)
		begin(t, s, single, request(1))
		link := h.desk.last()
		<-link.in
		link.say(nil, `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		link.say(nil, response(1))
		if n := s.asked.len(); n != 1 {
			t.Errorf("single %v: %d questions wait", single, n)
		}
		h.close()
	}
}

// A server does not wait for the answer to a question of a call that is over, in a session of 2024-11-05, too.
func TestQuestionOfCallThatIsOver(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		h := newHouse(t, Options{}, nil)
		s, err := h.New(newRequest(), caller.Principal{}, single, nil)
		if err != nil {
			t.Fatal(err)
		}
		begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"sampling":{}}}}`)
		c := begin(t, s, single, request(1))
		link := h.desk.last()
		<-link.in
		link.say(c, `{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}`)
		if n := s.asked.len(); n != 1 {
			t.Fatalf("single %v: %d questions wait", single, n)
		}
		link.say(c, response(1))
		if n := s.asked.len(); n != 0 {
			t.Errorf("single %v: %d questions wait after the end of the call", single, n)
		} else if in := <-link.in; string(in.ID) != `"q"` || in.Error == nil {
			t.Errorf("single %v: the server got %s", single, in.Raw)
		}
		h.close()
	}
}
