package bridge

import (
	"context"
	"io"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

func idleBridge(t *testing.T, out io.Writer) *bridge {
	t.Helper()
	b := newBridge(t.Context(), "http://127.0.0.1:1", out, &Options{})
	t.Cleanup(func() { b.leave(t.Context(), false) })
	return b
}

// A bridge changes its phase as the table says, and in no other way.
func TestPhases(t *testing.T) {
	t.Parallel()
	for from := starting; from <= leaving; from++ {
		for event := eventOpened; event <= eventLeft; event++ {
			b := &bridge{phase: from, ending: ending{answered: make(chan struct{})}}
			to, ok := phaseMoves[from][event]
			if !ok {
				to = from
			}
			if b.move(event) != ok || b.phase != to {
				t.Errorf("event %d in phase %d leads to %d, want %d", event, from, b.phase, to)
			}
		}
	}
}

// Messages of the server are held until the host is ready, and then delivered in order.
func TestHeld(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	b := idleBridge(t, &out)
	say := func(text string) {
		b.fromServer(nil, mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/message", jsonrpc.Object("data", text))))
	}
	want := func(text string) {
		t.Helper()
		if got := strings.Count(out.String(), "\n"); got != len(text) {
			t.Errorf("%d messages are written, want %d:\n%s", got, len(text), out.String())
		}
	}
	b.sink = &b.eras.legacy
	say("a") // a host need not initialize
	want("a")
	b.move(eventResumed)
	say("b")
	b.move(eventAnswered)
	say("c")
	want("a")
	conn := mcptest.Must(b.connect(nil))(t)
	ctx, stop := context.WithCancel(t.Context())
	stop() // no server is awaited
	b.initialized(ctx, conn, mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/initialized", nil)))
	want("abc")
	if b.phase != open {
		t.Errorf("phase %d", b.phase)
	}
	say("d")
	want("abcd")
}

// The held messages are bounded.
func TestHeldInBounds(t *testing.T) {
	t.Parallel()
	question := mustParse(jsonrpc.AppendRequest(nil, []byte("1"), "elicitation/create", jsonrpc.Object("message", strings.Repeat("A", 1<<20))))
	b := idleBridge(t, io.Discard)
	b.move(eventResumed)
	for range 100 {
		b.fromServer(nil, question)
	}
	if n := len(b.held); n < 20 || n > 32 {
		t.Errorf("%d messages of 1 MiB are held", n)
	}
}

// A bridge that ends makes no more connections.
func TestConnectLeaving(t *testing.T) {
	t.Parallel()
	b := newBridge(t.Context(), "http://127.0.0.1:1", io.Discard, &Options{})
	b.leave(t.Context(), true)
	if conn, err := b.connect(nil); err == nil || conn != nil {
		t.Errorf("%v, %v", conn, err)
	}
}
