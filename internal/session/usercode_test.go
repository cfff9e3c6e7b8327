package session

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/panics"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// panicAt makes Open panic, or the delivery of initialize, or neither.
func (d *desk) panicAt(what string) {
	d.openPanics.Store(what == "open")
	d.deliverPanics.Store(nil)
	if method := "initialize"; what == "deliver" {
		d.deliverPanics.Store(&method)
	}
}

// internalError checks that a call was answered with the error that a panic leads to.
func internalError(t *testing.T, what string, answers [][]byte) {
	t.Helper()
	if len(answers) != 1 || jsonrpc.Field(answers[0], "error", "code") == nil ||
		string(jsonrpc.Field(answers[0], "error", "code")) != "-32603" || strings.Contains(string(answers[0]), "hunter2") {
		t.Errorf("%s: got %q", what, answers)
	}
}

// next reads one entry of a stream, as a connection does.
func next(t *testing.T, r *reading.Reader) string {
	t.Helper()
	var got []stream.Entry
	mcptest.Eventually(t, "the next entry", time.Minute, func() bool {
		var err error
		if got, err = r.Next(t.Context(), make([]stream.Entry, 0, 1)); err != nil {
			t.Fatalf("Next: %v", err)
		}
		return len(got) > 0
	})
	r.Delivered()
	return string(got[0].Data)
}

func answersOf(t *testing.T, c *Call) [][]byte {
	t.Helper()
	answers, done := c.Wait(t.Context(), 0)
	if !done {
		t.Fatalf("stored, as %d", c.Number())
	}
	return answers
}

// When the backend panics, the call that it concerns fails. The session goes on, and nothing is left behind.
func TestBackendPanics(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	h.desk.openPanics.Store(true)
	var p *panics.Error
	if s, err := h.New(newRequest(), caller.Principal{}, false, nil); !errors.As(err, &p) || s != nil {
		t.Fatalf("New: %v", err)
	}
	h.desk.openPanics.Store(false)
	s := h.open("")
	for _, method := range []string{"tools/call", "ping"} {
		h.desk.deliverPanics.Store(&method)
		internalError(t, method, answersOf(t, begin(t, s, true, strings.Replace(request(1), "tools/call", method, 1))))
		h.desk.deliverPanics.Store(nil)
	}
	notice := "notifications/progress"
	h.desk.deliverPanics.Store(&notice)
	if err := s.Send(t.Context(), jsonrpc.Message{Kind: jsonrpc.Notification, Method: notice}, http.Header{}); err != nil {
		t.Errorf("a notification: %v", err)
	}
	// A call that waits for an answer gets an error when the delivery of the answer panics.
	h.desk.deliverPanics.Store(nil)
	c := begin(t, s, false, request(2))
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`)
	r := attach(t, s, c.Number())
	got := next(t, r)
	answer := ""
	h.desk.deliverPanics.Store(&answer) // responses have no method
	id := mcptest.Parse(got).ID
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","id":`+string(id)+`,"result":{}}`), http.Header{}); err != nil {
		t.Errorf("an answer: %v", err)
	}
	internalError(t, "an answer", [][]byte{[]byte(next(t, r))})
	r.Detach(false, true, false)
	h.desk.deliverPanics.Store(nil)
	// The backend ends, and then cannot be opened again, or initialized.
	for _, what := range []string{"open", "deliver"} {
		h.desk.last().sink.Closed(errors.New("it ended"), true)
		h.desk.panicAt(what)
		internalError(t, what, answersOf(t, begin(t, s, true, request(3))))
		internalError(t, what, answersOf(t, begin(t, s, true, request(4))))
		h.desk.panicAt("")
		c := begin(t, s, true, request(5))
		h.desk.last().say(c, response(5))
		if answers := answersOf(t, c); len(answers) != 1 || !strings.Contains(string(answers[0]), "result") {
			t.Errorf("after %s: %q", what, answers)
		}
	}
	if h.Calls() != 0 || s.use.calls.Load() != 0 {
		t.Errorf("%d calls, %d in the session", h.Calls(), s.use.calls.Load())
	}
	h.desk.closePanics.Store(true)
	h.close()
}

