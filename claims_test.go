package holdfast_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
)

// TestClaimsLeave makes calls under idempotency keys in a store that nodes share. The claims to the keys leave the
// store with the records of the calls, whether the sessions have ended or not. The claims of calls in flight stay.
func TestClaimsLeave(t *testing.T) {
	t.Parallel()
	const keep = 50 * time.Millisecond
	engine := logtest.New(logtest.Options{})
	handle := engine.Open()
	held := make(chan struct{})
	l := newLimited(t, &exact{held: held}, func(o *holdfast.Options) {
		o.Store = durable.New(handle, durable.Options{Keep: keep})
		o.Keep, o.SessionTTL, o.UpgradeAfter = keep, 4*time.Second, time.Millisecond // a node looks at its sessions every eighth of their lives
	})
	claims := func() (n int) {
		if err := handle.List(t.Context(), "k.", func(_ string, value []byte, _ uint64) bool {
			if len(value) > 1 { // a shorter value: the claim was given up
				n++
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	key := func(user string, i any) []string {
		return []string{"Idempotency-Key", fmt.Sprintf("%q", fmt.Sprint(user, i))}
	}
	ann, bob := l.begin("ann"), l.begin("bob")
	running := make(chan struct{})
	go func() {
		defer close(running)
		l.post("ann", ann, toolCall(1, "held"), key("ann", "held")...)
	}()
	t.Cleanup(func() {
		close(held)
		<-running
	})
	for i := range 20 {
		for user, session := range map[string]string{"ann": ann, "bob": bob} {
			if status, _, text := l.post(user, session, toolCall(2+i, "echo"), key(user, i)...); status != http.StatusOK {
				t.Fatalf("%d %s", status, text)
			}
		}
	}
	mcptest.Must(mcptest.Exchange(t.Context(), http.MethodDelete, l.url, "", "Mcp-Session-Id", bob, "X-User", "bob"))(t)
	for end := time.Now().Add(time.Minute); claims() > 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d claims stay", claims())
		}
	}
	if n := claims(); n != 1 {
		t.Errorf("%d claims, and a call is in flight", n)
	}
	if status, _, text := l.post("ann", ann, toolCall(2, "echo"), key("ann", 0)...); status != http.StatusGone || !strings.Contains(text, "began") {
		t.Errorf("a key of a call of which nothing is kept: %d %s", status, text)
	}
}
