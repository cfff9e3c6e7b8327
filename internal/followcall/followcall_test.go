package followcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// A followed call changes its state as the table says, and in no other way. The scripts
// of cmd/holdfast reach the transitions from outside.
func TestStates(t *testing.T) {
	t.Parallel()
	for from := following; from <= cancelled; from++ {
		for e := responded; e <= expired; e++ {
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

// Two interrupts at once leave the call. A second interrupt cancels it if it comes after the user could read what a second one does.
func TestInterruptTwiceAtOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		between []time.Duration
		want    state
	}{
		"once":              {[]time.Duration{0}, left},
		"twice at once":     {[]time.Duration{0, 0}, left},
		"passed on by npm":  {[]time.Duration{0, settleFor - time.Millisecond}, left},
		"a second one":      {[]time.Duration{0, settleFor + time.Millisecond}, cancelled},
		"both twice":        {[]time.Duration{0, 0, settleFor + time.Millisecond, 0}, cancelled},
		"one after all":     {[]time.Duration{0, settleFor + lingerFor - time.Millisecond}, cancelled},
		"and one too late":  {[]time.Duration{0, settleFor + lingerFor + time.Millisecond}, left},
		"three times fast":  {[]time.Duration{0, time.Millisecond, time.Millisecond}, left},
		"fast, and another": {[]time.Duration{0, time.Millisecond, settleFor}, cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn, err := client.New("http://127.0.0.1:1/", nil)
				if err != nil {
					t.Fatal(err)
				}
				place, _ := placeOf(t, "token", nil)
				f := &follower{
					conn: conn, id: []byte(`"a"`), name: "it", display: place.display, place: place,
					questions: &questions{display: place.display, answers: make(chan jsonrpc.Message)},
					messages:  make(chan jsonrpc.Message), changed: make(chan struct{}), signals: make(chan os.Signal, 4),
				}
				find := place.find
				place.find = func() (client.State, bool) {
					s, _ := find()
					return s, f.state != cancelled // the server is informed at once
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go func() {
					for _, d := range test.between {
						select {
						case <-time.After(d): // the bubble's clock
						case <-ctx.Done():
							return
						}
						f.signals <- os.Interrupt
						synctest.Wait()
					}
				}()
				if _, err := f.run(ctx); !errors.Is(err, ErrLeft) || f.state != test.want {
					t.Errorf("state %d, want %d: %v", f.state, test.want, err)
				}
			})
		})
	}
}

// placeOf returns a place for a call with a token, or without one, and the output of its display.
func placeOf(t *testing.T, token string, saved *SavedCall) (*place, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	state := client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage(`"a"`), Method: ToolsCall, Token: token, Key: "k", Request: json.RawMessage(`{}`)}}}
	p := newPlace(&Options{Display: terminal.NewDisplay(&out), Saved: saved, ResumeFlags: " --flag", NameFlags: " --state x"},
		func() (client.State, bool) { return state, true }, func() bool { return false })
	t.Cleanup(p.stop)
	return p, &out
}

// The user sees the command that resumes a call once: when the call takes long, or at once
// if the call is not saved.
func TestHint(t *testing.T) {
	t.Parallel()
	calls := SavedCallsIn(t.TempDir())
	add := func() *SavedCall {
		c, err := calls.Add([]byte(`"a"`), "count")
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
	if p.hint != shown || strings.Count(out.String(), "resume with: holdfast resume count-") != 1 || !strings.HasSuffix(out.String(), " --state x --flag\n") {
		t.Errorf("not shown: %s", out)
	}
	p.restart()
	p.late()
	p.save()
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("shown twice: %s", out)
	}

	p, out = placeOf(t, "token", nil) // the call is not saved
	if p.save(); p.hint != shown || !strings.Contains(out.String(), "holdfast resume hf1.") || strings.Contains(out.String(), "--state") {
		t.Error("not shown where nothing is saved")
	}

	p, out = placeOf(t, "", add()) // the call has no token
	if p.late(); p.hint != due || out.Len() > 0 {
		t.Errorf("a command without a token: %s", out)
	}
	if p.restart(); p.hint != notDue {
		t.Error("due after an answer of the user")
	}
	if text := p.whereItIs("it"); p.hint != shown || !strings.Contains(text, "it was sent. Resume with: holdfast resume count-") {
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

// The user sees the command again if its token does not lead to the call any more, but not beside a question, and not where it names the call.
func TestHintOfAnotherToken(t *testing.T) {
	t.Parallel()
	saved, err := SavedCallsIn(t.TempDir()).Add([]byte(`"a"`), "count")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { saved.close(true) })
	for name, test := range map[string]struct {
		saved *SavedCall
		token bool
		want  int // how many commands are shown
	}{
		"by tokens":          {nil, false, 2},
		"by tokens, saved":   {saved, true, 2},
		"by the call's name": {saved, false, 1},
	} {
		p, out := placeOf(t, "first", test.saved)
		p.token = test.token
		p.save()
		p.late()
		state, _ := p.find()
		call := &state.Calls[0]
		call.LastEventID = "1"
		p.savedAt = time.Time{}
		p.save()
		if n := strings.Count(out.String(), "resume with: "); n != 1 {
			t.Errorf("%s: %d commands at first:\n%s", name, n, out)
		}
		call.Token, call.Wire = "", json.RawMessage("2")
		p.savedAt = time.Time{}
		p.save()
		call.Token = "second"
		p.asking = func() bool { return true }
		p.save()
		p.asking = func() bool { return false }
		p.late()
		p.savedAt = time.Time{}
		p.save()
		if n := strings.Count(out.String(), "resume with: "); n != test.want {
			t.Errorf("%s: %d commands:\n%s", name, n, out)
		}
	}
}

// A call's place is saved at once, and later at intervals. A new token is saved at once.
func TestSaveRate(t *testing.T) {
	t.Parallel()
	c, err := SavedCallsIn(t.TempDir()).Add([]byte(`"a"`), "count")
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
	p.savedAt = time.Now().Add(time.Hour) // just now, however fast the machine is
	if p.save(); p.later == nil {
		t.Error("saved too often")
	}
	state, _ := p.find()
	state.Calls[0].Token = "token"
	if p.save(); p.later != nil || !p.hasToken || p.savedAt.Equal(first) {
		t.Error("a token is not saved at once")
	}
}
