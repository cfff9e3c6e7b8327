package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A refused call holds no place.
func TestPromisedPlaceIsFreed(t *testing.T) {
	h := newHouse(t, Options{MaxProcesses: 3}, nil)
	defer h.close()
	var sessions []*Session
	for i := range 3 {
		s, err := h.openFrom(fmt.Sprintf("192.0.2.%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		s.closeUnused()
		sessions = append(sessions, s)
	}
	mcptest.Eventually(t, "the conversations to be closed", time.Minute, func() bool { taken, _ := h.processes(); return taken == 0 })
	h.Manager.processes.Most = 2
	long := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"` + strings.Repeat("x", 2*jsonrpc.MaxName) + `"}}}`
	for _, s := range sessions[:2] {
		if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(long)}, true); err == nil {
			t.Fatal("taken")
		}
		h.End(s) // the refused call's session is over, too
	}
	if taken, _ := h.processes(); taken != 0 {
		t.Fatal(taken)
	}
	if _, err := sessions[2].Begin([]jsonrpc.Message{mcptest.Parse(request(2))}, true); err != nil {
		t.Errorf("no process runs, and yet: %v", err)
	}
}

// A call that is cancelled before it is delivered holds no place.
func TestPromisedPlaceIsFreedByCancel(t *testing.T) {
	h := newHouse(t, Options{MaxProcesses: 2}, nil)
	defer h.close()
	first, other := h.open("alice"), h.open("bob")
	for _, s := range []*Session{first, other} {
		s.closeUnused()
	}
	mcptest.Eventually(t, "the conversations to be closed", time.Minute, func() bool { taken, _ := h.processes(); return taken == 0 })
	h.Manager.processes.Most = 1
	if _, err := first.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true); !errors.Is(err, ErrBusy) {
		t.Fatalf("the one place is promised, and yet: %v", err)
	}
	first.cancel([]byte("1"))
	if _, err := other.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true); err != nil {
		t.Errorf("the call that the place was promised to is cancelled, and yet: %v", err)
	}
}

// A panic of Options.Safe while a session is taken over: the tool counts as not safe.
func TestTakeOverSafePanics(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", Options{})
	b := f.add(t, "b", Options{Safe: func(string) bool { panic("user code") }})
	s := a.open("alice")
	begin(t, s, false, request(1))
	a.kill()
	_, at, err := b.Locate(t.Context(), s.key, caller.At("", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = b.TakeOver(t.Context(), at); err != nil {
		t.Error(err)
	}
}
