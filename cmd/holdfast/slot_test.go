package main

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
		one, _, err := s.take("nobody's")
		if err != nil {
			t.Fatal(err)
		}
		defer one.release()
		err = one.write(&saved{Print: print, Alive: alive, Conn: client.State{Result: json.RawMessage(`{}`)}, Calls: calls})
		if err != nil {
			t.Fatal(err)
		}
	}
	claim := func(print, request string) *savedFlight {
		t.Helper()
		var first *savedFlight
		got := s.claim(print, request, func(f *savedFlight) {
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
		})
		if got != first {
			t.Errorf("claimed %v, and %v was to be kept", got, first)
		}
		return got
	}
	now := time.Now()
	call := func(id, request string) savedFlight {
		return savedFlight{ID: json.RawMessage(id), Print: request, Place: &client.CallState{ID: json.RawMessage(id)}}
	}
	keep("host", now)
	keep("host", now.Add(-time.Second), call(`"old"`, "again"))
	keep("host", now.Add(-time.Hour), call(`"lost"`, "again"), call(`"lost"`, "late"))
	keep("another", now, call(`"x"`, "again"))

	one, old, err := s.take("host")
	if err != nil || old == nil || len(old.Calls) != 1 || string(old.Calls[0].ID) != `"old"` {
		t.Fatalf("took %+v, %v", old, err)
	}
	if got := claim("host", "again"); got != nil {
		t.Errorf("claimed %s: the one is taken, the other too old", got.ID)
	}
	one.release()
	if got := claim("host", "again"); got == nil || string(got.ID) != `"old"` {
		t.Errorf("claimed %+v", got)
	}
	if got := claim("host", "again"); got != nil {
		t.Errorf("claimed %s a second time", got.ID)
	}
}