// The list of tools is read on a goroutine of the session.
func TestListingPanics(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	method := "tools/list"
	h.desk.deliverPanics.Store(&method)
	m := mcptest.Parse(request(1))
	if s.Tools.Light(t.Context(), &m, nil) {
		t.Error("light")
	}
	h.desk.deliverPanics.Store(nil)
	h.desk.tools = `{"name":"x","annotations":{"readOnlyHint":true}}`
	mcptest.Eventually(t, "the tools to be read again", time.Minute, func() bool { return s.Tools.Light(t.Context(), &m, nil) })
}

// A session is refused when its backend returns neither a connection nor an error.
func TestNoConn(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	h.backend = nothing{}
	if _, err := h.New(newRequest(), caller.Principal{}, false, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("New: %v", err)
	}
}

type nothing struct{}

func (nothing) Open(context.Context, backend.Start, backend.Sink) (backend.Conn, error) {
	return nil, nil
}

// A session is taken over, and its backend panics then: its calls fail at
// whichever node they run, and no other node is lost.
func TestTakeOverPanics(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"open", "deliver"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
			s := a.open("alice")
			c, lost := begin(t, s, false, safeRequest(1)), begin(t, s, false, request(2))
			other := a.open("bob")
			wait := begin(t, other, false, safeRequest(1))
			a.kill()
			b.desk.panicAt(what)
			taken := b.take(s)
			wantTexts(t, "run again", readAll(t, taken, c.Number()), `-32010,"message":"outcome unknown: `)
			wantTexts(t, "lost", readAll(t, taken, lost.Number()), lostWith)
			mcptest.Eventually(t, "the calls to end", time.Minute, func() bool { return b.Calls() == 0 && taken.use.calls.Load() == 0 })
			b.desk.panicAt("")
			again := b.take(other)
			var link *deskConn
			mcptest.Eventually(t, "the other's backend", time.Minute, func() bool {
				b.desk.mu.Lock()
				defer b.desk.mu.Unlock()
				for _, link = range b.desk.links {
					if link.start.Session == other.Name() {
						return true
					}
				}
				return false
			})
			link.say(link.next(t, "tools/call").Call, response(1))
			wantTexts(t, "another's", readAll(t, again, wait.Number()), `"result"`)
			ping := begin(t, taken, true, `{"jsonrpc":"2.0","id":3,"method":"ping"}`)
			b.desk.last().say(b.desk.last().next(t, "ping").Call, `{"jsonrpc":"2.0","id":3,"result":{}}`)
			if answers, done := ping.Wait(t.Context(), 0); !done || len(answers) != 1 {
				t.Errorf("later: %q", answers)
			}
		})
	}
}

// OnEnded may panic on the goroutine that ends a call.
func TestEndedPanics(t *testing.T) {
	t.Parallel()
	told := make(chan struct{}, 10)
	h := newHouse(t, Options{OnEnded: func(webhook.Ended) bool {
		told <- struct{}{}
		panic("hunter2")
	}}, nil)
	defer h.close()
	s := h.open("")
	for id := range 2 {
		text := strings.Replace(request(id+1), `"name"`, `"_meta":{"holdfast/webhook":{"url":"https://a.example"}},"name"`, 1)
		c := begin(t, s, false, text)
		attach(t, s, c.Number()).Detach(false, true, false)
		h.desk.last().say(c, response(id+1))
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatal("not told")
		}
		if got := readAll(t, s, c.Number()); len(got) != 1 {
			t.Errorf("read %q", got)
		}
	}
}

