package translate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

const probed = `{"jsonrpc":"2.0","id":ID,"method":"server/discover","params":{"_meta":{` + aClient + `}}}`

// never is a patience that is longer than any test.
const never = time.Hour

func unknown(t *testing.T, patience time.Duration) (*script, *translator) {
	t.Helper()
	s := newScript(t, backend.Unknown)
	b := New(s, quiet).(*translator)
	b.patience = patience
	return s, b
}

// deliverLater delivers a message on another goroutine, as the delivery waits for the server.
func (h *holdfast) deliverLater(of *call, text string) (done chan error) {
	h.t.Helper()
	m, err := jsonrpc.Parse([]byte(text))
	if err != nil {
		h.t.Fatalf("%s: %v", text, err)
	}
	done = make(chan error, 1)
	go func() { done <- h.conn.Deliver(backend.Inbound{Message: m, Call: of}) }()
	return done
}

func wait(t *testing.T, done chan error) {
	t.Helper()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A server's answer to server/discover is kept for all later conversations.
func TestModernProbe(t *testing.T) {
	t.Parallel()
	for answer, modern := range map[string]bool{
		`"result":` + discoverable:                      true,
		`"error":{"code":-32022,"message":"no"}`:        true,
		`"error":{"code":-32601,"message":"no"}`:        false,
		`"error":{"code":-32602,"message":"no"}`:        false,
		`"result":{"supportedVersions":["2025-11-25"]}`: false,
		`"result":{}`: false,
	} {
		s, b := unknown(t, never)
		h := converse(t, b, protocol.V20260728)
		a := &call{"a"}
		request := modernRequest("1", "tools/list", "", `"progressToken":3`)
		first := h.deliverLater(a, request)
		id := s.hears(probed)
		h.deliver(&call{"b"}, modernRequest("2", "tools/list", "", ""))
		s.say(nil, `{"jsonrpc":"2.0","id":5,"method":"ping"}`)
		s.hears(`{"jsonrpc":"2.0","id":5,"result":{}}`)
		s.untold()
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, answer))
		wait(t, first)
		if start := <-s.opened; start.Revision != "" {
			t.Errorf("opened with revision %s", start.Revision)
		}
		if modern {
			var heard []string // in any order
			for range 2 {
				heard = append(heard, string((<-s.heard).Raw))
			}
			if !slices.Contains(heard, request) || !slices.Contains(heard, modernRequest("2", "tools/list", "", "")) {
				t.Errorf("heard %q", heard)
			}
			text := `{"jsonrpc":"2.0","id":1,"result":{"any":"thing"}}`
			s.say(a, text)
			h.expect(a, text)
			if later := converse(t, b, protocol.V20260728); later.conn.(*scriptConn) == nil {
				t.Error("a later conversation is translated")
			}
			if start := <-s.opened; start.Revision != protocol.V20260728 {
				t.Errorf("opened with revision %q", start.Revision)
			}
			continue
		}
		id = s.hears(`{"jsonrpc":"2.0","id":ID,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
			`"capabilities":{"elicitation":{},"roots":{},"extensions":{"x/y":{}}},"clientInfo":{"name":"c","version":"1"}}}`)
		for h.conn.(*modernProbe).path.Load().down.(*legacyServer).waits() < 2 {
			time.Sleep(time.Millisecond)
		}
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, facts))
		s.hears(initializedNotice)
		s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":1}}}`)
		s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
		s.say(nil, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m"}}`)
		h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m"}}`)
		if later := converse(t, b, protocol.V20260728); later.conn.(*legacyServer) == nil {
			t.Error("a later conversation is not translated")
		}
	}
}

// waits returns how many requests wait for initialize.
func (c *legacyServer) waits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// A server that does not answer is taken for a legacy one, until it turns out to be modern. Its
// answer to initialize may come before its answer to server/discover.
func TestModernProbeUnanswered(t *testing.T) {
	t.Parallel()
	for name, discoversFirst := range map[string]bool{"discovers": true, "refuses": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unanswered(t, discoversFirst)
		})
	}
}

