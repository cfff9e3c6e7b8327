package follow

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/terminal"
)

// A call that is followed changes its state as the table says, and by nothing else. The
// scripts of cmd/holdfast reach the transitions from outside.
func TestStates(t *testing.T) {
	t.Parallel()
	for from := following; from <= cancelled; from++ {
		for e := responded; e <= elapsed; e++ {
			f := &follower{state: from}
			to, ok := moves[from][e]
			if !ok {
				to = from
			}
			if f.move(e) != ok || f.state != to {
				t.Errorf("event %d in state %d leads to %d, want %d", e, from, f.state, to)
			}
		}
	}
}

// placeOf returns a place for a call with a token, or without one, and what it shows.
func placeOf(t *testing.T, token string, saved *SavedCall) (*place, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	state := client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage(`"a"`), Method: ToolsCall, Token: token, Key: "k", Request: json.RawMessage(`{}`)}}}
	p := newPlace(&Options{Display: terminal.NewDisplay(&out), Saved: saved, ResumeFlags: " --flag"},
		func() (client.State, bool) { return state, true }, func() bool { return false })
	t.Cleanup(p.stop)
	return p, &out
}

// The user sees the command that resumes a call once: when the call takes long, or at once
// if nothing is saved.
func TestHint(t *testing.T) {
	t.Parallel()
	calls := SavedCallsIn(t.TempDir())
	add := func() *SavedCall {
		c, err := calls.Add([]byte(`"a"`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.close(true) })
		return c
	}
	p, out := placeOf(t, "token", add())
	p.save()
	if p.hint != notDue || out.Len() > 0 {
		t.Errorf("shown early: %s", out)
	}
	p.late()
	if p.hint != shown || strings.Count(out.String(), "resume with: holdfast resume hf1.") != 1 || !strings.HasSuffix(out.String(), " --flag\n") {
		t.Errorf("not shown: %s", out)
	}
	p.restart()
	p.late()
	p.save()
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("shown twice: %s", out)
	}

	p, out = placeOf(t, "token", nil) // nothing is saved
	if p.save(); p.hint != shown || out.Len() == 0 {
		t.Error("not shown where nothing is saved")
	}

	p, out = placeOf(t, "", add()) // the call has no token
	if p.late(); p.hint != due || out.Len() > 0 {
		t.Errorf("a command without a token: %s", out)
	}
	if p.restart(); p.hint != notDue {
		t.Error("due after an answer of the user")
	}
	if text := p.whereItIs("it"); p.hint != shown || !strings.Contains(text, "it was sent. Resume with: holdfast resume --flag") {
		t.Error(text)
	}
	p, _ = placeOf(t, "", nil)
	if text := p.whereItIs("it"); !strings.Contains(text, "no way to resume") {
		t.Error(text)
	}

	p, out = placeOf(t, "token", nil)
	p.asking = func() bool { return true }
	if p.late(); p.hint != due || out.Len() > 0 {
		t.Errorf("shown beside a question: %s", out)
	}
}

// Where a call is is saved at once, and then not too often, unless it has got a token.
func TestSaveRate(t *testing.T) {
	t.Parallel()
	c, err := SavedCallsIn(t.TempDir()).Add([]byte(`"a"`))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close(true)
	p, _ := placeOf(t, "", c)
	p.save()
	first := p.savedAt
	if p.later != nil || !c.isSaved() {
		t.Error("not saved at once")
	}
	p.savedAt = time.Now().Add(time.Hour) // just now, on any machine
	if p.save(); p.later == nil {
		t.Error("saved too often")
	}
	state, _ := p.find()
	state.Calls[0].Token = "token"
	if p.save(); p.later != nil || !p.hasToken || p.savedAt.Equal(first) {
		t.Error("a token is not saved at once")
	}
}
