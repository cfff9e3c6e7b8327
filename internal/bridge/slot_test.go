package bridge

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/client"
)

// Of the sessions that a host may come back to, the one with calls in flight is
// taken; what is kept in the others can be claimed, once.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := newSlots(t.TempDir(), "http://example.com/mcp", "auto", nil)
	keep := func(print string, alive time.Time, calls ...savedFlight) {
		t.Helper()
		one, _, err := s.take(fingerprint{Old: "nobody's"})
		if err != nil {
			t.Fatal(err)
		}
		defer one.release()
		err = one.write(&saved{fingerprint: fingerprint{Old: print}, Alive: alive, Conn: client.State{Result: json.RawMessage(`{}`)}, Calls: calls})
		if err != nil {
			t.Fatal(err)
		}
	}
	var taken *claims // by whoever claims next
	claim := func(print, request string) *savedFlight {
		t.Helper()
		var first *savedFlight
		taken = s.claims()
		t.Cleanup(taken.leave)
		got := s.claim(nil, &wanted{print: fingerprint{Old: print}, request: fingerprint{Old: request}, take: taken.take, keep: func(f *savedFlight) {
			first = f
			// Until it is kept elsewhere it is kept where it was.
			names, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			there := false
			for _, name := range names {
				data, err := os.ReadFile(name)
				there = there || err == nil && strings.Contains(string(data), string(f.ID))
			}
			if !there {
				t.Errorf("%s is kept nowhere", f.ID)
			}
		}})
		if got != first {
			t.Errorf("claimed %v, and %v was to be kept", got, first)
		}
		return got
	}
	now := time.Now()
	call := func(id, request string) savedFlight {
		return savedFlight{ID: json.RawMessage(id), fingerprint: fingerprint{Old: request}, Place: &client.CallState{ID: json.RawMessage(id)}}
	}
	keep("host", now)
	keep("host", now.Add(-time.Second), call(`"old"`, "again"))
	keep("host", now.Add(-time.Hour), call(`"lost"`, "again"), call(`"lost"`, "late"))
	keep("another", now, call(`"x"`, "again"))

	one, old, err := s.take(fingerprint{Old: "host"})
	if err != nil || old == nil || len(old.Calls) != 1 || string(old.Calls[0].ID) != `"old"` {
		t.Fatalf("took %+v, %v", old, err)
	}
	if got := claim("host", "again"); got != nil {
		t.Errorf("claimed %s: whoever has the session may have the call in flight, and the other is too old", got.ID)
	}
	one.release()
	if got := claim("host", "again"); got == nil || string(got.ID) != `"old"` {
		t.Errorf("claimed %+v", got)
	}
	if got := claim("host", "again"); got != nil {
		t.Errorf("claimed %s a second time", got.ID)
	}
}

// A call that whoever has its session by now has found there, and nobody has asked for,
// can be claimed all the same; by one process at a time, and not when it is over.
func TestClaimFound(t *testing.T) {
	t.Parallel()
	s := newSlots(t.TempDir(), "http://example.com/mcp", "auto", nil)
	one, _, err := s.take(fingerprint{Old: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer one.release()
	id := json.RawMessage(`"id"`)
	call := savedFlight{ID: id, fingerprint: fingerprint{Old: "again"}, Left: time.Now(), Place: &client.CallState{ID: id}}
	err = one.write(&saved{fingerprint: fingerprint{Old: "host"}, Alive: time.Now(), Conn: client.State{Result: json.RawMessage(`{}`)}, Calls: []savedFlight{call}})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(by *claims, own *slot) bool {
		return s.claim(own, &wanted{print: fingerprint{Old: "host"}, request: fingerprint{Old: "again"}, take: by.take, keep: func(*savedFlight) {}}) != nil
	}
	first, second := s.claims(), s.claims()
	if claim(first, one) {
		t.Error("claimed from its own slot")
	}
	if !claim(first, nil) || claim(second, nil) || !first.take(id) || second.take(id) {
		t.Error("not claimed, or twice")
	}
	first.leave() // as its process ends
	if !claim(second, nil) {
		t.Error("not claimed after the process that had it")
	}
	second.done(id)
	if first.take(id) || second.take(id) || claim(first, nil) {
		t.Error("claimed after its end")
	}
	names, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		old := time.Now().Add(-2 * staleAfter)
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if first.sweep(); !first.take(id) {
		t.Error("what is old is not forgotten")
	}
	first.leave()
}
