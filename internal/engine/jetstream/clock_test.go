package jetstream_test

import (
	"testing"
	"time"

	"holdfast/internal/engine/jetstream"
	"holdfast/internal/mcptest"
)

// The engine's clock alone determines the age of a frame or value, and not this machine's clock.
func TestAgeByTheirClock(t *testing.T) {
	t.Parallel()
	l := patient(must(t, "file:"+t.TempDir()))
	defer closed(t, l)
	mcptest.Must(l.Append(t.Context(), "a", 0, []byte("frame")))(t)
	mcptest.Must(l.Put(t.Context(), "k.a", 0, []byte("value"), time.Hour))(t)
	for _, theirs := range []time.Duration{0, time.Hour, -time.Hour} {
		jetstream.TheirClock(l, theirs)
		least := max(theirs, 0) // a frame from the future counts as new
		_, _, age, err := l.Get(t.Context(), "k.a")
		if err != nil || age < theirs-time.Second || age > theirs+time.Minute {
			t.Errorf("%v ahead, a value is %v old: %v", theirs, age, err)
		}
		err = l.Frames(t.Context(), "a", 0, func(_ uint64, age time.Duration, _ []byte) bool {
			if age < least-time.Second || age > least+time.Minute {
				t.Errorf("%v ahead, a frame is %v old", theirs, age)
			}
			return true
		})
		if err != nil {
			t.Error(err)
		}
	}
	// The log looks at the engine's clock again.
	jetstream.ForgetClock(l)
	if _, _, age, err := l.Get(t.Context(), "k.a"); err != nil || age < -time.Second || age > time.Minute {
		t.Errorf("a value is %v old: %v", age, err)
	}
}
