package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// under returns the client with an idempotency key in its requests.
func (p *peer) under(key string) *peer {
	q := *p
	q.header = http.Header{"Idempotency-Key": {fmt.Sprintf("%q", key)}}
	if of := p.header.Get("Authorization"); of != "" {
		q.header.Set("Authorization", of)
	}
	return &q
}

func (p *peer) callModern(name, arguments string) *wire {
	p.n.t.Helper()
	return p.modernOpen("tools/call", name, toolCall(name, arguments), `{"elicitation":{}}`)
}

// TestModernDrain sends modern requests to a node that is drained: another node serves them, once.
// The call that the node has begun goes on.
func TestModernDrain(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{KeepAlive: time.Second}})
	at := &peer{n: f.nodes[0].node}
	busy := at.callModern("hold", `{"key":"busy"}`)
	held := f.nodes[0].release(1)[0]
	var drained sync.WaitGroup
	drained.Go(func() {
		if err := f.nodes[0].drain(time.Minute); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	mcptest.Eventually(t, "the drain to begin", time.Minute, func() bool {
		r := at.callModern("steps", `{"key":"probe"}`).all()
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		return f.nodes[1].runs("probe") > 0
	})
	for i, r := range []reply{
		at.callModern("steps", `{"key":"k0"}`).all(),
		at.callModern("steps", `{"key":"k1","n":3,"pause":500}`).all(),
		at.under("key").callModern("steps", `{"key":"k2"}`).all(),
	} {
		if text := r.response(); r.status != 200 || !strings.Contains(text, `"done"`) || !strings.Contains(text, `"id":"c1"`) || f.nodes[1].runs(fmt.Sprint("k", i)) != 1 {
			t.Errorf("call %d: %d %s", i, r.status, r.body)
		}
	}
	asked := at.callModern("ask", `{}`).all()
	result := jsonrpc.Field([]byte(asked.response()), "result")
	retry := answering(result, jsonrpc.String(jsonrpc.Field(result, "requestState")))
	if r := at.modern("tools/call", "ask", `{"name":"ask","arguments":{},`+retry+`}`, `{"elicitation":{}}`); !strings.Contains(r.response(), "accept") {
		t.Errorf("asked %s, and then: %d %s", asked.body, r.status, r.body)
	}
	held.Result([]byte(`{"content":[{"type":"text","text":"stayed"}]}`))
	if r := busy.all(); !strings.Contains(r.response(), "stayed") || f.runs("busy") != 1 {
		t.Errorf("begun before: %d %s", r.status, r.body)
	}
	drained.Wait()
}

// TestModernDrainListen has a client that listens at a node that is drained. If there is another
// node, its connection is cut, so that it comes back there; else the listen ends with a result.
func TestModernDrainListen(t *testing.T) {
	t.Parallel()
	for nodes := 1; nodes <= 2; nodes++ {
		f := newFarm(t, nodes, config{server: server.Options{KeepAlive: time.Second}})
		at := &peer{n: f.nodes[0].node}
		w := at.modernOpen("subscriptions/listen", "", `{"notifications":{"toolsListChanged":true}}`, `{}`)
		w.message()
		began := time.Now()
		go func() { _ = f.nodes[0].drain(5 * time.Second) }()
		r := w.rest()
		if took := time.Since(began); took > 4*time.Second {
			t.Logf("it took %v", took) // on a busy machine
		}
		if ended := strings.Contains(r, `"resultType":"complete"`); ended != (nodes == 1) {
			t.Errorf("%d nodes: the listen ends with %q", nodes, r)
		}
	}
}

// rest reads the rest of a stream.
func (w *wire) rest() string {
	w.t.Helper()
	said := ""
	for {
		ev, err := w.next()
		if err != nil {
			return said
		}
		said += string(ev.Data)
	}
}

// TestModernDrainLost kills the node to which a drained one has forwarded a modern request: the
// tool runs once, and the client gets "outcome unknown".
func TestModernDrainLost(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 2, config{})
	at := &peer{n: f.nodes[0].node}
	keep := at.callModern("hold", `{"key":"busy"}`)
	held := f.nodes[0].release(1)[0]
	go func() { _ = f.nodes[0].drain(time.Minute) }()
	mcptest.Eventually(t, "the drain to begin", time.Minute, func() bool {
		_ = at.callModern("steps", `{"key":"probe"}`).all()
		return f.nodes[1].runs("probe") > 0
	})
	light := at.callModern("hold", `{"key":"light"}`)
	f.nodes[1].release(1)
	streamed := at.callModern("hold", `{"key":"streamed"}`)
	f.nodes[1].release(1)[0].Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
	streamed.head()
	f.nodes[1].kill()
	for what, w := range map[string]*wire{"light": light, "streamed": streamed} {
		r := w.all()
		if text := r.response(); !strings.Contains(text, fmt.Sprint(codeUnknown)) || !strings.Contains(text, `"id":"c1"`) || f.runs(what) != 1 {
			t.Errorf("%s: %d %q, %d runs", what, r.status, r.body, f.runs(what))
		}
	}
	held.Result([]byte(`{"content":[]}`))
	keep.all()
}

// TestModernOwnerLost is a client that comes back to another node for calls of a lost node: one that has
// ended is found, one that may have run gets "outcome unknown", and a retry-safe one runs again.
func TestModernOwnerLost(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 2, config{})
	at, other := &peer{n: f.nodes[0].node}, &peer{n: f.nodes[1].node}
	asked := at.callModern("ask", `{}`).all()
	result := jsonrpc.Field([]byte(asked.response()), "result")
	retry := answering(result, jsonrpc.String(jsonrpc.Field(result, "requestState")))
	if r := at.under("ended").callModern("steps", `{"key":"ended"}`).all(); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	at.under("unsafe").callModern("hold", `{"key":"unsafe"}`)
	at.under("safe").callModern("safe_hold", `{"key":"safe"}`)
	mcptest.Eventually(t, "the calls to run", time.Minute, func() bool { return f.runs("unsafe")+f.runs("safe") == 2 })
	f.nodes[0].kill()

	if r := other.modern("tools/call", "echo", `{"name":"echo","arguments":{"text":"plain"}}`, `{}`); r.status != 200 || !strings.Contains(string(r.body), "plain") {
		t.Errorf("another call: %d %s", r.status, r.body)
	}
	if r := other.modern("tools/call", "ask", `{"name":"ask","arguments":{},`+retry+`}`, `{"elicitation":{}}`); !strings.Contains(r.response(), fmt.Sprint(codeUnknown)) {
		t.Errorf("with input: %d %s", r.status, r.body)
	}
	if r := other.under("ended").callModern("steps", `{"key":"ended"}`).all(); !strings.Contains(r.response(), "done") || f.runs("ended") != 1 {
		t.Errorf("that has ended: %d %s, %d runs", r.status, r.body, f.runs("ended"))
	}
	if r := other.under("unsafe").callModern("hold", `{"key":"unsafe"}`).all(); !strings.Contains(r.response(), fmt.Sprint(codeUnknown)) || f.runs("unsafe") != 1 {
		t.Errorf("that may have run: %d %s, %d runs", r.status, r.body, f.runs("unsafe"))
	}
	again := other.under("safe").callModern("safe_hold", `{"key":"safe"}`)
	f.nodes[1].release(1)[0].Result([]byte(`{"content":[{"type":"text","text":"again"}]}`))
	if r := again.all(); !strings.Contains(r.response(), "again") || f.runs("safe") != 2 {
		t.Errorf("that is safe: %d %s, %d runs", r.status, r.body, f.runs("safe"))
	}
}
