package followcall

import (
	"strings"
	"testing"

	"holdfast/jsonrpc"
)

// The number of questions that wait for the user is bounded.
func TestQuestionsInBounds(t *testing.T) {
	t.Parallel()
	question := mustParse(jsonrpc.AppendRequest(nil, []byte("1"), "elicitation/create", jsonrpc.Object("message", strings.Repeat("A", 1<<20))))
	q := &questions{}
	for q.add(question) {
	}
	if n := len(q.waiting); n < 10 || n > 16 {
		t.Errorf("%d questions of 1 MiB wait", n)
	}
}
