package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/resume"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// able begins a session of a client that can resume requests.
func (h *house) able(principal string) *Session {
	return h.openAs("", principal, `{`+asked+`,"resumableRequests":{}}`)
}

// policy has the members of a resume policy.
type policy struct {
	RequestID        json.RawMessage
	ResumeToken      string
	MinWait, MaxWait float64
}

// policyIn parses a message that is a resume policy.
func policyIn(t testing.TB, text string) (p policy) {
	t.Helper()
	m := mcptest.Parse(text)
	if m.Kind != jsonrpc.Notification || m.Method != "notifications/requests/resumePolicy" {
		t.Fatalf("not a policy: %s", text)
	}
	d := json.NewDecoder(strings.NewReader(string(m.Params)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil || p.ResumeToken == "" {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

// tokenOf returns the token that a call's client gets.
func tokenOf(t testing.TB, c *Call) string {
	t.Helper()
	return policyIn(t, readSome(t, c.Session(), c.Number(), 1)[0]).ResumeToken
}

// tokenFor returns the token of a request of a stream's call, also where the client gets none.
func tokenFor(s *Session, number uint64, id []byte) string {
	return s.Tickets().Make("holdfast resume token", number, id)
}

// A client whose initialize has failed may send another, on a connection that goes on. That one counts from then on.
func TestInitializeAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s, err := h.New(newRequest(), caller.Principal{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	held := func() int64 { return h.store.(*memory.Store).Held() }
	initialize := func(capabilities string) {
		t.Helper()
		c := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`}}`)
		if answers, done := c.Wait(t.Context(), 0); !done || len(answers) != 1 {
			t.Fatalf("initialize: %q", answers)
		}
	}
	before := held()
	h.desk.initialized = `{"capabilities":{}}` // no client takes that
	initialize(`{"x":"` + strings.Repeat("x", 2*shortInitialize) + `"}`)
	h.desk.initialized = ""
	initialize(`{"sampling":{}}`)
	if n := held(); n != before {
		t.Errorf("%d bytes are held for an initialize that has failed", n-before)
	}
	link := h.desk.last()
	c := begin(t, s, false, request(1))
	<-link.in
	link.say(c, `{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}`)
	if n := s.asked.len(); n != 1 {
		t.Errorf("%d questions wait for a client that has declared sampling", n)
	}
}

const progressed = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`

func TestPolicyFirst(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MinWait: 1500 * time.Millisecond, Keep: 20 * time.Minute}, nil)
	defer h.close()
	s := h.able("")
	link := h.desk.last()

	stored := begin(t, s, false, request(1))
	link.say(stored, progressed)
	link.say(stored, response(1))
	got := readAll(t, s, stored.Number())
	if len(got) != 3 || got[1] != progressed || got[2] != response(1) {
		t.Fatalf("got %q", got)
	}
	p := policyIn(t, got[0])
	if string(p.RequestID) != "1" || p.MinWait != 1.5 || p.MaxWait != 1200 {
		t.Errorf("the policy is %+v", p)
	}

	promoted := begin(t, s, true, strings.Replace(request(2), "2,", `"a\/b",`, 1))
	if promoted.Number() != 0 {
		t.Fatal("a light call is stored")
	}
	link.say(promoted, progressed)
	got = readSome(t, s, promoted.Number(), 2)
	if p := policyIn(t, got[0]); string(p.RequestID) != `"a\/b"` || got[1] != progressed {
		t.Errorf("got %q", got)
	}

	batch := begin(t, s, true, request(3), request(4))
	link.say(batch, response(4))
	batch.Promote()
	got = readSome(t, s, batch.Number(), 3)
	one, two := policyIn(t, got[0]), policyIn(t, got[1])
	if string(one.RequestID) != "3" || string(two.RequestID) != "4" || one.ResumeToken == two.ResumeToken || got[2] != response(4) {
		t.Errorf("got %q", got)
	}
}

// Clients that do not declare that they can resume requests get no policy.
func TestNoPolicy(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	for _, capabilities := range []string{`{}`, `null`, `{"resumableRequests":true}`, `{"resumableRequests":null}`, `[]`} {
		s := h.openAs("", "", capabilities)
		c := begin(t, s, false, request(1))
		h.desk.last().say(c, response(1))
		if got := readAll(t, s, c.Number()); len(got) != 1 || s.Resumes() != nil || s.Resumes().EventIDs() {
			t.Errorf("%s: got %q", capabilities, got)
		}
		if _, err := s.Resumes().Status(c.Number(), []byte("1")); !errors.Is(err, resume.ErrBadToken) {
			t.Errorf("%s: %v", capabilities, err)
		}
		if c.record != nil {
			t.Error("something is kept beside the stream")
		}
	}
	for capabilities, want := range map[string]bool{
		`{"resumableRequests":{}}`: false, `{"resumableRequests":{"eventIds":true}}`: true, `{"resumableRequests":{"eventIds":1}}`: false,
	} {
		if s := h.openAs("", "", capabilities); s.Resumes().EventIDs() != want || s.Resumes() == nil {
			t.Errorf("%s: event ids are wanted: %v", capabilities, s.Resumes().EventIDs())
		}
	}
	single, err := h.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, single, true, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"resumableRequests":{},"roots":{},"sampling":{},"elicitation":{}}}}`)
	if single.Resumes() != nil {
		t.Error("a session of 2024-11-05 has streams to resume")
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s, other, bobs := h.able("alice"), h.able("alice"), h.able("bob")
	c := begin(t, s, false, strings.Replace(request(1), "1,", `"a\/b",`, 1))
	token := tokenOf(t, c)
	second := tokenOf(t, begin(t, s, false, request(2)))
	others := tokenOf(t, begin(t, other, false, strings.Replace(request(1), "1,", `"a/b",`, 1)))
	plain := begin(t, h.open("alice"), false, request(1))
	for _, id := range []string{`"a/b"`, `"a\/b"`} {
		if got, number, err := h.resumes.Find(token, []byte(id), caller.At("", "alice")); err != nil || got != s || number != c.Number() {
			t.Errorf("%s: %v, %d, %v", id, got, number, err)
		}
	}
	name, mark := s.Name(), ticket.StreamName(s.id, c.Number())
	for what, is := range map[string]struct{ token, id, principal string }{
		"bob's":                {token, `"a/b"`, "bob"},
		"nobody's":             {token, `"a/b"`, ""},
		"another id's":         {token, `"a/c"`, "alice"},
		"no id's":              {token, ``, "alice"},
		"another request's":    {second, `"a/b"`, "alice"},
		"another session's":    {others, `"a/b"`, "bob"},
		"cut":                  {token[:len(token)-1], `"a/b"`, "alice"},
		"longer":               {token + "0", `"a/b"`, "alice"},
		"with zeros":           {token[:len(token)-1] + "0" + token[len(token)-1:], `"a/b"`, "alice"},
		"of two sessions":      {bobs.Name() + token[len(name):], `"a/b"`, "bob"},
		"a stream's name":      {name + "." + mark, `"a/b"`, "alice"},
		"an event id":          {name + "." + string(ticket.AppendEvent(nil, mark, 1, 1)), `"a/b"`, "alice"},
		"a request's id":       {strings.Trim(string(s.askedID(nil, int64(c.Number()))), `"`), `"a/b"`, "alice"},
		"and none":             {strings.Trim(string(s.askedID(nil, int64(c.Number()))), `"`), ``, "alice"},
		"empty":                {"", `"a/b"`, "alice"},
		"a name":               {name, `"a/b"`, "alice"},
		"a name and no number": {token[:len(name)+1+ticket.MarkLen], `"a/b"`, "alice"},
		"long":                 {token + strings.Repeat("0", 200), `"a/b"`, "alice"},
		"of the standalone":    {tokenFor(s, 0, []byte(`"a/b"`)), `"a/b"`, "alice"},
		"of what is not there": {tokenFor(s, 99, []byte(`"a/b"`)), `"a/b"`, "alice"},
		"of one without":       {tokenFor(plain.Session(), 1, []byte("1")), `1`, "alice"},
	} {
		got, number, err := h.resumes.Find(is.token, []byte(is.id), caller.At("", is.principal))
		if !errors.Is(err, resume.ErrBadToken) || err.Error() != resume.ErrBadToken.Error() || got != nil || number != 0 {
			t.Errorf("%s: %v, %d, %v", what, got, number, err)
		}
	}
	if _, err := ticket.ParseEvent(s.id, token[len(name)+1:]+".1.1"); !errors.Is(err, ticket.ErrBadEvent) {
		t.Errorf("a token makes an event id: %v", err)
	}
	if _, ok := s.parseAskedID(jsonrpc.Quote(token)); ok {
		t.Error("a token makes a request's id")
	}
	h.End(s)
	if _, _, err := h.resumes.Find(token, []byte(`"a/b"`), caller.At("", "alice")); !errors.Is(err, resume.ErrBadToken) {
		t.Errorf("after the session: %v", err)
	}
}

// status checks the status of request 1 of a call.
func status(t testing.TB, c *Call, state string, pending, input bool) {
	t.Helper()
	want := resume.Status{RequestID: json.RawMessage("1"), Status: state, HasPendingMessage: pending, HasInputRequest: input}
	got, err := c.Session().Resumes().Status(c.Number(), []byte("1"))
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("status %s, want %s: %v", jsonOf(got), jsonOf(want), err)
	}
}

func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func TestRequestStatus(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("")
	link := h.desk.last()

	c := begin(t, s, false, request(1))
	status(t, c, resume.Processing, true, false) // the policy is pending
	tokenOf(t, c)
	status(t, c, resume.Processing, false, false)
	link.say(c, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`)
	status(t, c, resume.Processing, true, true)
	asked := mcptest.Parse(readSome(t, s, c.Number(), 2)[1])
	status(t, c, resume.Processing, false, true)
	if err := s.Send(t.Context(), mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, asked.ID)), nil); err != nil {
		t.Fatal(err)
	}
	status(t, c, resume.Processing, false, false)
	link.say(c, `{"jsonrpc":"2.0","id":"q2","method":"elicitation/create","params":{}}`)
	link.say(c, response(1))
	status(t, c, resume.Completed, true, false)
	readAll(t, s, c.Number()) // a reader that came after the end
	status(t, c, resume.Completed, false, false)
	if _, err := s.Resumes().Status(c.Number(), []byte("2")); !errors.Is(err, resume.ErrBadToken) {
		t.Errorf("of another id: %v", err)
	}

	failed := begin(t, s, false, request(1))
	link.say(failed, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}`)
	status(t, failed, resume.Failed, true, false)
	status(t, c, resume.Completed, false, false)

	batch := begin(t, s, false, request(1), request(2))
	link.say(batch, response(2))
	status(t, batch, resume.Processing, true, false)
	if got, err := s.Resumes().Status(batch.Number(), []byte("2")); err != nil || got.Status != resume.Completed {
		t.Errorf("%s, %v", jsonOf(got), err)
	}
	if got := jsonOf(resume.Status{RequestID: json.RawMessage(`"x"`), Status: "failed"}); got !=
		`{"requestId":"x","status":"failed","hasPendingMessage":false,"hasInputRequest":false}` {
		t.Errorf("as JSON: %s", got)
	}

	lost := begin(t, s, false, request(9))
	link.sink.Closed(errors.New("crashed"), true)
	if got, err := s.Resumes().Status(lost.Number(), []byte("9")); err != nil || got.Status != resume.Failed {
		t.Errorf("of a call whose backend crashed: %s, %v", jsonOf(got), err)
	}
}

// A client that comes back for a cancelled call gets a response.
func TestResumeCancelled(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("")
	c := begin(t, s, false, request(1), request(2))
	for id := 1; id <= 2; id++ {
		cancel := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
		if err := s.Send(t.Context(), cancel, nil); err != nil {
			t.Fatal(err)
		}
	}
	status(t, c, resume.Failed, true, false)
	got := readAll(t, s, c.Number())
	if len(got) != 4 || !strings.Contains(got[3], `"id":2,"error":{"code":-32000,"message":"cancelled`) {
		t.Errorf("got %q", got)
	}
}

// The token and the status of a call are forgotten with its stream.
func TestResumablesForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: time.Hour}, nil)
		defer h.close()
		s := h.able("alice")
		ended, running := begin(t, s, false, request(1)), begin(t, s, false, request(2))
		one, two := tokenOf(t, ended), tokenOf(t, running)
		h.desk.last().say(ended, response(1))
		time.Sleep(9 * time.Minute)
		if _, _, err := h.resumes.Find(one, []byte("1"), caller.At("", "alice")); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute)
		if _, _, err := h.resumes.Find(one, []byte("1"), caller.At("", "alice")); !errors.Is(err, resume.ErrBadToken) {
			t.Errorf("dropped by the store: %v", err)
		}
		if _, _, err := h.resumes.Find(two, []byte("2"), caller.At("", "alice")); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Minute)
		if n := s.Resumes().Len(); n != 1 {
			t.Errorf("%d calls are known", n)
		}
		if runs, err := s.Resumes().Status(running.Number(), []byte("2")); err != nil || runs.Status != resume.Processing {
			t.Errorf("the call that runs is %+v: %v", runs, err)
		}
	})
}

