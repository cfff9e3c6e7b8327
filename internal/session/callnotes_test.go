package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/deferred"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A deferring is a service that defers calls with the param "task", and notes a number of them.
type deferring struct{ Service }

func (deferring) Member() string                          { return "later" }
func (deferring) Suits(*Session, string, []byte) bool     { return true }
func (deferring) Change(_ string, response []byte) []byte { return response }
func (deferring) Owns(string) bool                        { return false }
func (deferring) Defers(*jsonrpc.Message) bool            { return false }
func (deferring) Restored(_ *Session, note []byte) deferred.Deferred {
	n, err := strconv.Atoi(string(jsonrpc.Field(note, "later")))
	if err != nil {
		return nil
	}
	return &laterCall{n: n}
}

type laterCall struct {
	n      int
	number uint64
}

func (d *laterCall) Stored(number uint64)                  { d.number = number }
func (d *laterCall) AppendNote(dst []byte) []byte          { return fmt.Appendf(dst, `,"later":%d`, d.n) }
func (*laterCall) Plain(m jsonrpc.Message) jsonrpc.Message { return m }
func (*laterCall) Changed()                                {}

// notingOptions returns the options of a node with calls that may have every member of a note.
func notingOptions() Options {
	o := safeTools()
	o.Addition, o.Polls = passAfter(100*365*24*time.Hour), true // a note may say that a call began long ago
	o.Services = []func(*Manager, *Options) Service{func(*Manager, *Options) Service { return deferring{} }}
	return o
}

const (
	aSpan       = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	aKey        = `"key":"5BWYXktGS9PSM3mUVrUGGJjfKIZE/3jCo9bEUD+/0X0=","sum":"n4bQgYhMfWWaL+qgxVrQFQ=="`
	aTwin       = `"twin":"AQIDBAUGBwgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="`
	anInit      = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`
	resumesInit = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"capabilities":{"resumableRequests":{}}}}`
)

// The note of a call has the same bytes in each build, since the nodes of one build take sessions over from those of another.
func TestCallNoteBytes(t *testing.T) {
	t.Parallel()
	a := newShelf().add(t, "a", notingOptions())
	s := a.open("alice")
	awaitListed(t, s)
	m, other := mcptest.Parse(request(1)), mcptest.Parse(request(2))
	for _, test := range []struct {
		name string
		of   func(c *Call)
		want string
	}{
		{"as small as it can be", func(*Call) {}, `{"safe":false,"requests":[` + request(1) + `]}`},
		{"all that is sent", func(c *Call) {
			first := begin(t, s, false, request(8))
			a.desk.last().say(first, response(8))
			readAll(t, s, first.Number())
			c.recovery.retry, c.recovery.state = retryAllowed, recoveryLeft
			c.recovery.msgs = []jsonrpc.Message{m, {Kind: jsonrpc.Notification, Method: "x", Raw: []byte(`{}`)}, other}
			c.recorded().key = idempotency.Key(idempotency.OfPrincipal("alice"), "k", idempotency.SumOf([]byte("test")), idempotency.ID{1, 2, 3, 4, 5, 6, 7, 8})
			c.record.watched = s.Watched.Begin(&laterCall{n: 7})
			c.cameAsGuest("guest\"s")
			c.inherits().began = time.UnixMilli(1234567890123)
			a.flights.Came(&c.standing, nil, &clientConn{})
			a.flights.Liken(&c.standing, &m, 7)
			c.watch = c.watch.Before("2", &observe.Span{Trace: observe.Trace{Parent: aSpan, State: "a=b"}, Under: "u", Began: time.Unix(0, 5)})
			c.watch = c.watch.Before("1", &observe.Span{Trace: observe.Trace{Parent: aSpan}, Began: time.Unix(3, 0)})
		}, `{"safe":true,"unsent":true,` + aKey + `,` + aTwin + `,"later":7,"guest":"guest\"s","began":1234567890123,"here":true,"read":[1],` +
			`"spans":[{"is":"` + aSpan + `","state":"","under":"","began":3000000000},{"is":"` + aSpan + `","state":"a=b","under":"u","began":5}],` +
			`"requests":[` + request(1) + `,` + request(2) + `]}`},
		{"an heir", func(c *Call) { c.inherits().isHeir, c.record.inherits.from = true, 7 }, `{"safe":false,"of":7,"requests":[` + request(1) + `]}`},
		{"a POST that came from another node", func(c *Call) { c.recorded().key = idempotency.Forward("s", "n", idempotency.SumOf([]byte("test"))) },
			`{"safe":false,"key":"kZjTTtt2KzQ4EMtcaPUpxtfmDByfzZZWOa4RBkIzY9s=","sum":"n4bQgYhMfWWaL+qgxVrQFQ==","once":true,"requests":[` + request(1) + `]}`},
		{"of spans, one is not known", func(c *Call) {
			c.recovery.msgs = append(c.recovery.msgs, other)
			c.watch = c.watch.Before("1", &observe.Span{Trace: observe.Trace{Parent: aSpan}, Began: time.Unix(0, 5)})
		}, `{"safe":false,"spans":[{"is":"` + aSpan + `","state":"","under":"","began":5},null],"requests":[` + request(1) + `,` + request(2) + `]}`},
	} {
		c := &Call{s: s, recovery: &recovery{msgs: []jsonrpc.Message{m}}}
		test.of(c)
		c.mu.Lock()
		got := string(c.appendNote(nil))
		c.mu.Unlock()
		if got != test.want {
			t.Errorf("%s:\n%s, not\n%s", test.name, got, test.want)
		}
	}
}

