package live

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
)

// nodes are nodes that know each other, each with a page.
type nodes struct {
	t       *testing.T
	mu      sync.Mutex
	state   map[string]NodeState
	servers map[string]*httptest.Server
	pages   map[string]*Live
	acted   []string
}

func newNodes(t *testing.T, names ...string) *nodes {
	t.Helper()
	f := &nodes{t: t, state: make(map[string]NodeState), servers: make(map[string]*httptest.Server), pages: make(map[string]*Live)}
	t.Cleanup(f.close)
	for _, name := range names {
		f.add(name, New(Options{Token: "secret of " + name}), "")
	}
	return f
}

// add adds a node. Its page is nil if it is of an older build.
func (f *nodes) add(name string, l *Live, role string) {
	var peers http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	if l != nil {
		peers = l.Peers()
		acted := func(action string) func(string, string, string, uint64) error {
			return func(session, _, principal string, number uint64) error {
				if number == 99 {
					return errors.New("not this one")
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				f.acted = append(f.acted, fmt.Sprint(name, " ", action, " ", session, " ", principal, " ", number))
				return nil
			}
		}
		l.Register(http.NewServeMux(), Source{
			Role: role,
			Nodes: func() (string, []Node) {
				f.mu.Lock()
				defer f.mu.Unlock()
				var others []Node
				for other, state := range f.state {
					if other != name {
						others = append(others, Node{Name: other, State: state})
					}
				}
				return name, others
			},
			Ask: func(r *http.Request) (*http.Response, error) {
				f.mu.Lock()
				s := f.servers[r.URL.Host]
				f.mu.Unlock()
				r.URL.Host = strings.TrimPrefix(s.URL, "http://")
				return http.DefaultTransport.RoundTrip(r)
			},
			Actions: Actions{
				Cancel: func(session, _, principal, _ string) error { return acted("cancel")(session, "", principal, 1) },
				Cut:    acted("cut"),
				End:    func(session, _, principal string) error { return acted("end")(session, "", principal, 0) },
				Drain:  func() { _ = acted("drain")("", "", "", 0) },
			},
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers[name], f.pages[name], f.state[name] = httptest.NewServer(peers), l, NodeAlive
}

// close ends all nodes.
func (f *nodes) close() {
	for _, l := range f.pages {
		if l != nil {
			l.Close()
		}
	}
	for _, s := range f.servers {
		s.Close()
	}
}

func (f *nodes) become(name string, s NodeState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state[name] = s
	if s >= NodeLost {
		f.servers[name].CloseClientConnections()
	}
}

// page is an open page of a node.
type page struct {
	t    *testing.T
	l    *Live
	held holding
}

func (f *nodes) open(name string) *page {
	p := &page{t: f.t, l: f.pages[name]}
	done := p.l.watchOthers()
	f.t.Cleanup(func() {
		p.l.keep(&p.held, nil, "")
		done()
	})
	return p
}

// until returns the first view for which ok is true.
func (p *page) until(what, chosen string, ok func(*view) bool) *view {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		v := p.l.view(chosen)
		p.l.keep(&p.held, v.parts, v.Node)
		if ok(&v) {
			return &v
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %+v", what, v)
		}
	}
}

// node returns a view's entry for a node.
func (v *view) node(name string) (n nodeView) {
	for _, one := range v.Nodes {
		if one.Name == name {
			n = one
		}
	}
	return n
}

// A call runs at a node, the node is lost, and another node continues the call to its end. A page of a
// third node shows this, with the call's life in one picture.
func TestCallMoves(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "b", "c")
	s := observe.Session{Name: "s", Principal: "alice"}
	f.pages["a"].Happened(observe.SessionBegan{Session: s})
	w := begin(f.pages["a"], "s", "count")
	w.Stored(7)
	w.Came(&observe.Reader{Session: "s", Number: 7, Came: time.Now(), Call: &w.Call})
	w.Append(7, observe.Appended{Seq: 1, Data: []byte(`{"method":"notifications/message"}`)})
	w.Append(7, observe.Appended{Seq: 2, Data: []byte(`{"method":"notifications/message"}`)})

	p := f.open("c")
	p.until("the call is shown", "", func(v *view) bool { return len(v.Calls) == 1 })
	v := p.until("its life is shown", "a:1", func(v *view) bool { return v.Life != nil && len(v.Life.Ticks) == 2 })
	if c := v.Calls[0]; c.Node != "a" || c.State != "" || c.UID != "a:1" || c.Reading != 1 || v.InFlight != 1 || v.Open != 1 || len(v.Sessions) != 1 || v.Sessions[0].Node != "a" {
		t.Errorf("at a: %+v", v)
	}
	f.become("a", NodeLost)
	v = p.until("the node is lost", "a:1", func(v *view) bool { return v.Calls[0].State == stateLost })
	if n := v.node("a"); len(v.Calls) != 1 || n.State != stateLost || v.InFlight != 0 || v.Open != 0 || v.Sessions[0].State != stateLost || v.Life.Bars[0].Why != whyLost {
		t.Errorf("lost: %+v, life %+v", v, v.Life)
	}

	b := f.pages["b"]
	b.Happened(observe.SessionBegan{Session: s})
	again := &observe.Watch{Call: observe.Call{Session: "s", Principal: "alice", ID: "1", Method: "tools/call", Tool: "count", Again: true}}
	observe.Observers{b}.Begin(again, nil, nil)
	again.Stored(7)
	b.Happened(observe.TakenOver{Session: s, From: "a", Again: 1})
	again.Append(7, observe.Appended{Seq: 3, Data: []byte(`{"method":"notifications/message"}`)})
	v = p.until("the call goes on", "a:1", func(v *view) bool { return v.Life != nil && v.Life.Node == "b" && len(v.Life.Ticks) == 3 })
	if c := v.Calls[0]; len(v.Calls) != 1 || c.Node != "b" || c.From != "a" || c.State != "" || v.InFlight != 1 || len(v.Sessions) != 1 || v.Sessions[0].Node != "b" {
		t.Errorf("taken over: %+v", v)
	}
	if m := v.Life.Moves; len(m) != 1 || m[0].From != "a" || m[0].To != "b" || m[0].First != 3 || m[0].Unknown {
		t.Errorf("moves: %+v", v.Life.Moves)
	}
	again.Append(7, observe.Appended{Seq: 4, Data: []byte(`{}`), Last: true})
	again.End(7, observe.Result, 0)
	v = p.until("the call has ended", v.Calls[0].UID, func(v *view) bool { return v.Calls[0].State != "" })
	if c := v.Calls[0]; len(v.Calls) != 1 || c.State != "result" || v.InFlight != 0 || v.Life == nil {
		t.Errorf("ended: %+v", v)
	}
	for i := range 2 * mostEnded { // enough to push the call out
		other := begin(b, "s", "count")
		other.Stored(uint64(8 + i))
		other.End(uint64(8+i), observe.Error, 0)
	}
	p.until("the call is not kept any more, on the lost node neither", "", func(v *view) bool {
		for _, c := range v.Calls {
			if c.State == stateLost || c.State == "result" {
				return false
			}
		}
		return len(v.Calls) == mostEnded
	})
}

// Similar calls of different principals or servers stay apart.
func TestCallsStayApart(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "b")
	for i, who := range []string{"alice", "bob", "alice bob"} {
		for _, at := range []string{"a", "b"} {
			w := &observe.Watch{Call: observe.Call{Session: "s", Principal: who, Server: fmt.Sprint(i), ID: "1", Again: at == "b"}}
			observe.Observers{f.pages[at]}.Begin(w, nil, nil)
		}
	}
	v := f.open("b").until("all are folded", "", func(v *view) bool {
		return len(v.Calls) == 3 && v.Calls[0].From+v.Calls[1].From+v.Calls[2].From == "aaa"
	})
	if v.InFlight != 3 {
		t.Errorf("in flight: %d", v.InFlight)
	}
	one := func(server, principal, session, id string) string {
		return keyOf(&observe.Call{Server: server, Principal: principal, Session: session, ID: id})
	}
	if one("", "a", "b", "1") == one("a", "", "b", "1") || one("", `a" "b`, "", "") == one("", "a", "b", "") || one("", "", "", "1") == one("", "", "", `"1"`) {
		t.Error("two calls have one key")
	}
}

// The page does not show a call as running if its node does not answer.
func TestNodesThatDoNotTell(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "c")
	f.add("old", nil, "")
	f.add("door", New(Options{}), "door")
	begin(f.pages["a"], "s", "count").Stored(1)
	p := f.open("c")
	v := p.until("nodes have answered", "", func(v *view) bool {
		return v.node("a").State == stateOK && v.node("door").State == stateOK && v.node("old").State == stateNothing
	})
	if v.node("door").Role != "door" || v.node("old").Why != refusedOld || v.Unheard != 1 || v.InFlight != 1 || v.node("c").Self != true {
		t.Errorf("nodes: %+v", v.Nodes)
	}
	f.mu.Lock()
	f.servers["a"].Config.Handler = http.NotFoundHandler() // the node does not answer any more
	f.mu.Unlock()
	f.servers["a"].CloseClientConnections()
	p.l.others.mu.Lock()
	p.l.others.nodes["a"].heard = time.Now().Add(-silentAfter)
	p.l.others.mu.Unlock()
	v = p.l.viewOf("")
	if n := v.node("a"); n.State == stateOK || v.InFlight != 0 || v.Unheard != 2 {
		t.Errorf("silent: %+v", v)
	}
	for _, c := range v.Calls {
		if c.State == "" {
			t.Errorf("shown as if it ran: %+v", c)
		}
	}
}

