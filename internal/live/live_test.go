package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(8) // the tests wait more than they work
	os.Exit(m.Run())
}

// begin reports a call to l, as a session does.
func begin(l *Live, name, tool string) *observe.Watch {
	w := &observe.Watch{Call: observe.Call{Session: name, Principal: "alice", ID: "1", Method: "tools/call", Tool: tool}}
	observe.Observers{l}.Begin(w, nil, nil)
	return w
}

func TestLifeOfCall(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	s := observe.Session{Name: "s", Principal: "alice"}
	l.Happened(observe.SessionBegan{Session: s})
	w := begin(l, "s", "count")
	w.Stored(7)
	first := &observe.Reader{Session: "s", Number: 7, Door: observe.DoorPost, Came: time.Now(), Call: &w.Call}
	w.Came(first)
	w.Append(7, observe.Appended{Seq: 1, Data: []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"total":3,"message":"<b>"}}`)})
	w.Append(7, observe.Appended{Seq: 2, Data: []byte(`{"jsonrpc":"2.0","id":"x","method":"elicitation/create","params":{}}`)})
	w.Happened(observe.ReaderWent{Reader: first, Seq: 2, Why: observe.Cut})
	second := &observe.Reader{Session: "s", Number: 7, Door: observe.DoorReplay, After: 2, Came: time.Now(), Call: &w.Call}
	w.Came(second)

	v := l.view("1")
	if len(v.Calls) != 1 || v.InFlight != 1 || v.Open != 1 || v.Life == nil {
		t.Fatalf("view: %+v", v)
	}
	c := v.Life
	if c.Tool != "count" || c.Principal != "alice" || c.Stream != 7 || c.State != "" || c.Progress != 1 || c.Total != 3 || c.Message != "<b>" {
		t.Errorf("call: %+v", c)
	}
	if len(c.Ticks) != 2 || c.Ticks[0].Kind != kindProgress || c.Ticks[1].Kind != kindRequest {
		t.Errorf("ticks: %+v", c.Ticks)
	}
	if len(c.Bars) != 2 || c.Bars[0].Why != "cut" || c.Bars[0].Seq != 2 || c.Bars[1].After != 2 || c.Bars[1].Went != 0 || c.Reading != 1 {
		t.Errorf("bars: %+v", c.Bars)
	}

	w.Append(7, observe.Appended{Seq: 3, Data: []byte(`{}`), Last: true})
	w.End(7, observe.Result, 0)
	w.Happened(observe.ReaderWent{Reader: second, Seq: 3, Why: observe.Finished})
	late := &observe.Reader{Session: "s", Number: 7, Door: observe.DoorURL, Came: time.Now()}
	l.Happened(observe.ReaderCame{Reader: late})
	l.Happened(observe.ReaderWent{Reader: late, Seq: 3, Why: observe.Finished})
	v = l.view("1")
	if c = v.Life; c.State != "result" || v.InFlight != 0 || len(c.Bars) != 3 || c.Ticks[2].Kind != kindResponse || c.Bars[2].Why != "finished" {
		t.Errorf("after the end: %+v", c)
	}
	l.Happened(observe.SessionEnded{Session: s})
	if v = l.view(""); v.Open != 0 || len(v.Sessions) != 0 || v.Life != nil {
		t.Errorf("after the session: %+v", v)
	}
}

func TestTakenOver(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	s := observe.Session{Name: "s"}
	l.Happened(observe.SessionBegan{Session: s})
	w := &observe.Watch{Call: observe.Call{Session: "s", Method: "tools/call", Again: true}}
	observe.Observers{l}.Begin(w, nil, nil)
	l.Happened(observe.TakenOver{Session: s, From: "n1", Again: 1})
	if v := l.view("1"); v.Life.From != "n1" || v.Sessions[0].From != "n1" {
		t.Errorf("taken over: %+v", v)
	}
	w.Leave(0)
	if v := l.view("1"); v.Life.State != "left" || v.InFlight != 0 {
		t.Errorf("left: %+v", v.Life)
	}
}

// The kept data is bounded, whatever happens. Dropped data is counted.
func TestBounds(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	var calls []*observe.Watch
	for i := range 2 * mostInFlight {
		name := fmt.Sprint("s", i)
		l.Happened(observe.SessionBegan{Session: observe.Session{Name: name}})
		calls = append(calls, begin(l, name, strings.Repeat("x", 9*mostText)))
		calls[i].Stored(1)
	}
	w := calls[0]
	for i := range 5 * mostTicks {
		w.Append(1, observe.Appended{Seq: uint64(i + 1), Data: []byte(`{"method":"notifications/message"}`)})
	}
	for range 3 * mostBars {
		r := &observe.Reader{Session: "s0", Number: 1, Door: observe.DoorReplay, Call: &w.Call}
		w.Came(r)
		w.Happened(observe.ReaderWent{Reader: r, Why: observe.Cut})
	}
	v := l.view("1")
	if v.InFlight != 2*mostInFlight || v.More != mostInFlight || len(v.Calls) != mostInFlight || v.Open != 2*mostInFlight || len(v.Sessions) != mostSessions {
		t.Errorf("in flight %d, more %d, calls %d, open %d, sessions %d", v.InFlight, v.More, len(v.Calls), v.Open, len(v.Sessions))
	}
	if n := len(v.Calls[0].Tool); n > mostText+3 {
		t.Errorf("a name has %d bytes", n)
	}
	if c := v.Life; len(c.Ticks) > mostTicks || len(c.Ticks)+c.Hidden != 5*mostTicks || len(c.Bars) != mostBars || c.BarsGone != 2*mostBars {
		t.Errorf("ticks %d, hidden %d, bars %d, gone %d", len(c.Ticks), c.Hidden, len(c.Bars), c.BarsGone)
	}
	for _, w := range calls {
		w.End(1, observe.Result, 0)
	}
	if v = l.view(""); v.InFlight != 0 || v.More != 0 || len(v.Calls) != mostEnded {
		t.Errorf("after the end: in flight %d, more %d, calls %d", v.InFlight, v.More, len(v.Calls))
	}
	for range 2 * mostLight {
		begin(l, "s", "t").End(0, observe.Result, 0)
	}
	if v = l.view(""); len(v.Calls) != mostEnded+mostLight {
		t.Errorf("light calls drove others out: %d calls", len(v.Calls))
	}
}

// serve serves the page of l.
func serve(t *testing.T, l *Live, from Source) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	l.Register(mux, from)
	s := httptest.NewUnstartedServer(mux)
	s.Config.WriteTimeout = 500 * time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(l.Close)
	return s
}

// do sends a request, with headers in pairs, and returns the answer's status and headers.
func do(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	r := mcptest.Must(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Header}
}

// answer has the parts of an answer that the tests check.
type answer struct {
	StatusCode int
	Header     http.Header
}

func TestGuard(t *testing.T) {
	t.Parallel()
	s := serve(t, New(Options{Hosts: []string{"ops.example"}}), Source{})
	for _, path := range []string{"/", "/live/page.js", "/live/page.css", "/live/events"} {
		resp := do(t, "GET", s.URL+path, "")
		csp := resp.Header.Get("Content-Security-Policy")
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(csp, "default-src 'none'; script-src 'self';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %d, policy %q", path, resp.StatusCode, csp)
		}
		for _, bad := range [][2]string{{"Host", "evil.example"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
			if resp := do(t, "GET", s.URL+path, "", bad[0], bad[1]); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %v: %d", path, bad, resp.StatusCode)
			}
		}
		if resp := do(t, "GET", s.URL+path, "", "Host", "OPS.example:9090"); resp.StatusCode != http.StatusOK {
			t.Errorf("%s with an allowed name: %d", path, resp.StatusCode)
		}
	}
	if resp := do(t, "GET", s.URL+"/live/events", "", "Sec-Fetch-Site", "cross-site"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("events for another site: %d", resp.StatusCode)
	}
	if resp := do(t, "GET", s.URL+"/nothing", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %d", resp.StatusCode)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	var done []string
	on := func(name string) func(string, string, string, uint64) error {
		return func(session, _, principal string, number uint64) error {
			done = append(done, fmt.Sprint(name, " ", session, " ", principal, " ", number))
			return nil
		}
	}
	l := New(Options{Token: "secret"})
	s := serve(t, l, Source{Actions: Actions{
		Cancel: func(session, _, principal, id string) error {
			done = append(done, fmt.Sprint("cancel ", session, " ", principal, " ", id))
			return nil
		}, Cut: on("cut"),
		End: func(session, _, _ string) error { return errors.New("not " + session) },
	}})
	l.Happened(observe.SessionBegan{Session: observe.Session{Name: "s"}})
	begin(l, "s", "t").Stored(3)
	for _, bad := range []struct {
		status  int
		body    string
		headers []string
	}{
		{403, `{"action":"cancel","call":":1"}`, []string{"Content-Type", "application/json"}},
		{403, `{"action":"cancel","call":":1"}`, []string{"Content-Type", "application/json", HeaderToken, "secrets"}},
		{403, `{"action":"cancel","call":":1"}`, []string{"Content-Type", "application/json", HeaderToken, "secret", "Origin", "https://evil.example"}},
		{403, `{"action":"cancel","call":":1"}`, []string{"Content-Type", "application/json", HeaderToken, "secret", "Sec-Fetch-Site", "same-site"}},
		{415, `{"action":"cancel","call":":1"}`, []string{"Content-Type", "text/plain", HeaderToken, "secret"}},
		{400, `{`, []string{"Content-Type", "application/json", HeaderToken, "secret"}},
		{400, `{"action":"` + strings.Repeat("x", mostBody) + `"}`, []string{"Content-Type", "application/json", HeaderToken, "secret"}},
		{409, `{"action":"cancel","call":":2"}`, []string{"Content-Type", "application/json", HeaderToken, "secret"}},
		{409, `{"action":"end","session":"s"}`, []string{"Content-Type", "application/json", HeaderToken, "secret"}},
		{409, `{"action":"drain"}`, []string{"Content-Type", "application/json", HeaderToken, "secret"}},
	} {
		if resp := do(t, "POST", s.URL+"/live/action", bad.body, bad.headers...); resp.StatusCode != bad.status {
			t.Errorf("%s with %v: %d, not %d", bad.body, bad.headers, resp.StatusCode, bad.status)
		}
	}
	if resp := do(t, "GET", s.URL+"/live/action", "", HeaderToken, "secret"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
	if len(done) > 0 {
		t.Fatalf("done: %q", done)
	}
	for _, name := range []string{"cut", "cancel"} {
		resp := do(t, "POST", s.URL+"/live/action", `{"action":"`+name+`","call":":1"}`, "Content-Type", "application/json", HeaderToken, "secret", "Origin", s.URL)
		if resp.StatusCode != http.StatusNoContent {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	if len(done) != 2 || done[0] != "cut s alice 3" || done[1] != "cancel s alice 1" {
		t.Errorf("done: %q", done)
	}
}

// Without a token no action is allowed, also not with an empty token.
func TestNoToken(t *testing.T) {
	t.Parallel()
	s := serve(t, New(Options{}), Source{Actions: Actions{Drain: func() { t.Error("drained") }}})
	resp := do(t, "POST", s.URL+"/live/action", `{"action":"drain"}`, "Content-Type", "application/json", HeaderToken, "")
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// The stream of events outlives the server's WriteTimeout, and ends with the page.
func TestEvents(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	s := serve(t, l, Source{Nodes: func() (string, []Node) { return "n1", []Node{{Name: "n2"}} }, Ready: func() error { return errors.New("draining") }})
	resp, err := http.Get(s.URL + "/live/events?call=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	d := &events{t: t, resp: resp}
	if v := d.next(); v.Node != "n1" || len(v.Nodes) != 1 || v.Nodes[0].Ready != "draining" || len(v.Calls) != 0 {
		t.Errorf("first: %+v", v)
	}
	began := time.Now()
	for time.Since(began) < 800*time.Millisecond { // longer than the server's WriteTimeout
		l.change()
		d.next()
	}
	begin(l, "s", "</script><img src=x>")
	for {
		if v := d.next(); v.Life != nil {
			if v.Life.Tool != "</script><img src=x>" {
				t.Errorf("tool %q", v.Life.Tool)
			}
			break
		}
	}
	l.Close()
	for d.read() {
	}
}

// events reads a stream of events.
type events struct {
	t    *testing.T
	resp *http.Response
	rest string
}

// read reads one more event, and reports whether there was one.
func (d *events) read() bool {
	buf := make([]byte, 64<<10)
	n, err := d.resp.Body.Read(buf)
	d.rest += string(buf[:n])
	return err == nil
}

func (d *events) next() (v view) {
	d.t.Helper()
	for {
		if one, rest, ok := strings.Cut(d.rest, "\n\n"); ok {
			d.rest = rest
			if strings.Contains(one, "<") {
				d.t.Errorf("HTML in an event: %s", one)
			}
			mcptest.Check(d.t, json.Unmarshal([]byte(strings.TrimPrefix(one, "data: ")), &v))
			return v
		}
		if !d.read() {
			d.t.Fatal("the stream has ended")
		}
	}
}