func TestResumablesBounded(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, with(t, memory.Options{SessionBytes: 20 << 10}))
	defer h.close()
	s := h.able("alice")
	link := h.desk.last()
	most := 0
	for range 10_000 {
		link.say(begin(t, s, false, request(1)), response(1))
		<-link.in
		most = max(most, s.Resumes().Len())
	}
	if most > 2<<10 {
		t.Errorf("%d calls were known", most)
	}
	if n := len(h.resumes.All(caller.At("", "alice"), nil, Range{})); n == 0 || n > 200 {
		t.Errorf("%d requests can be resumed", n)
	}
}

func TestAllResumable(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	one, two, bob, nobody, nobody2, plain := h.able("alice"), h.able("alice"), h.able("bob"), h.able(""), h.able(""), h.open("alice")
	if one.Name() > two.Name() {
		one, two = two, one
	}
	c := begin(t, one, false, request(1))
	begin(t, one, true, request(2)) // a light call
	begin(t, one, false, request(3), request(4))
	begin(t, two, false, request(1))
	begin(t, plain, false, request(9))
	begin(t, bob, false, request(9))
	begin(t, nobody, false, request(5))
	tokenOf(t, c)
	ask := func(principal string, own *Session) string {
		var ids []string
		for _, r := range h.resumes.All(caller.At("", principal), own, Range{}) {
			s, number, err := h.resumes.Find(r.ResumeToken, r.RequestID, caller.At("", principal))
			if err != nil {
				t.Errorf("%s: %v", jsonOf(r), err)
				continue
			}
			if got, err := s.Resumes().Status(number, r.RequestID); err != nil || fmt.Sprint(got) != fmt.Sprint(r.Status) || r.Method != "tools/call" {
				t.Errorf("%s, but alone %s: %v", jsonOf(r), jsonOf(got), err)
			}
			ids = append(ids, string(r.RequestID))
		}
		return strings.Join(ids, " ")
	}
	for _, test := range []struct {
		principal string
		own       *Session
		want      string
	}{
		{"alice", nil, "1 3 4 1"}, {"alice", plain, "1 3 4 1"}, {"bob", bob, "9"}, {"carol", nil, ""},
		{"", nil, ""}, {"", nobody, "5"}, {"", nobody2, ""},
	} {
		if got := ask(test.principal, test.own); got != test.want {
			t.Errorf("%q has %q, want %q", test.principal, got, test.want)
		}
	}
	h.End(one)
	h.End(bob)
	if a, b := ask("alice", nil), ask("bob", nil); a != "1" || b != "" {
		t.Errorf("after the ends: %q, %q", a, b)
	}
	h.End(two)
	if len(h.resumers) != 0 {
		t.Errorf("%d principals are known", len(h.resumers))
	}
	if got := jsonOf(resume.Listed{Status: resume.Status{RequestID: json.RawMessage("1"), Status: "processing"}, ResumeToken: "t", Method: "m"}); got !=
		`{"requestId":1,"status":"processing","hasPendingMessage":false,"hasInputRequest":false,"resumeToken":"t","method":"m"}` {
		t.Errorf("as JSON: %s", got)
	}
}