func unanswered(t *testing.T, discoversFirst bool) {
	t.Helper()
	s, b := unknown(t, time.Millisecond)
	h := converse(t, b, protocol.V20260728)
	a := &call{"a"}
	h.deliver(a, modernRequest("1", "tools/list", "", ""))
	probe := s.hears(probed)
	in := <-s.heard
	if in.Method != protocol.MethodInitialize {
		t.Fatalf("heard %s", in.Raw)
	}
	if _, modern := b.speaks.get(); modern != unsure { // the server may still be starting
		t.Errorf("before the server has said anything, other conversations know: %v", modern)
	}
	discovered := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, probe, discoverable)
	if discoversFirst {
		s.say(nil, discovered)
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, in.ID))
	} else {
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"what?","data":{"supported":["2026-07-28"]}}}`, in.ID))
	}
	s.hears(modernRequest("1", "tools/list", "", ""))
	s.say(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	if !discoversFirst {
		s.say(nil, discovered) // no request waits for this answer any more
		h.deliver(a, modernRequest("2", "tools/list", "", ""))
		s.hears(modernRequest("2", "tools/list", "", ""))
		s.say(a, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		h.expect(a, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	}
	if _, modern := b.speaks.get(); modern != yes {
		t.Errorf("modern: %v", modern)
	}
}

// If a server refuses the client's initialize at once, that is the error of the delivery.
func TestModernProbeRefused(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	h := converse(t, b, protocol.V20260728)
	done := h.deliverLater(&call{"a"}, modernRequest("1", "tools/list", "", ""))
	id := s.hears(probed)
	refuse := errors.New("401")
	s.mu.Lock()
	s.refuse = refuse
	s.mu.Unlock()
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"unauthorized"}}`, id))
	if err := <-done; !errors.Is(err, refuse) {
		t.Errorf("got %v", err)
	}
	if _, modern := b.speaks.get(); modern != unsure {
		t.Errorf("modern: %v", modern)
	}
}

// A server that speaks neither era is probed again in the next conversation.
func TestModernProbeInVain(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	h := converse(t, b, protocol.V20260728)
	done := h.deliverLater(&call{"a"}, modernRequest("1", "tools/list", "", ""))
	for range 2 {
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, (<-s.heard).ID))
	}
	wait(t, done)
	if got := h.next(); !strings.Contains(string(got.m.Error), "cannot be initialized: what?") {
		t.Errorf("said %s", got.m.Raw)
	}
	if got := h.next(); got.closed == nil {
		t.Errorf("said %s", got.m.Raw)
	}
	if _, modern := b.speaks.get(); modern != unsure {
		t.Errorf("modern: %v", modern)
	}
}

// A server that ends at the probe gets a legacy initialize next time.
func TestModernProbeEnded(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	h := converse(t, b, protocol.V20260728)
	done := h.deliverLater(&call{"a"}, modernRequest("1", "tools/list", "", ""))
	<-s.heard
	h.deliver(&call{"b"}, modernRequest("2", "tools/list", "", ""))
	s.sink.Closed(errors.New("exit status 1"), true)
	if err := <-done; !errors.Is(err, errOver) {
		t.Errorf("got %v", err)
	}
	if got := h.next(); !strings.Contains(string(got.m.Error), "not delivered: exit status 1") {
		t.Errorf("said %s", got.m.Raw)
	}
	if got := h.next(); got.closed == nil {
		t.Errorf("said %s", got.m.Raw)
	}
	if _, modern := b.speaks.get(); modern != no {
		t.Errorf("modern: %v", modern)
	}
	s.refuse = errors.New("full")
	h = converse(t, New(s, quiet), protocol.V20260728)
	if err := h.conn.Deliver(backend.Inbound{Message: newRequest([]byte("1"), "tools/list", nil)}); !errors.Is(err, s.refuse) {
		t.Errorf("got %v", err)
	}
}

