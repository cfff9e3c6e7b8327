package session

import (
	"slices"
	"testing"

	"holdfast/internal/tools"
)

// Quiet sessions share one list of their server's tools. A session that learns more tools gets a list of its own.
func TestQuietSessionsShare(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	h.desk.tools = `{"name":"reads","annotations":{"readOnlyHint":true}},{"name":"writes"}`
	var all []*Session
	shared := make(tools.Common)
	for range 3 {
		s := h.open("")
		awaitListed(t, s)
		s.slim(shared)
		all = append(all, s)
	}
	if len(shared) != 1 {
		t.Errorf("%d lists are kept", len(shared))
	}
	all[1].Tools.Learn([]byte(`{"tools":[{"name":"more","annotations":{"readOnlyHint":true}}]}`), all[1].Tools.Version(), false)
	for i, want := range [][]string{{"reads"}, {"more", "reads"}, {"reads"}} {
		if got := all[i].Tools.Names(); !slices.Equal(got, want) {
			t.Errorf("session %d knows %v as safe, want %v", i, got, want)
		}
	}
	h.desk.tools = `{"name":"other"}`
	other := h.open("")
	awaitListed(t, other)
	other.slim(shared)
	if len(other.Tools.Names()) != 0 || len(all[0].Tools.Names()) != 1 {
		t.Errorf("a session with another list knows %v, the first one %v", other.Tools.Names(), all[0].Tools.Names())
	}
	// The sessions go on as before.
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