// Holdfast does not pass its own methods on to the backend where it cannot answer them.
func TestResumeNotDelivered(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("")
	for _, method := range []string{"requests/resume", "requests/getStatus", "requests/getStatus/all"} {
		c := begin(t, s, true, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"resumeToken":"secret"}}`, method))
		answers, done := c.Wait(t.Context(), 0)
		if !done || len(answers) != 1 || !strings.Contains(string(answers[0]), "-32601") {
			t.Errorf("%s: %q", method, answers)
		}
	}
	if in := h.desk.last().in; len(in) > 0 {
		t.Errorf("the backend got %s", (<-in).Raw)
	}
}

// When the store does not take the policy, the call does not run.
func TestPolicyNotStored(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, with(t, memory.Options{SessionBytes: 800}))
	defer h.close()
	s := h.able("")
	link := h.desk.last()
	first := begin(t, s, false, request(1))
	<-link.in
	for i := 2; i < 5; i++ {
		if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(i))}, false); !errors.Is(err, stream.ErrFull) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	refusal(t, s, "k", request(7), stream.ErrFull)
	if known, _ := h.keys.Len(); h.Calls() != 1 || known != 0 {
		t.Errorf("%d calls in flight, %d keys", h.Calls(), known)
	}
	link.say(first, response(1))
	if len(link.in) > 0 {
		t.Error("a call ran whose policy could not be stored")
	}
	c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(7))}, true)
	if err != nil {
		t.Fatal(err)
	}
	c.Deliver(context.Background(), []jsonrpc.Message{mcptest.Parse(request(7))}, nil)
	link.say(c, response(7))
}

// A client that is sent away while the log still takes messages of its call gets all
// of them first, above all the policy, which tells it how to come back.
func TestDisconnectSaidFirst(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("")
	desk := h.desk.last()
	for _, light := range []bool{true, false} {
		c := begin(t, s, light, request(1))
		want := 2
		if light {
			want = 1
		}
		var r *reading.Reader
		s.log.InOneAppend(func() {
			if light {
				c.Disconnect(time.Second)
				r = attach(t, s, c.Number())
			} else {
				r = attach(t, s, c.Number())
				desk.say(c, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
				c.Disconnect(time.Second)
			}
			if _, ok := r.DisconnectRequest(); ok || light && r.PastPolicy() {
				t.Errorf("light %v: sent away with nothing", light)
			}
		})
		for i := range want {
			if _, ok := r.DisconnectRequest(); ok {
				t.Errorf("light %v: sent away after %d messages, want %d", light, i, want)
			}
			tell(t, r, 1)
		}
		if retry, ok := r.DisconnectRequest(); !ok || retry != time.Second || !r.PastPolicy() {
			t.Errorf("light %v: not sent away: %v, announced %v", light, retry, r.PastPolicy())
		}
		if _, ok := r.DisconnectRequest(); ok {
			t.Errorf("light %v: sent away twice", light)
		}
		desk.say(c, response(1))
		r.Detach(false, true, false)
	}
}

// A client that is sent away just after the first message of its light call is sent
// away when it reads that message. A client that had left before is not.
func TestDisconnectBeforeRead(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	for _, left := range []bool{false, true} {
		c := begin(t, s, true, request(1))
		h.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		c.Disconnect(time.Second)
		if left {
			c.ConnectionLost()
		}
		r := attach(t, s, c.Number())
		if _, ok := r.DisconnectRequest(); ok {
			t.Errorf("left %v: sent away with nothing", left)
		}
		tell(t, r, 1)
		if retry, ok := r.DisconnectRequest(); ok == left || ok && retry != time.Second {
			t.Errorf("left %v: sent away: %v, %v", left, ok, retry)
		}
		h.desk.last().say(c, response(1))
		r.Detach(false, true, false)
	}
}