func TestLegacyProbe(t *testing.T) {
	t.Parallel()
	refusal := `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"what?"}}`
	for name, test := range map[string]struct {
		answers        []string // to initialize, then to server/discover
		said           string
		legacy, modern answer
	}{
		"legacy":  {[]string{`"result":` + facts}, `{"jsonrpc":"2.0","id":0,"result":` + facts + `}`, yes, unsure},
		"modern":  {[]string{`"error":{"code":-32601,"message":"what?"}`, `"result":` + discoverable, `"result":` + discoverable}, initializeResult, no, yes},
		"neither": {[]string{`"error":{"code":-32601,"message":"what?"}`, `"error":{"code":-1,"message":"no"}`}, refusal, unsure, unsure},
		"away":    {[]string{`"error":{"code":-32000,"message":"out of reach"}`}, `{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"out of reach"}}`, unsure, unsure},
		"named":   {[]string{`"error":{"code":-1,"message":"use 2026-07-28"}`, `"result":` + discoverable, `"result":` + discoverable}, initializeResult, no, yes},
		"ended":   {[]string{`"error":{"code":-32601,"message":"what?"}`, ""}, refusal, unsure, unsure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := unknown(t, never)
			h := converse(t, b, "")
			a := &call{"a"}
			h.deliver(a, initializeRequest)
			for _, answer := range test.answers {
				in := <-s.heard
				if answer == "" {
					s.sink.Closed(errors.New("exit status 1"), true)
					break
				}
				s.say(a, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, in.ID, answer))
			}
			h.expect(a, test.said)
			if name == "ended" {
				h.next()
			}
			if legacy, modern := b.speaks.get(); legacy != test.legacy || modern != test.modern {
				t.Errorf("legacy: %v, modern: %v", legacy, modern)
			}
			if name != "legacy" {
				return
			}
			text := `{"jsonrpc":"2.0","id":2,"method":"ping"}`
			h.deliver(a, text)
			s.hears(text)
			s.say(nil, text)
			h.expect(nil, text)
			later := converse(t, b, "")
			if later.conn.(*taskCaller).conn.(*scriptConn) == nil {
				t.Error("a later conversation is translated")
			}
		})
	}
}

// A server that accepts initialize but keeps no session is probed for its era, as a modern server can send its client
// requests and more notifications. If it is not modern, it counts as one without sessions, for all later conversations too.
func TestLegacyProbeSessionless(t *testing.T) {
	t.Parallel()
	plain := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`
	tasks := `{"protocolVersion":"2025-11-25","capabilities":{"tasks":{}},"serverInfo":{"name":"s","version":"1"}}`
	for name, test := range map[string]struct {
		answers []string // to initialize, then to server/discover
		said    string
		modern  bool
	}{
		"modern":   {[]string{`"result":` + plain, `"result":` + discoverable, `"result":` + discoverable}, initializeResult, true},
		"legacy":   {[]string{`"result":` + plain, `"error":{"code":-32601,"message":"what?"}`}, `{"jsonrpc":"2.0","id":0,"result":` + plain + `}`, false},
		"older":    {[]string{`"result":` + plain, `"result":{"supportedVersions":["2025-11-25"]}`}, `{"jsonrpc":"2.0","id":0,"result":` + plain + `}`, false},
		"ended":    {[]string{`"result":` + plain, ""}, `{"jsonrpc":"2.0","id":0,"result":` + plain + `}`, false},
		"silent":   {[]string{`"result":` + plain, "-"}, `{"jsonrpc":"2.0","id":0,"result":` + plain + `}`, false},
		"refusing": {[]string{`"error":{"code":-32000,"message":"m"}`}, `{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"m"}}`, false},
		// The server's legacy tasks are not those of the extension.
		"tasks": {[]string{`"result":` + tasks}, `{"jsonrpc":"2.0","id":0,"result":` + tasks + `}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patience := never
			if name == "silent" {
				patience = 10 * time.Millisecond
			}
			s, b := unknown(t, patience)
			s.sessionless = true
			h := converse(t, b, "")
			a := &call{"a"}
			h.deliver(a, initializeRequest)
			for _, answer := range test.answers {
				in := <-s.heard
				switch answer {
				case "":
					s.sink.Closed(errors.New("gone"), true)
				case "-":
				default:
					s.say(a, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, in.ID, answer))
				}
			}
			h.expect(a, test.said)
			s.untold()
			switch name {
			case "refusing":
				return
			case "ended":
				h.next()
			}
			later := converse(t, b, "").conn
			if _, ok := later.(*modernServer); ok != test.modern {
				t.Errorf("a later conversation is a %T", later)
			}
			if text := `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`; !test.modern {
				h.deliver(a, text)
				s.hears(text)
			}
		})
	}
}