// The note of a session has the same bytes in each build, too.
func TestSessionNoteBytes(t *testing.T) {
	t.Parallel()
	f := newShelf()
	o := notingOptions()
	tell := newTeller("")
	o.OnEnded = tell.ended
	a := f.add(t, "a", o)
	a.desk.tools = `{"name":"y"},{"name":"x","annotations":{"idempotentHint":true}}`
	s := a.open("alice")
	awaitListed(t, s)
	c := beginAway(t, s, 5)
	a.desk.last().say(c, response(5))
	mcptest.Eventually(t, "it to be told", time.Minute, func() bool { return tell.told() == "5" && s.untold.HasTold() })
	c = begin(t, s, false, request(8))
	a.desk.last().say(c, response(8))
	readAll(t, s, c.Number())
	s.use.left.Store(true)
	locked(s, func() {
		s.backend.settings = settings{[]byte(`{"level":"error"}`), map[string][]byte{"x:a": []byte(`{"uri":"x:a"}`)}}
	})
	s.noteStored(true)
	s.use.left.Store(false)
	want := `{"revision":"2025-11-25","told":0,"read":[2],"rung":[1],"safe":["x"],"later":true,"left":true,"set":{"l":{"level":"error"},"s":[{"uri":"x:a"}]},"initialize":` + anInit + `}`
	if got, _ := a.node.notes.Load(uint64(standalone)); got != want {
		t.Errorf("%s, not\n%s", got, want)
	}
}

// The settings in a note are no longer than a store takes, and those that fit are there.
func TestSettingsNoteBounded(t *testing.T) {
	t.Parallel()
	set := settings{[]byte(`{"level":"error"}`), make(map[string][]byte)}
	for i := range 100 {
		set.subs[fmt.Sprint(i)] = fmt.Appendf(nil, `{"uri":"%01000d"}`, i)
	}
	var n sleepNote
	if note := set.note(); len(note) > mostNoted+100 || json.Unmarshal(note, &n) != nil || string(n.Level) != string(set.level) || len(n.Subs) != mostNoted/1011 {
		t.Errorf("%d bytes, with %d subscriptions", len(note), len(n.Subs))
	}
}

// put appends to a stream of a session, as a node of the last build may have left it.
func (n *fleetNode) put(s *Session, number uint64, note string, ended bool, entries ...string) {
	n.t.Helper()
	records := []stream.Record{{Number: number, Note: true, Entry: stream.Entry{Data: []byte(note)}}}
	_, next, _ := n.node.Bounds(n.t.Context(), stream.ID{Session: s.key, Number: number})
	for i, data := range entries {
		records = append(records, stream.Record{Number: number, Entry: stream.Entry{Seq: max(next, 1) + uint64(i), Data: []byte(data), Last: ended && i == len(entries)-1}})
	}
	mcptest.Check(n.t, n.node.Append(n.t.Context(), s.lease, records))
}

func safeNote(more string, ids ...int) string {
	return noteOf(`{"safe":true`+more+`,"requests":[`, safeRequest, ids)
}

func noteOf(head string, request func(int) string, ids []int) string {
	for i, id := range ids {
		head += ","[:min(i, 1)] + request(id)
	}
	return head + "]}"
}

