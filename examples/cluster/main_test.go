package main

import (
	"io"
	"os"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	beChild()
	os.Exit(m.Run())
}

// The example does what its README says, for a few seconds.
func TestCluster(t *testing.T) {
	testlong.Only(t, "it runs an example for seconds; e2e has tests of all that it shows")
	for duration := 4 * time.Second; ; duration *= 2 {
		sum, err := run(t.Context(), io.Discard, settings{duration: duration, clients: 10, killEvery: time.Second, engine: "jetstream"})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(sum.report())
		if sum.lost > 0 || sum.doubled > 0 {
			t.Fatalf("%d lost, %d doubled", sum.lost, sum.doubled)
		}
		if sum.answered > 0 && sum.kills > 0 {
			return
		}
		// On a machine that stands still the time is over before anything has happened.
		if duration > 30*time.Second {
			t.Fatalf("%d answered, %d kills", sum.answered, sum.kills)
		}
	}
}
