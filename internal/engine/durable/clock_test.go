package durable_test

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
)

// If the engine's clock jumps an hour ahead, and the engine drops all frames, a
// session in use and its calls go on, also at the next owner.
func TestEngineClockAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := logtest.New(logtest.Options{Retention: 15 * time.Minute})
		n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
		defer n.shut()
		defer other.shut()
		l := n.create("a")
		n.want("Append", n.put(l, note(1, "note"), entry(1, 1), last(entry(2, 1))), nil)
		time.Sleep(10 * time.Minute) // the lease is not renewed meanwhile
		e.Advance(time.Hour)
		if kept := e.Kept("e.a"); kept != 0 {
			t.Fatalf("%d frames are kept", kept)
		}
		n.want("Append", n.put(l, entry(1, 2)), nil)
		n.want("Touch", n.Touch(t.Context(), l), nil)
		taken := other.take()
		other.says(taken.Lease, 1, 1, 2)
		if x := taken.Streams[0]; string(x.Note) != "note" {
			t.Errorf("acquired %+v", x)
		}
	})
}

// A claim that lies in the future, as the engine's clock was set back, counts as
// old: the outcome of its call may be lost.
func TestClaimFromTheFuture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := logtest.New(logtest.Options{})
		n := open(t, e, durable.Options{})
		defer n.shut()
		id := shared.ClaimID{1}
		if was, _, err := n.Claim(t.Context(), id, []byte("one")); was != nil || err != nil {
			t.Fatalf("claimed: %q, %v", was, err)
		}
		for _, x := range []struct{ by, least, most time.Duration }{
			{-30 * time.Second, 0, time.Second}, // the clocks of servers differ a little
			{-29*time.Minute - 30*time.Second, time.Hour, 48 * time.Hour},
			{40 * time.Minute, 10 * time.Minute, 11 * time.Minute},
		} {
			e.Advance(x.by)
			was, age, err := n.Claim(t.Context(), id, []byte("two"))
			if string(was) != "one" || err != nil || age < x.least || age > x.most {
				t.Errorf("after %v: %q, %v old, %v", x.by, was, age, err)
			}
		}
	})
}
