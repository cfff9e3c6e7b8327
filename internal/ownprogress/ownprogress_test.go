package ownprogress

import (
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// The progress of a request always grows, whether a value comes from the server or from Holdfast.
// Holdfast's own notifications repeat the server's last message.
func TestGrows(t *testing.T) {
	t.Parallel()
	const every = 10 * time.Second
	now := time.Minute
	p := New(every, now, []byte(`"t"`))
	last := -1.0
	check := func(data []byte, wantMessage string) {
		t.Helper()
		m := mcptest.Parse(string(data))
		token, value, ok := protocol.Progress(m.Params)
		if !ok || token != string(jsonrpc.Key([]byte(`"t"`))) || value <= last {
			t.Errorf("%s after %v", data, last)
		}
		if got := jsonrpc.String(jsonrpc.Field(m.Params, "message")); got != wantMessage {
			t.Errorf("%s, want the message %q", data, wantMessage)
		}
		last = value
		if p.Due() != now+every {
			t.Errorf("due at %v, %v after the last", p.Due(), p.Due()-now)
		}
		now += time.Second
	}
	says := func(params string) []byte {
		m := mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/progress","params":` + params + `}`)
		return p.Hear(&m, now)
	}
	check(p.Beat(now, false, nil), "")
	check(p.Beat(now, true, nil), StillRunning)
	check(says(`{"progressToken":"t","progress":0}`), "")
	check(says(`{"progressToken":"t","progress":3,"total":9,"message":"copies"}`), "copies")
	beat := p.Beat(now, true, nil)
	check(beat, "copies")
	if total := jsonrpc.Field(beat, "params", "total"); string(total) != "9" {
		t.Errorf("the total is %s", total)
	}
	check(says(`{"progressToken":"t","progress":3,"message":"copies"}`), "copies")
	check(says(`{"progressToken":"t","progress":4,"message":null}`), "")

	// A call that runs again begins after the last value of its first run.
	p, last = New(every, now, []byte(`"t"`)), 7
	check(p.Beat(now, true, map[string]float64{string(jsonrpc.Key([]byte(`"t"`))): 7}), StillRunning)
	if odd := says(`{"progressToken":"t","progress":"odd"}`); jsonrpc.String(jsonrpc.Field(odd, "params", "progress")) != "odd" {
		t.Errorf("what is no progress became %s", odd)
	}
}

// A pulse is found by its token, in any spelling.
func TestOf(t *testing.T) {
	t.Parallel()
	one, two := New(1, 0, []byte(`"t"`)), New(1, 0, []byte(`7`))
	all := []*Pulse{one, two}
	for params, want := range map[string]*Pulse{
		`{"progressToken":"t"}`: one, `{"progressToken":"\u0074"}`: one, `{"progressToken":7}`: two, `{"progressToken":"7"}`: nil, `{}`: nil,
	} {
		if got := Of(all, []byte(params)); got != want {
			t.Errorf("%s: %v", params, got)
		}
	}
	if Of(nil, []byte(`{"progressToken":"t"}`)) != nil || (*Pulse)(nil).Due() <= time.Hour {
		t.Error("there is a pulse where there is none")
	}
}