func (l *Live) viewOf(chosen string) *view {
	v := l.view(chosen)
	return &v
}

// A node that could not tell the life of a call, as too many nodes asked, is asked again.
func TestLifeAskedAgain(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "c")
	w := begin(f.pages["a"], "s", "count")
	w.Stored(7)
	w.Append(7, observe.Appended{Seq: 1, Data: []byte(`{"method":"notifications/message"}`)})
	tells := f.servers["a"].Config.Handler
	var asked atomic.Int32
	f.servers["a"].Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == pathLife && asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		tells.ServeHTTP(w, r)
	})
	f.open("c").until("the life is shown", "a:1", func(v *view) bool { return v.Life != nil && len(v.Life.Ticks) == 1 })
	if n := asked.Load(); n != 2 {
		t.Errorf("the node was asked %d times", n)
	}
}

// While no page is open, the node asks no other node.
func TestNobodyIsAsked(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "c")
	if v := f.pages["c"].view(""); len(v.Nodes) != 1 || f.pages["a"].requests.Load() != 0 {
		t.Errorf("asked: %+v", v.Nodes)
	}
	o := &f.pages["c"].others
	done := f.pages["c"].watchOthers()
	(&page{t: t, l: f.pages["c"]}).until("a tells", "", func(v *view) bool { return v.node("a").State == stateOK })
	done()
	o.mu.Lock()
	o.idle = time.Now().Add(-lingerFor)
	o.mu.Unlock()
	mcptest.Eventually(t, "what a page shows", 30*time.Second, func() bool { return f.pages["a"].requests.Load() == 0 })
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stop != nil || o.nodes != nil {
		t.Error("still watched")
	}
}

