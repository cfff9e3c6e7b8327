package followcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"

	"holdfast/client"
	"holdfast/internal/statefile"
	"holdfast/internal/terminal"
)

func stateOf(id string) client.State {
	return client.State{URL: "http://example.com/", Calls: []client.CallState{{ID: json.RawMessage(id), Token: "t"}}}
}

// keep saves a call.
func keep(t *testing.T, calls SavedCalls, id, tool string) *SavedCall {
	t.Helper()
	k, err := calls.Add([]byte(id), tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.save(stateOf(id)); err != nil {
		t.Fatal(err)
	}
	return k
}

// Without a name, the only possible call is found.
func TestSavedCalls(t *testing.T) {
	t.Parallel()
	calls := SavedCallsIn(t.TempDir())
	want := func(unfollowed bool, id string) {
		t.Helper()
		k, err := calls.Only(unfollowed)
		var several *Several
		switch got := ""; {
		case err == nil:
			got = string(k.State.Calls[0].ID)
			fallthrough
		case id == "" && !errors.As(err, &several), id == "several" && errors.As(err, &several):
			if err == nil && got != id {
				t.Errorf("only(%v): %s, want %q", unfollowed, got, id)
			}
		default:
			t.Errorf("only(%v): %v; want %q", unfollowed, err, id)
		}
	}
	want(false, "")
	a, b := keep(t, calls, `"a"`, "count"), keep(t, calls, `"b"`, "count")
	want(false, "several")
	want(true, "") // both are being followed
	a.close(false)
	want(true, `"a"`)
	again, err := calls.Add([]byte(`"a"`), "")
	if err != nil || again.name != a.name || again.Name() != a.Name() {
		t.Errorf("the same call has another place: %+v, %v", again, err)
	}
	again.close(false)
	b.close(false)
	calls.Cancelled(stateOf(`"a"`))
	want(true, `"b"`)
	b.close(true)
	want(false, `"a"`) // there is no other call
}

// A call is found by its name, by a prefix of it, and by the letters at its end.
func TestNames(t *testing.T) {
	t.Parallel()
	calls := SavedCallsIn(t.TempDir())
	count, other := keep(t, calls, `"a"`, "count"), keep(t, calls, `"b"`, "Count.All things\x1b[31m and more than there is room for")
	count.progress(terminal.Step{Progress: 3, Message: strings.Repeat("ä\n", 1000)})
	if err := count.save(stateOf(`"a"`)); err != nil {
		t.Fatal(err)
	}
	all := calls.List()
	if len(all) != 2 || all[0].Name != count.Name() || all[1].Name != other.Name() {
		t.Fatalf("%+v", all)
	}
	if all[0].Tool != "count" || all[0].Progress.Progress != 3 || len(all[0].Progress.Message) > mostMessage+3 || !all[0].Followed || time.Since(all[0].Began) > time.Minute {
		t.Errorf("%+v", all[0])
	}
	if !strings.HasPrefix(other.Name(), "count-all-things-31m-and-") || len(other.Name()) > 30 {
		t.Errorf("the name %q", other.Name())
	}
	for name, id := range map[string]string{
		count.Name(): `"a"`, strings.ToUpper(count.Name()): `"a"`, " " + other.Name() + "\n": `"b"`, "count-a": `"b"`, count.Name()[len("count-"):]: `"a"`,
		"": "", "nothing": "", "count": "several", "-": "", "x-" + count.Name(): "",
	} {
		k, ok, err := calls.Find(name)
		got := ""
		switch {
		case err != nil:
			got = "several"
		case ok:
			got = string(k.State.Calls[0].ID)
		}
		if got != id {
			t.Errorf("%q finds %q, want %q", name, got, id)
		}
	}
	if info, err := os.Stat(count.name); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others can read it: %v, %v", info.Mode(), err)
	}
	count.close(false)
	other.close(false)

	// A name gets more letters if it would be the same as another.
	if a, b := nameOf("t", "abcdef", []string{"abcdef", "abcdxx"}), nameOf("t", "abcdef", []string{"abcdef"}); a != "t-abcde" || b != "t-abcd" {
		t.Error(a, b)
	}
}

// Saved calls that are too old, or too many, are removed, except those that a process follows.
func TestSavedCallsInBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := SavedCallsIn(dir)
	first := keep(t, calls, `"first"`, "count")
	defer first.close(true)
	for i := range mostCalls + 20 {
		keep(t, calls, fmt.Sprintf(`"%d"`, i), "count").close(false)
	}
	if n := len(calls.List()); n != mostCalls {
		t.Errorf("%d calls are kept", n)
	}
	if _, err := os.Stat(first.name); err != nil {
		t.Error("the call that is followed is forgotten")
	}
	names, err := filepath.Glob(filepath.Join(dir, "calls", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-forgetAfter - time.Hour)
	lock := filepath.Join(dir, "calls", "20200101T000000.000-0011223344556677.lock")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, lock) {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if all := calls.List(); len(all) != 1 || !all[0].Followed {
		t.Errorf("kept: %+v", all)
	}
	keep(t, calls, `"last"`, "count").close(false)
	if n := len(calls.List()); n != 2 {
		t.Errorf("%d calls are kept", n)
	}
	if _, err := os.Stat(lock); err == nil {
		t.Error("the lock of a call that is not there is kept")
	}
}

// A process that looks whether a call is followed is not taken for one that follows the call.
func TestSavedCallsLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := SavedCallsIn(t.TempDir())
		k := keep(t, calls, `"a"`, "count")
		k.close(false)
		look := flock.New(statefile.LockName(k.name))
		looks := func() {
			t.Helper()
			if ok, err := look.TryRLock(); !ok || err != nil {
				t.Fatal(ok, err)
			}
			time.AfterFunc(10*time.Millisecond, func() { _ = look.Close() })
		}
		looks()
		if calls.List()[0].Followed {
			t.Error("followed by a process that looks")
		}
		calls.Cancelled(stateOf(`"a"`))
		if calls.List()[0].Cancelled.IsZero() {
			t.Error("the cancellation is not noted")
		}
		looks()
		k = keep(t, calls, `"a"`, "count")
		time.Sleep(time.Second) // until the look is over
		if !calls.List()[0].Followed {
			t.Error("not followed: another process was looking")
		}
		k.close(true)
	})
}