// A message from the backend that is malformed, or incomplete, does not block
// the session, break a transport, or leave a call without an answer.
func TestGarbage(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	s, other := h.open(""), h.open("")
	foreign := begin(t, other, false, request(1))
	link := h.desk.links[0]
	for _, m := range []jsonrpc.Message{
		{},
		{Kind: jsonrpc.Kind(77), Raw: []byte("x")},
		{Kind: jsonrpc.Response},
		{Kind: jsonrpc.Response, Raw: []byte("null")},
		{Kind: jsonrpc.Request, Method: "ping"},
		{Kind: jsonrpc.Request, ID: []byte("[")},
		{Kind: jsonrpc.Notification},
		{Kind: jsonrpc.Notification, Method: "notifications/x", Params: []byte("\n]")},
		{Kind: jsonrpc.Notification, Raw: []byte("\n\ndata: x\n\n")},
	} {
		c := begin(t, s, false, request(1))
		link.sink.Emit(nil, m)
		link.sink.Emit(c, m)
		link.sink.Emit(foreign, m)
		link.sink.Emit(madeUpCall{}, m)
		link.sink.EmitUnrelated(m)
		link.say(c, response(1))
		all := readAll(t, s, c.Number())
		for _, text := range all {
			mcptest.Parse(text)
		}
		if all[len(all)-1] != response(1) || strings.ContainsAny(strings.Join(all, ""), "\r\n") {
			t.Errorf("after %+v: %q", m, all)
		}
	}
	link.say(foreign, response(1))
	link.say(foreign, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
	if n := foreign.said; n != 0 {
		t.Errorf("%d messages in another session's call", n)
	}
	link.say(madeUpCall{}, `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
	if n := s.standalone.said; n != 0 {
		t.Errorf("%d messages of a call that the backend made up", n)
	}
	for what, m := range map[string]jsonrpc.Message{
		`"result":{"a": 1}`: {Kind: jsonrpc.Response, Raw: []byte("{\"jsonrpc\":\"2.0\",\"id\":1,\n\"result\":{\"a\":\n1}}")},
		`"result":{}`:       {Kind: jsonrpc.Response},
		`-32603`:            {Kind: jsonrpc.Response, Result: []byte("{]")},
		`"code":-32603,`:    {Kind: jsonrpc.Response, Raw: []byte("{\n")},
	} {
		m.ID = []byte("1")
		c := begin(t, s, true, request(1))
		link.sink.Emit(c, m)
		if answers := answersOf(t, c); len(answers) != 1 || !strings.Contains(string(answers[0]), what) || strings.Contains(string(answers[0]), "\n") {
			t.Errorf("%s: got %q", what, answers)
		}
	}
	h.close()
	link.say(nil, `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`) // after Close
	link.sink.EmitUnrelated(mcptest.Parse(progressed))
	link.sink.Closed(errors.New("again"), true)
}

// madeUpCall is a call that Holdfast did not make.
type madeUpCall struct{}

func (madeUpCall) Disconnect(time.Duration) {}

// A backend may speak, end, and call the session from within each of its methods.
func TestReentrant(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	h.backend = reentrant{}
	s := mcptest.Must(h.New(newRequest(), caller.Principal{}, false, nil))(t)
	for _, light := range []bool{true, false} {
		c := begin(t, s, light, request(1))
		if n := c.Number(); n != 0 {
			wantTexts(t, "stored", readAll(t, s, n), `"method":"roots/list"`, `"result"`)
		} else if answers := answersOf(t, c); len(answers) != 1 {
			t.Errorf("light: %q", answers)
		}
	}
	internal := begin(t, s, true, strings.Replace(request(2), "tools/call", "end", 1))
	if answers := answersOf(t, internal); len(answers) != 1 || !strings.Contains(string(answers[0]), "as asked") {
		t.Errorf("ended: %q", answers)
	}
	c := begin(t, s, false, request(3)) // the backend is opened again
	wantTexts(t, "opened again", readAll(t, s, c.Number()), `"method":"roots/list"`, `"result"`)
	h.close()
}

type reentrant struct{}

func (reentrant) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	sink.EmitUnrelated(mcptest.Parse(progressed))
	return reentrantConn{sink}, nil
}

type reentrantConn struct{ backend.Sink }

func (c reentrantConn) Deliver(in backend.Inbound) error {
	switch {
	case in.Method == "end":
		c.Closed(errors.New("as asked"), true)
		c.Emit(in.Call, mcptest.Parse(response(2)))
	case in.Kind == jsonrpc.Request:
		if callOf(&in).Number() != 0 {
			c.Emit(in.Call, mcptest.Parse(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`))
			in.Call.Disconnect(0)
		}
		if err := callOf(&in).Session().Send(in.Context, mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/x"}`), in.Header); err != nil {
			return err
		}
		c.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Result: []byte("{}")})
	}
	return nil
}

func (c reentrantConn) Close() error {
	c.EmitUnrelated(mcptest.Parse(progressed))
	c.Closed(errors.New("closed"), false)
	return nil
}
