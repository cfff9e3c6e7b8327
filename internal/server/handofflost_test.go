package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A modern client that resumes a call by its token after the hand-off gets the handle, each time.
func TestHandOffModernResume(t *testing.T) {
	t.Parallel()
	n := newNode(t, handOffs())
	p := &peer{n: n}
	w, token := p.begun("safe_hold", `{"key":"k"}`)
	held := n.release(1)[0]
	_ = w.c.Close()
	var handles []string
	for range 2 {
		handles = append(handles, tellOf(t, mcptest.Parse(p.comes(token, comesBack).all().response())).Handle)
	}
	held.Result(result("whole"))
	h := &modernHost{peer: p}
	if end := waitFor(t, h, handles[0], handofftext.Completed); end.text != "whole" || handles[1] != handles[0] {
		t.Errorf("handles %q, and at the end %s", handles, end.raw.Raw)
	}
	if is := tellOf(t, mcptest.Parse(p.comes(token, comesBack).all().response())); is.Handle != handles[0] {
		t.Errorf("after the end: %s", is.raw.Raw)
	}
	if n.runs("k") != 1 {
		t.Errorf("%d runs", n.runs("k"))
	}
}

// ask sends a question to the client of a held call. The answer ends the call.
func (n *node) ask(held *message.Exchange, text string) {
	n.script.mu.Lock()
	n.script.held = append(n.script.held, held)
	n.script.mu.Unlock()
	held.Request([]byte(`"q"`), "elicitation/create", fmt.Appendf(nil, `{"message":%q}`, text))
}

// The node of calls that were handed off is lost while they wait for an answer. The calls are
// retry-safe: they run again, and send a new question. An answer to the lost question does nothing.
func TestHandOffAsksNodeLost(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 2, handOffs())
	legacy := &posting{peer: f.nodes[0].connect("2025-11-25", nil)}
	modern := &modernHost{peer: &peer{n: f.nodes[0].node}, capabilities: `{"elicitation":{}}`}
	of := handOff(t, legacy, "safe_hold", `{"key":"legacy"}`)
	held := f.nodes[0].release(1)[0]
	ofModern := handOff(t, modern, "safe_hold", `{"key":"modern"}`)
	heldModern := f.nodes[0].release(1)[0]
	f.nodes[0].ask(held, "one")
	lost := legacy.asked(t, of.Handle)
	f.nodes[0].release(1)
	f.nodes[0].ask(heldModern, "one")
	lostModern := modern.asked(t, ofModern.Handle)

	f.nodes[0].kill()
	legacy.peer, modern.peer = legacy.at(f.nodes[1]), modern.at(f.nodes[1])
	if now := waitFor(t, legacy, of.Handle, handofftext.Working); len(now.more) > 0 {
		t.Errorf("after the loss: %s after %v", now.raw.Raw, now.more)
	}
	waitFor(t, modern, ofModern.Handle, handofftext.Working)
	// The requestState may be invalid by now: then the client gets an error.
	if m, _ := modern.ask("tools/call", modern.answering(ofModern.Handle, lostModern)); !strings.Contains(string(m.Raw), `"code":-32602`) && tellOf(t, m).Status != handofftext.Working {
		t.Errorf("answered too late: %s", m.Raw)
	}
	if r := legacy.post(lost.answer()); r.status != http.StatusAccepted {
		t.Errorf("answered too late: %d %s", r.status, r.body)
	}
	for _, again := range f.nodes[1].release(2) {
		f.nodes[1].ask(again, "two")
		var end handedOff
		if jsonrpc.String(jsonrpc.Field(again.Params, "arguments", "key")) == "legacy" {
			q := legacy.asked(t, of.Handle)
			legacy.post(q.answer())
			end = waitFor(t, legacy, of.Handle, handofftext.Completed)
		} else {
			q := modern.asked(t, ofModern.Handle)
			modern.ask("tools/call", modern.answering(ofModern.Handle, q))
			end = waitFor(t, modern, ofModern.Handle, handofftext.Completed)
		}
		if !strings.Contains(end.text, "accept") {
			t.Errorf("at the end: %s", end.raw.Raw)
		}
	}
	if a, b := f.runs("legacy"), f.runs("modern"); a != 2 || b != 2 {
		t.Errorf("%d and %d runs", a, b)
	}
}

// A question is the message with which holdfast_wait asks the host of a call.
type question struct{ message jsonrpc.Message }

// answer returns the response of a legacy client.
func (q question) answer() string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, q.message.ID)
}

// asked waits until the host gets a question.
func (p *posting) asked(t *testing.T, handle string) (q question) {
	t.Helper()
	mcptest.Eventually(t, "the question", time.Minute, func() bool {
		for _, m := range wait(t, p, handofftext.ToolWait, handle, "").more {
			if m.Method == "elicitation/create" {
				q = question{m}
			}
		}
		return q.message.ID != nil || t.Failed()
	})
	return q
}

func (p *modernHost) asked(t *testing.T, handle string) (q question) {
	t.Helper()
	mcptest.Eventually(t, "the question", time.Minute, func() bool {
		q.message, _ = p.ask("tools/call", toolCall(handofftext.ToolWait, fmt.Sprintf(`{"handle":%q}`, handle)))
		return strings.Contains(string(q.message.Raw), `"resultType":"input_required"`) || t.Failed()
	})
	return q
}

// answering returns the params of a call of holdfast_wait with the answer.
func (p *modernHost) answering(handle string, q question) string {
	result := jsonrpc.Field(q.message.Raw, "result")
	return with(toolCall(handofftext.ToolWait, fmt.Sprintf(`{"handle":%q}`, handle)), answering(result, jsonrpc.String(jsonrpc.Field(result, "requestState"))))
}
