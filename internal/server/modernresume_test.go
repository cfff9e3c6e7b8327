package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// comesBack are the capabilities of a client that resumes modern calls.
const comesBack = `{"extensions":{"holdfast/resumableRequests":{}}}`

// begun makes a modern call that can be resumed, and returns its token.
func (p *peer) begun(tool, arguments string) (*wire, string) {
	p.n.t.Helper()
	w := p.modernOpen("tools/call", tool, toolCall(tool, arguments), comesBack)
	return w, w.token()
}

// comes resumes such a call.
func (p *peer) comes(token, capabilities string, extra ...string) *wire {
	p.n.t.Helper()
	return p.modernOpen("requests/resume", "", fmt.Sprintf(`{"resumeToken":%q}`, token), capabilities, extra...)
}

// A modern call goes on when its connection is cut, if its client can resume it.
func TestModernResume(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	w, token := p.begun("hold", `{"key":"k"}`)
	held := n.release(1)[0]
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
	first := w.message()
	if first.ID == "" {
		t.Errorf("no event id: %s", first.Data)
	}
	_ = w.c.Close()
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":2}`))
	w = p.comes(token, comesBack, "Last-Event-ID: "+first.ID)
	if again := w.token(); again != token {
		t.Errorf("another token: %s and %s", again, token)
	}
	if ev := w.message(); !strings.Contains(string(ev.Data), `"progress":2`) {
		t.Errorf("after the first: %s", ev.Data)
	}
	held.Result(result("whole"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "whole") || !strings.Contains(string(ev.Data), `"id":"c1"`) {
		t.Errorf("at the end: %s", ev.Data)
	}
	if r := p.comes(token, comesBack).all(); !strings.Contains(string(r.body), `"progress":1`) || !strings.Contains(string(r.body), "whole") {
		t.Errorf("after the end: %d %s", r.status, r.body)
	}
	if n.runs("k") != 1 {
		t.Errorf("%d runs", n.runs("k"))
	}
}

// A call with a token is resumed and cancelled by its token, and only by its principal.
func TestModernResumeRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: func(r *http.Request) string { return r.Header.Get("Who") }}})
	me, you := &peer{n: n, header: http.Header{"Who": {"me"}}}, &peer{n: n, header: http.Header{"Who": {"you"}}}
	w, token := me.begun("hold", `{}`)
	n.release(1)
	for what, r := range map[string]reply{
		"another principal": you.comes(token, comesBack).all(),
		"another token":     me.comes(token[:20]+"AAAA"+token[24:], comesBack).all(),
	} {
		if m := told(t, r); r.status != http.StatusOK || m.Error == nil || m.Error.Code != codeParams {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	if r := me.comes(token, `{}`).all(); told(t, r).Error.Code != -32021 {
		t.Errorf("without the extension: %d %s", r.status, r.body)
	}
	cancel := func(p *peer, token string) {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1","_meta":{"holdfast/resumeToken":%q}}}`, token)
		if r := p.open("POST", "/mcp", body, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: notifications/cancelled").all(); r.status != http.StatusAccepted {
			t.Errorf("cancelled: %d %s", r.status, r.body)
		}
	}
	cancel(you, token)
	if n.sessions.Calls() != 1 {
		t.Error("another principal has cancelled the call")
	}
	cancel(me, token)
	m, err := jsonrpc.Parse(w.message().Data)
	if err != nil || m.Error == nil || n.sessions.Calls() != 0 {
		t.Errorf("%s, %v, and %d calls in flight", m.Raw, err, n.sessions.Calls())
	}
}

// A call without the extension is cancelled when its connection is cut, and gets no resume policy.
func TestModernNotResumed(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	w := p.modernOpen("tools/call", "hold", `{"name":"hold","arguments":{}}`, `{}`)
	held := n.release(1)[0]
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
	if ev := w.message(); ev.ID != "" || strings.Contains(string(ev.Data), "resumePolicy") {
		t.Errorf("said: %+v", ev)
	}
	_ = w.c.Close()
	mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return n.sessions.Calls() == 0 })
}

// An endpoint that offers extensions adds this one to the result of server/discover, also for a client without it.
func TestModernResumeOffered(t *testing.T) {
	t.Parallel()
	discovered := message.HandlerFunc(func(x *message.Exchange) { x.Result([]byte(`{"capabilities":{}}`)) })
	n := newNode(t, config{tasks: time.Hour, backend: message.New(discovered)}) // tasks: it offers extensions
	if r := (&peer{n: n}).modern("server/discover", "", `{}`, `{}`); !strings.Contains(string(r.body), `"holdfast/resumableRequests":{}`) {
		t.Errorf("discover: %d %s", r.status, r.body)
	}
}