// The answer to server/discover that comes after a server was taken for a legacy one is for no client.
func TestLegacyProbeLate(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"initialized": `"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`,
		"refused":     `"error":{"code":-32601,"message":"what?"}`,
	} {
		for _, of := range []*call{nil, {"a"}} {
			s, b := unknown(t, 10*time.Millisecond)
			s.sessionless = true
			h := converse(t, b, "")
			a := &call{"a"}
			h.deliver(a, initializeRequest)
			<-s.heard
			s.say(a, `{"jsonrpc":"2.0","id":0,`+answer+`}`)
			discover := <-s.heard
			h.expect(a, `{"jsonrpc":"2.0","id":0,`+answer+`}`)
			s.say(of, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, discover.ID, discoverable))
			s.say(of, `{"jsonrpc":"2.0","method":"notifications/x"}`)
			if said := h.next(); said.m.Method != "notifications/x" {
				t.Errorf("%s: said %s", name, said.m.Raw)
			}
		}
	}
}

// The late answers to server/discover are for no client either if the client has sent another initialize, after the first was refused.
func TestLegacyProbeLateTwice(t *testing.T) {
	t.Parallel()
	for _, of := range []*call{nil, {"a"}} {
		s, b := unknown(t, 10*time.Millisecond)
		h := converse(t, b, "")
		a := &call{"a"}
		var discovers []backend.Inbound
		for range 2 {
			h.deliver(a, initializeRequest)
			<-s.heard
			s.say(a, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"what?"}}`)
			discovers = append(discovers, <-s.heard)
			h.expect(a, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"what?"}}`)
		}
		for _, in := range discovers {
			s.say(of, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, discoverable))
		}
		s.say(of, `{"jsonrpc":"2.0","method":"notifications/x"}`)
		if said := h.next(); said.m.Method != "notifications/x" {
			t.Errorf("said %s", said.m.Raw)
		}
	}
}

func TestBothEras(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Both)
	if b := New(s, quiet); b != backend.Backend(s) {
		t.Error("wrapped")
	}
	s = newScript(t, backend.Legacy)
	b := New(s, quiet)
	if eras := b.(backend.EraSpeaker).Eras(); eras != backend.Both {
		t.Errorf("eras: %v", eras)
	}
	if b.(backend.ProcessStarter).Processes() {
		t.Error("processes")
	}
	if h := converse(t, b, ""); h.conn.(*taskCaller).conn.(*scriptConn) == nil {
		t.Error("a legacy conversation with a legacy server is translated")
	}
}

// A request waits for the server's era. If the server then answers it at once, the answer finds the client.
func TestModernProbeAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	for range 300 {
		s, b := unknown(t, never)
		s.answer = func(s *script, in backend.Inbound) bool {
			if in.Method == protocol.MethodDiscover {
				return false
			}
			s.say(in.Call.(*call), `{"jsonrpc":"2.0","id":`+string(in.ID)+`,"result":{}}`)
			return true
		}
		h := converse(t, b, protocol.V20260728)
		a := &call{"a"}
		first := h.deliverLater(a, modernRequest("0", "tools/list", "", ""))
		id := s.hears(probed)
		for i := range 20 {
			h.deliver(a, modernRequest(strconv.Itoa(i+1), "tools/list", "", ""))
		}
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, discoverable))
		wait(t, first)
		for range 21 {
			h.next()
		}
	}
}

// If a request comes during the probe, and the server then takes no more messages, the client gets an error.
func TestLegacyProbeNotTaken(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	asked, goOn := make(chan struct{}), make(chan struct{})
	s.answer = func(_ *script, in backend.Inbound) bool {
		if in.Method == protocol.MethodDiscover {
			close(asked)
			<-goOn
		}
		return false
	}
	h := converse(t, b, "")
	a := &call{"a"}
	h.deliver(a, initializeRequest)
	<-s.heard
	s.say(a, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"what?"}}`)
	<-asked
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	s.mu.Lock()
	s.refuse = errors.New("full")
	s.mu.Unlock()
	close(goOn)
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"ping was not delivered: full"}}`)
}

