package follow

import (
	"encoding/json"
	"testing"

	"holdfast/client"
)

// The newest call that nobody follows is the one that is found.
func TestSavedCalls(t *testing.T) {
	t.Parallel()
	calls := SavedCallsIn(t.TempDir())
	if _, err := calls.Newest(true); err == nil {
		t.Error("there is a call on an empty directory")
	}
	state := func(id string) client.State {
		return client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage(id), Token: "t"}}}
	}
	var files []*SavedCall
	for _, id := range []string{`"a"`, `"b"`} {
		k, err := calls.Add([]byte(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.save(state(id)); err != nil {
			t.Fatal(err)
		}
		files = append(files, k)
	}
	want := func(idle bool, id string) {
		t.Helper()
		s, err := calls.Newest(idle)
		if id == "" && err != nil {
			return
		}
		if err != nil || len(s.Calls) != 1 || string(s.Calls[0].ID) != id {
			t.Errorf("newest(%v): %+v, %v; want %s", idle, s, err, id)
		}
	}
	want(false, `"b"`)
	want(true, "") // both are followed
	files[0].close(false)
	want(true, `"a"`)
	again, err := calls.Add([]byte(`"a"`))
	if err != nil || again.name != files[0].name {
		t.Errorf("the same call has another place: %+v, %v", again, err)
	}
	again.close(true)
	want(false, `"b"`)
	files[1].close(true)
	want(false, "")
}
