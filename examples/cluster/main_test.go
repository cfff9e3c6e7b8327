package main

import (
	"io"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	beChild()
	os.Exit(m.Run())
}

// The example does what its README says, for a few seconds.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	sum, err := run(t.Context(), io.Discard, settings{duration: 4 * time.Second, clients: 10, killEvery: time.Second, engine: "jetstream"})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(sum.report())
	if sum.lost > 0 || sum.doubled > 0 || sum.answered == 0 || sum.kills == 0 {
		t.Errorf("%d lost, %d doubled, %d answered, %d kills", sum.lost, sum.doubled, sum.answered, sum.kills)
	}
}