// A session's next owner restores its calls as the notes of the last build describe them.
func TestNotesRestored(t *testing.T) {
	t.Parallel()
	f := newShelf()
	tell := newTeller("")
	o := notingOptions()
	o.OnEnded = tell.ended
	a, b := f.add(t, "a", notingOptions()), f.add(t, "b", o)
	was := a.open("alice")
	a.put(was, 0, `{"revision":"2025-06-18","told":3,"read":[11],"rung":[12],"safe":["safe"],"later":true,"initialize":`+resumesInit+`}`, false, `{}`, `{}`, `{}`, `{}`)
	hooked := func(id int) string { return `{"safe":false,"requests":[` + hookedRequest(id) + `]}` }
	for _, id := range []int{11, 12, 13} {
		a.put(was, uint64(id), hooked(id), true, response(id))
	}
	a.put(was, 14, safeNote(`,`+aKey, 14), false)
	a.put(was, 15, noteOf(`{"safe":false,"unsent":true,"guest":"other","requests":[`, request, []int{15}), false)
	a.put(was, 16, noteOf(`{"safe":false,"read":[31],"rung":[32],"requests":[`, request, []int{16}), false)
	a.put(was, 17, safeNote(`,"of":99`, 17), false)
	a.put(was, 18, safeNote(`,"of":16`, 18), false)
	a.put(was, 19, safeNote(`,"later":7,"began":1234567890123`, 19), false)
	a.put(was, 20, safeNote("", 20, 21), false, `{"jsonrpc":"2.0","method":"a"}`, `{"jsonrpc":"2.0","method":"b"}`, failure(20))
	a.put(was, 22, `{"safe":tr`, false)
	a.put(was, 23, safeNote(`,"spans":[{"is":"`+aSpan+`","state":"a=b","under":"u","began":5}]`, 23), false)
	a.put(was, 24, noteOf(`{"safe":false,"requests":[`, request, []int{24, 25}), true, `{"jsonrpc":"2.0","method":"a"}`, `{"jsonrpc":"2.0","method":"b"}`, response(25), ``)
	a.put(was, 26, `{"safe":false,"of":98,"requests":[`+hookedRequest(26)+`]}`, true, response(26))
	a.put(was, 27, `{"safe":false,"later":9,"requests":[`+request(27)+`]}`, true, response(27))
	a.put(was, 31, hooked(31), true, response(31))
	a.put(was, 32, hooked(32), true, response(32))
	a.put(was, 33, hooked(33), true, failure(33))
	a.put(was, 34, `{"safe":false,"requests":[`+hookedRequest(34)+`,`+hookedRequest(35)+`]}`, false, `{"jsonrpc":"2.0","method":"a"}`, `{"jsonrpc":"2.0","method":"b"}`, response(34))
	a.kill()
	s := b.take(was)
	var ids []string
	for range 6 {
		if len(ids) == 0 {
			mcptest.Eventually(t, "the backend to be opened", time.Minute, func() bool { return b.desk.opened() > 0 })
		}
		ids = append(ids, string(b.desk.last().next(t, "tools/call").ID))
	}
	if want := []string{"14", "15", "17", "19", "21", "23"}; !slices.Equal(ids, want) {
		t.Errorf("the calls %q were made, want %q", ids, want)
	}
	if s.Revision() != "2025-06-18" || s.streams.Delivered() != 3 || s.Resumes() == nil || s.owner("x") != nil || s.offers.Load() != 1 ||
		!slices.Equal(s.Tools.Names(), []string{"safe"}) || !slices.Equal(s.rung, []uint64{12}) {
		t.Errorf("revision %q, told %d, offers %b, tools %q, rung %d", s.Revision(), s.streams.Delivered(), s.offers.Load(), s.Tools.Names(), s.rung)
	}
	at, known, err := s.BeginOnce(Once{Key: "k"}, []byte("test"), []jsonrpc.Message{mcptest.Parse(safeRequest(14))})
	if err != nil || at != nil || known.Number != 14 {
		t.Errorf("under the key is %+v, %v", known, err)
	}
	if guest := s.CallAt(15).guestOf(); guest != "other" {
		t.Errorf("call 15 is of %q", guest)
	}
	wantTexts(t, "call 16", readAll(t, s, 16), `"resumeToken"`, lostWith)
	if c := s.CallAt(17); !c.isHeir() || c.record.inherits.from != 99 || s.Watched.Tool(17) != "safe" || !c.Repeated() || s.Watched.Tool(26) != "x" {
		t.Errorf("call 17 is an heir: %v, of %q", c.isHeir(), s.Watched.Tool(17))
	}
	if said := readAll(t, s, 18); len(said) > 0 {
		t.Errorf("call 18 said %q", said)
	}
	if d, ok := s.CallAt(19).deferred().(*laterCall); !ok || *d != (laterCall{7, 19}) || s.CallAt(19).record.inherits.began.UnixMilli() != 1234567890123 {
		t.Errorf("call 19 is deferred: %+v", d)
	}
	if d, st, err := s.Watched.Deferred(t.Context(), 27); err != nil || *d.(*laterCall) != (laterCall{9, 27}) || string(st.Response) != response(27) {
		t.Errorf("call 27 is deferred: %+v, %v, %v", d, st, err)
	}
	wantTexts(t, "call 22", readAll(t, s, 22))
	if w := s.CallAt(23).watch; w.Was == nil || *w.Was != (observe.Span{Trace: observe.Trace{Parent: aSpan, State: "a=b"}, Under: "u", Began: time.Unix(0, 5)}) {
		t.Errorf("the span of call 23 was %+v", w.Was)
	}
	for _, want := range []struct {
		number uint64
		id     int
		status string
	}{
		{14, 14, resume.Processing}, {16, 16, resume.Failed}, {20, 20, resume.Failed}, {20, 21, resume.Processing},
		{24, 24, resume.Failed}, {24, 25, resume.Completed}, {33, 33, resume.Failed}, {11, 11, resume.Completed}, {34, 34, resume.Completed}, {34, 35, resume.Failed},
	} {
		st, err := s.Resumes().Status(want.number, strconv.AppendInt(nil, int64(want.id), 10))
		if err != nil || st.Status != want.status {
			t.Errorf("request %d of call %d is %q, %v", want.id, want.number, st.Status, err)
		}
	}
	for _, number := range []uint64{17, 19, 26, 27} { // heirs and deferred calls are found by other names
		if _, err := s.Resumes().Status(number, strconv.AppendUint(nil, number, 10)); err == nil {
			t.Errorf("call %d can be resumed", number)
		}
	}
	b.Close()
	if told := tell.told(); told != "13 26 33 34 35" || tell.keys["13"] != string(was.key)+" 13 13" || tell.keys["26"] != string(was.key)+" 26 26" {
		t.Errorf("the outcomes of %s were told besides, under the keys %q", told, tell.keys)
	}
}

