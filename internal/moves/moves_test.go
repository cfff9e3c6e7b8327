package moves

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Counted moves are logged when the log ends, one line for each kind. Later moves are logged at once. A line with calls of unknown outcome is a warning.
func TestLog(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	v := &Log{Logger: slog.New(slog.NewTextHandler(&text, nil))}
	for range 3 {
		v.Add(Kind{How: CameLost, Node: "a"}, Count{Sessions: 1, Again: 2})
		v.Add(Kind{How: CameReleased}, Count{Sessions: 1, Unknown: 1})
	}
	if text.Len() > 0 {
		t.Errorf("logged at once: %s", text.String())
	}
	v.End()
	for _, want := range []string{
		`level=WARN msg="took over the sessions of a node that was lost" node=a sessions=3 calls_again=6 outcome_unknown=0`,
		`level=WARN msg="took over sessions that a node gave up as it ended" sessions=3 calls_again=0 outcome_unknown=3`,
	} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("no line %s in\n%s", want, text.String())
		}
	}
	text.Reset()
	v.Add(Kind{How: WentAsleep}, Count{Sessions: 1})
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "sessions asleep") {
		t.Errorf("after the end: %s", got)
	}
}

// Kinds of moves that are fully reported are forgotten.
func TestKindsBounded(t *testing.T) {
	t.Parallel()
	v := &Log{Logger: slog.New(slog.DiscardHandler)}
	for i := range 3 * mostKinds {
		is := Kind{How: CameLost, Node: strings.Repeat("n", i)}
		v.Add(is, Count{Sessions: 1})
		v.mu.Lock()
		v.tell(is, v.kinds[is], time.Now())
		v.mu.Unlock()
	}
	if len(v.kinds) > mostKinds {
		t.Errorf("%d kinds are kept", len(v.kinds))
	}
}