// A call can be resumed on any node, also after its own is lost.
func TestModernResumeOnAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	at := func(i int) *peer { return &peer{n: f.nodes[i].node} }
	w, token := at(0).begun("hold", `{"key":"k"}`)
	held := f.nodes[0].release(1)[0]
	_ = w.c.Close()
	w = at(1).comes(token, comesBack)
	w.token()
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
	if ev := w.message(); !strings.Contains(string(ev.Data), `"progress":1`) {
		t.Errorf("on another node: %s", ev.Data)
	}
	_ = w.c.Close()
	f.nodes[0].kill()
	if r := at(2).comes(token, comesBack).all(); !strings.Contains(string(r.body), "outcome unknown") || f.runs("k") != 1 {
		t.Errorf("after its node was lost: %d %s, %d runs", r.status, r.body, f.runs("k"))
	}
}

// A question of a resumed call is answered as any other, on any node. The retry is bound to the
// call, and to its principal.
func TestModernResumeAsks(t *testing.T) {
	t.Parallel()
	const asksToo = `{"elicitation":{},"extensions":{"holdfast/resumableRequests":{}}}`
	who := func(r *http.Request) string { return r.Header.Get("Who") }
	f := newFarm(t, 2, config{server: server.Options{Principal: who}})
	at, other := &peer{n: f.nodes[0].node, header: http.Header{"Who": {"me"}}}, &peer{n: f.nodes[1].node, header: http.Header{"Who": {"me"}}}
	you := &peer{n: f.nodes[0].node, header: http.Header{"Who": {"you"}}}
	for _, when := range []string{"before", "after"} {
		params := fmt.Sprintf(`{"name":"hold","arguments":{"key":%q}`, when)
		w := at.modernOpen("tools/call", "hold", params+`}`, asksToo)
		token := w.token()
		held := f.nodes[0].release(1)[0]
		if when == "after" {
			f.nodes[0].ask(held, "?")
		}
		_ = w.c.Close()
		if when == "before" {
			f.nodes[0].ask(held, "?")
		}
		asked := jsonrpc.Field([]byte(other.comes(token, asksToo).all().response()), "result")
		state := jsonrpc.String(jsonrpc.Field(asked, "requestState"))
		for what, wrong := range map[string]reply{
			"bound to a request": other.modern("tools/call", "hold", params+`,`+answering(asked, strings.TrimSuffix(state, ".free"))+`}`, asksToo),
			"of another":         you.modern("tools/call", "hold", params+`,`+answering(asked, state)+`}`, asksToo),
		} {
			if m := told(t, wrong); m.Error == nil || m.Error.Code != codeParams {
				t.Errorf("%s the question, %s: %d %s", when, what, wrong.status, wrong.body)
			}
		}
		if r := other.modern("tools/call", "hold", params+`,`+answering(asked, state)+`}`, asksToo); !strings.Contains(r.response(), "accept") || f.runs(when) != 1 {
			t.Fatalf("%s the question: asked %s, and then %d %s, %d runs", when, asked, r.status, r.body, f.runs(when))
		}
	}

	const safe = `{"name":"safe_hold","arguments":{"key":"safe"}`
	w := at.modernOpen("tools/call", "safe_hold", safe+`}`, asksToo)
	token := w.token()
	held := f.nodes[0].release(1)[0]
	_ = w.c.Close()
	f.nodes[0].ask(held, "?")
	asked := jsonrpc.Field([]byte(other.comes(token, asksToo).all().response()), "result")
	f.nodes[0].kill()
	w = other.modernOpen("tools/call", "safe_hold", safe+`,`+answering(asked, jsonrpc.String(jsonrpc.Field(asked, "requestState")))+`}`, asksToo)
	f.nodes[1].release(1)[0].Result(result("again")) // the call is retry-safe and had no answer yet, so it runs again
	if r := w.all(); !strings.Contains(r.response(), "again") || f.runs("safe") != 2 {
		t.Errorf("after its node was lost: %d %s, %d runs", r.status, r.body, f.runs("safe"))
	}
}

// A client can't change a requestState that is bound to its request into one that is not.
func TestModernStateStaysBound(t *testing.T) {
	t.Parallel()
	p := &peer{n: newNode(t, config{})}
	asked := jsonrpc.Field([]byte(p.callModern("ask", `{}`).all().response()), "result")
	retry := answering(asked, jsonrpc.String(jsonrpc.Field(asked, "requestState"))+".free")
	if r := p.modern("tools/call", "ask", `{"name":"ask","arguments":{"other":1},`+retry+`}`, `{"elicitation":{}}`); told(t, r).Error == nil {
		t.Errorf("another request: %d %s", r.status, r.body)
	}
}
