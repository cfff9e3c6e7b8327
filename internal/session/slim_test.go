package session

import (
	"maps"
	"testing"
)

// Quiet sessions share what they know of their server's tools, and one that hears more has it for itself.
func TestQuietSessionsShare(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	h.desk.tools = `{"name":"reads","annotations":{"readOnlyHint":true}},{"name":"writes"}`
	var all []*Session
	shared := make(commonTools)
	for range 3 {
		s := h.open("")
		awaitListed(t, s)
		shared.slim(s)
		all = append(all, s)
	}
	if len(shared) != 1 {
		t.Errorf("%d lists are kept", len(shared))
	}
	more := readPage([]byte(`{"tools":[{"name":"more","annotations":{"readOnlyHint":true}}]}`))
	locked(all[1], func() { all[1].tools.learn(&more, noAddition{}) })
	for i, want := range []map[string]bool{{"reads": true}, {"reads": true, "more": true}, {"reads": true}} {
		if got := all[i].tools.safe; !maps.Equal(got, want) {
			t.Errorf("session %d knows %v as safe, want %v", i, got, want)
		}
	}
	h.desk.tools = `{"name":"other"}`
	other := h.open("")
	awaitListed(t, other)
	shared.slim(other)
	if len(other.tools.safe) != 0 || len(all[0].tools.safe) != 1 {
		t.Errorf("a session with another list knows %v, the first one %v", other.tools.safe, all[0].tools.safe)
	}
	// They go on as before.
	for _, s := range all {
		c := begin(t, s, true, request(1))
		link := s.backend.link.conn.(*deskConn)
		in := <-link.in
		link.say(in.Call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		if answers, done := c.Wait(t.Context(), 0); !done || len(answers) != 1 {
			t.Errorf("answered %q", answers)
		}
	}
}