// The page's node checks the token, and the call's node carries the action out.
func TestActionsElsewhere(t *testing.T) {
	t.Parallel()
	f := newNodes(t, "a", "c")
	begin(f.pages["a"], "s", "count").Stored(3)
	begin(f.pages["a"], "s", "count").Stored(99)
	f.pages["a"].Happened(observe.SessionBegan{Session: observe.Session{Name: "s", Principal: "alice"}})
	mux := http.NewServeMux()
	c := f.pages["c"]
	c.Register(mux, *c.from())
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	f.open("c").until("the calls are shown", "", func(v *view) bool { return len(v.Calls) == 2 && len(v.Sessions) == 1 })
	for _, one := range []struct {
		token, body string
		status      int
	}{
		{"secret of a", `{"action":"cancel","call":"a:1"}`, 403},
		{"secret of c", `{"action":"cancel","call":"a:1"}`, 204},
		{"secret of c", `{"action":"cut","call":"a:1"}`, 204},
		{"secret of c", `{"action":"cut","call":"a:2"}`, 409},
		{"secret of c", `{"action":"cut","call":"c:1"}`, 409},
		{"secret of c", `{"action":"cut","call":"nobody:1"}`, 409},
		{"secret of c", `{"action":"end","node":"a","session":"s"}`, 204},
		{"secret of c", `{"action":"end","session":"s"}`, 409},
		{"secret of c", `{"action":"drain","node":"a"}`, 204},
	} {
		if resp := do(t, "POST", s.URL+"/live/action", one.body, "Content-Type", "application/json", HeaderToken, one.token); resp.StatusCode != one.status {
			t.Errorf("%s: %d, not %d", one.body, resp.StatusCode, one.status)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.acted, "; "); got != "a cancel s alice 1; a cut s alice 3; a end s alice 0; a drain   0" {
		t.Errorf("done: %s", got)
	}
}