// In a session with one stream the calls have journals, and their responses are elsewhere.
func TestNotesRestoredSingle(t *testing.T) {
	t.Parallel()
	f := newShelf()
	tell := newTeller("")
	o := notingOptions()
	o.OnEnded = tell.ended
	a, b := f.add(t, "a", notingOptions()), f.add(t, "b", o)
	was, err := a.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	initialize := begin(t, was, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`)
	mcptest.Eventually(t, "initialize", time.Minute, initialize.IsOver)
	a.put(was, 0, `{"revision":"2024-11-05","told":0,"rung":[12],"safe":["safe"],"initialize":`+resumesInit+`}`, false, response(11), response(12), failure(13), response(15))
	for _, id := range []int{11, 12, 13} {
		a.put(was, uint64(id), `{"safe":false,"requests":[`+hookedRequest(id)+`]}`, true, ``)
	}
	a.put(was, 14, safeNote("", 14), false)
	a.put(was, 15, safeNote("", 15, 16), false, `15`)
	a.put(was, 17, safeNote(`,"of":11`, 17), false)
	a.put(was, 18, `{"safe":false,"of":12,"requests":[`+hookedRequest(18)+`]}`, true, response(18))
	a.put(was, 19, noteOf(`{"safe":false,"requests":[`, request, []int{19}), false)
	a.kill()
	s := b.take(was)
	mcptest.Eventually(t, "the backend to be opened", time.Minute, func() bool { return b.desk.opened() > 0 })
	var ids []string
	for range 3 {
		ids = append(ids, string(b.desk.last().next(t, "tools/call").ID))
	}
	if want := []string{"14", "16", "17"}; !slices.Equal(ids, want) {
		t.Errorf("the calls %q were made, want %q", ids, want)
	}
	if s.CallAt(14) != nil || s.CallAt(17) == nil || s.Resumes() != nil {
		t.Error("calls have the wrong streams")
	}
	entries := 0
	_ = s.streams.Each(context.Background(), standalone, 100, func(e *stream.Entry) {
		if entries++; entries == 6 { // the first is the response of initialize
			wantTexts(t, "call 19", []string{string(e.Data)}, lostWith)
		}
	})
	if entries != 6 {
		t.Errorf("%d entries", entries)
	}
	b.Close()
	if told := tell.told(); told != "11 13 18" || tell.keys["13"] != string(was.key)+" 13 13" || tell.keys["18"] != string(was.key)+" 18 18" {
		t.Errorf("the outcomes of %s were told besides, under the keys %q", told, tell.keys)
	}
}