// A client may leave at the moment at which its server turns out to be modern.
func TestLegacyProbeClosed(t *testing.T) {
	t.Parallel()
	for range 500 {
		s, b := unknown(t, never)
		h := &holdfast{t: t, more: make(chan struct{})}
		conn, err := b.Open(t.Context(), backend.Start{}, h)
		if err != nil {
			t.Fatal(err)
		}
		h.conn = conn
		h.deliver(&call{"a"}, initializeRequest)
		<-s.heard
		s.say(nil, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"what?"}}`)
		id := (<-s.heard).ID
		closed := make(chan error, 1)
		go func() { closed <- conn.Close() }()
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, discoverable))
		wait(t, closed)
	}
}

// refusesFirst lets the server refuse the first message, which has come then, when the test closes refuse.
func (s *script) refusesFirst() (came, refuse chan struct{}) {
	came, refuse = make(chan struct{}), make(chan struct{})
	var first sync.Once
	s.takes = func() (err error) {
		first.Do(func() {
			close(came)
			<-refuse
			err = errors.New("not you")
		})
		return err
	}
	return came, refuse
}

// If the first client is refused, the next waiting request probes the server.
func TestModernProbeNext(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	came, refuse := s.refusesFirst()
	h := converse(t, b, protocol.V20260728)
	a := &call{"a"}
	refused := h.deliverLater(&call{"refused"}, modernRequest("1", "tools/list", "", ""))
	<-came
	h.deliver(a, modernRequest("2", "tools/list", "", ""))
	h.deliver(a, modernRequest("3", "tools/list", "", ""))
	close(refuse)
	if err := <-refused; err == nil || err.Error() != "not you" {
		t.Errorf("the first delivery: %v", err)
	}
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, s.hears(probed), discoverable))
	var heard []string // in any order
	for range 2 {
		heard = append(heard, string((<-s.heard).ID))
	}
	if slices.Sort(heard); !slices.Equal(heard, []string{"2", "3"}) {
		t.Errorf("heard %q", heard)
	}
}

// A request that is cancelled during the probe does not reach a modern server.
func TestModernProbeCancelled(t *testing.T) {
	t.Parallel()
	s, b := unknown(t, never)
	h := converse(t, b, protocol.V20260728)
	first := h.deliverLater(&call{"a"}, modernRequest("1", "tools/call", `"name":"x"`, ""))
	id := s.hears(probed)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, discoverable))
	wait(t, first)
	h.deliver(&call{"b"}, modernRequest("2", "tools/list", "", ""))
	s.hears(modernRequest("2", "tools/list", "", ""))
	s.untold()
}

// heard is a call that keeps the reason for a refusal.
type heard struct {
	call
	why error
}

func (h *heard) Refused(err error) { h.why = err }

// If the next request is refused, too, its call gets the reason before its client gets the error, for the HTTP status.
func TestModernProbeNextRefused(t *testing.T) {
	t.Parallel()
	s, _ := unknown(t, never)
	came, refuse := s.refusesFirst()
	h := converse(t, New(s, quiet), protocol.V20260728)
	refused := h.deliverLater(&call{"refused"}, modernRequest("1", "tools/list", "", ""))
	<-came
	next := &heard{}
	m := mcptest.Parse(modernRequest("2", "tools/list", "", ""))
	if err := h.conn.Deliver(backend.Inbound{Message: m, Call: next}); err != nil {
		t.Fatal(err)
	}
	why := errors.New("nor you")
	s.mu.Lock()
	s.refuse = why
	s.mu.Unlock()
	close(refuse)
	if err := <-refused; err == nil {
		t.Error("the first one is not refused")
	}
	h.expect(nil, `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"tools/list was not delivered: nor you"}}`)
	if !errors.Is(next.why, why) {
		t.Errorf("its call heard %v", next.why)
	}
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	third := h.deliverLater(&call{"a"}, modernRequest("3", "tools/list", "", "")) // the conversation's first request again
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, s.hears(probed), discoverable))
	wait(t, third)
	s.hears(modernRequest("3", "tools/list", "", ""))
}
