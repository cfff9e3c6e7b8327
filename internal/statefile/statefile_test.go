package statefile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
)

func TestReplace(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "dir", "a.json")
	for _, text := range []string{"long text", "short"} {
		if err := Replace(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("read %q, %v; want %q", got, err, text)
		}
	}
	all, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v; want the file alone", all, err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others can read the file: %v, %v", info.Mode(), err)
	}
	if err := Replace(filepath.Join(name, "below a file"), nil); err == nil {
		t.Error("written below a file")
	}
}

// A lock has one owner at a time, and can be taken again after its release.
func TestTryLock(t *testing.T) {
	t.Parallel()
	name := LockName(filepath.Join(t.TempDir(), "a.json"))
	if filepath.Base(name) != "a.lock" {
		t.Error(name)
	}
	first, err := TryLock(name)
	if err != nil || first == nil {
		t.Fatalf("%v, %v", first, err)
	}
	if second, err := TryLock(name); err != nil || second != nil {
		t.Errorf("locked twice: %v, %v", second, err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	third, err := TryLock(name)
	if err != nil || third == nil {
		t.Fatalf("not locked after its owner: %v, %v", third, err)
	}
	_ = third.Close()
	if _, err := TryLock(filepath.Join(t.TempDir(), "no", "directory")); err == nil {
		t.Error("locked in a directory that is not there")
	}
}

// A process that looks whether a file is locked does not take it from others: those that look at the same time find it free, and LockSoon waits
// until the look is over.
func TestIsLocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "a.lock")
		if _, err := os.Stat(name); IsLocked(name) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that is not there is locked, or made: %v", err)
		}
		look := flock.New(name)
		if ok, err := look.TryRLock(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if IsLocked(name) {
			t.Error("another process that looks is taken for the owner")
		}
		time.AfterFunc(lookTime/2, func() { _ = look.Close() })
		first, err := LockSoon(name)
		if err != nil || first == nil {
			t.Fatalf("%v, %v", first, err)
		}
		if !IsLocked(name) {
			t.Error("not locked")
		}
		if second, err := LockSoon(name); err != nil || second != nil {
			t.Errorf("locked twice: %v, %v", second, err)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if IsLocked(name) {
			t.Error("locked after its owner")
		}
	})
}

func TestDir(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/somewhere")
	if got := Dir(); got != filepath.FromSlash("/somewhere/holdfast") {
		t.Error(got)
	}
	t.Setenv("XDG_STATE_HOME", "relative") // the specification says to ignore it
	if got := Dir(); got == filepath.FromSlash("relative/holdfast") {
		t.Error(got)
	}
}
