package session

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// charge is a request of a vendor's own method.
const charge = `{"jsonrpc":"2.0","id":1,"method":"vendor/charge","params":{"name":"safe"}}`

// A method that is not in the specification has its note stored before it runs. The
// session's next owner does not run it again, and its client gets "outcome unknown".
func TestTakeOverVendor(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]bool{"this build's note": false, "an earlier build's": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
			s := a.open("alice")
			writes := a.node.writes.Load()
			c := begin(t, s, false, charge)
			if n := a.node.writes.Load() - writes; n != 1 || c.recovery.retry != retryUnsafe {
				t.Errorf("%d writes before it runs; retry %v", n, c.recovery.retry)
			}
			a.desk.last().next(t, "vendor/charge")
			if earlier { // nodes of an earlier build noted all methods but tools/call as safe
				c.recovery.retry = retryAllowed
				if err := c.noteBegun([]jsonrpc.Message{mcptest.Parse(charge)}); err != nil {
					t.Fatal(err)
				}
			}
			a.kill()
			taken := b.take(s)
			wantTexts(t, "all", readAll(t, taken, c.Number()), lostWith)
			if b.desk.opened() != 0 || b.Calls() != 0 {
				t.Errorf("%d backends, %d calls", b.desk.opened(), b.Calls())
			}
		})
	}
}

// A batch is one call: a safe request is not made again if its batch has a request
// that is not in the specification.
func TestTakeOverVendorBatch(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, safeRequest(2), charge)
	a.kill()
	taken := b.take(s)
	wantTexts(t, "all", readAll(t, taken, c.Number()), lostWith, lostWith)
	if b.desk.opened() != 0 {
		t.Errorf("%d backends", b.desk.opened())
	}
}

// These requests may be answered without being stored, in a store of one node and in a shared one.
func TestLight(t *testing.T) {
	t.Parallel()
	shared := newShelf().add(t, "a", safeTools()).open("alice")
	h := newHouse(t, safeTools(), nil)
	t.Cleanup(h.close)
	alone := h.open("alice")
	for text, want := range map[string]struct{ shared, alone bool }{
		charge: {false, false},
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`:                                            {true, true},
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`:                                      {true, true},
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t"}}`:               {true, true},
		`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"t"}}`:            {false, true},
		`{"jsonrpc":"2.0","id":1,"method":"tasks/update","params":{"taskId":"t"}}`:            {false, true},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`:             {true, true},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"another"}}`:          {false, false},
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"file:///"}}`: {true, true},
	} {
		m := mcptest.Parse(text)
		if got := shared.Tools.Light(t.Context(), &m, nil); got != want.shared {
			t.Errorf("on a shared store, %s is light: %v", text, got)
		}
		if got := alone.Tools.Light(t.Context(), &m, nil); got != want.alone {
			t.Errorf("alone, %s is light: %v", text, got)
		}
		if tool := strings.Contains(text, "safe"); shared.m.Tools.Repeatable("", []jsonrpc.Message{m}) != (want.shared || m.Method == "tools/call" && tool) {
			t.Errorf("%s may be made again: %v", text, !want.shared)
		}
	}
}

// A server that is slow to list its tools holds up only the first call, by tools.Patience: also where the call is checked
// a second time before it is stored, in a batch, and for calls that come while the server lists the tools.
func TestSlowToolsHoldUpOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (*Session, *desk){
		"alone": func(t *testing.T) (*Session, *desk) {
			h := newHouse(t, Options{}, nil)
			t.Cleanup(h.close)
			h.desk.listing = make(chan struct{})
			return h.open(""), h.desk
		},
		"shared store": func(t *testing.T) (*Session, *desk) {
			n := newShelf().add(t, "a", Options{})
			n.desk.listing = make(chan struct{})
			return n.open(""), n.desk
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, desk := open(t)
				began := time.Now()
				call := func(ids ...int) {
					light := true
					var texts []string
					for _, id := range ids {
						m := mcptest.Parse(request(id))
						light = s.Tools.Light(t.Context(), &m, nil) && light
						texts = append(texts, request(id))
					}
					begin(t, s, light, texts...)
					for range ids {
						<-desk.last().in
					}
				}
				call(1, 2)
				if took := time.Since(began); took != tools.Patience {
					t.Errorf("the first call has the server after %v, want %v", took, tools.Patience)
				}
				call(3)
				if took := time.Since(began); took != tools.Patience {
					t.Errorf("the next one waits for %v more", took-tools.Patience)
				}
				close(desk.listing)
			})
		})
	}
}

// While a node that is alone drains, it refuses requests with a method that may not run twice, also calls of safe tools.
func TestSettles(t *testing.T) {
	t.Parallel()
	n := newShelf().add(t, "a", Options{})
	s := n.open("alice")
	asked := false
	n.Departure.DrainAlone(t.Context(), func() bool {
		asked = true
		for text, want := range map[string]bool{
			charge:         true,
			safeRequest(1): true,
			request(1):     true,
			`{"jsonrpc":"2.0","id":1,"method":"ping"}`:             false,
			`{"jsonrpc":"2.0","method":"vendor/said","params":{}}`: false,
		} {
			err := departing{s}.admit([]jsonrpc.Message{mcptest.Parse(text)})
			if want != errors.Is(err, ErrClosing) || !want && err != nil {
				t.Errorf("%s is refused: %v", text, err)
			}
		}
		return false
	})
	if !asked {
		t.Error("it does not drain")
	}
}
