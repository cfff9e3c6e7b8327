package tasktext

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/internal/protocol"
)

// A task is encoded as package json encodes it.
func TestTaskText(t *testing.T) {
	for _, x := range []Text{
		{ID: "a.b1.c", Status: protocol.TaskWorking, Created: "1", Updated: "2", TTL: 60000, Poll: 1000},
		{ResultType: "task", ID: "a", Status: protocol.TaskFailed, Message: "a \"b\"\n\u2028ä", Error: []byte(`{"code":1}`)},
		{ResultType: "complete", Status: protocol.TaskCompleted, Result: []byte(`{}`), TTL: -1},
		{ResultType: "complete", Status: protocol.TaskInputRequired, Asked: []byte(`{"input-1":{}}`)},
	} {
		want, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if got := x.JSON(); string(got) != string(want) {
			t.Errorf("a task is written as\n%s, want\n%s", got, want)
		}
	}
	for range 10000 {
		at := time.UnixMilli(rand.Int64N(1<<48) - 1<<46)
		if got, want := Time(at), at.UTC().Format(layout); got != want {
			t.Fatalf("a time is written as %s, want %s", got, want)
		}
	}
}
