package revival_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/revival"
	"holdfast/internal/sessionid"
	"holdfast/stream"
)

// A note is kept until the next note of its session, or the session's end, in the store or in memory. In memory their number is bounded.
func TestManyNotes(t *testing.T) {
	t.Parallel()
	store := &values{all: map[string][]byte{}}
	for what, o := range map[string]revival.Options{
		"a store": {Life: time.Hour, Values: store},
		"memory":  {Life: time.Hour, Keys: []sessionid.Key{{1}}},
	} {
		k, now := revival.New(o), time.Now()
		read := func(want string) {
			t.Helper()
			if got, err := k.Noted(t.Context(), "a"); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v; want %q", what, got, err, want)
			}
		}
		read("")
		for _, note := range []string{"one", "two", "", "three"} {
			if err := k.Note(t.Context(), "a", now, []byte(note)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			read(note)
		}
		if o.Values != nil {
			if got, err := revival.New(o).Noted(t.Context(), "a"); err != nil || string(got) != "three" {
				t.Errorf("another node reads %q, %v", got, err)
			}
			continue
		}
		if err := k.End(t.Context(), "a", now); err != nil {
			t.Error(err)
		}
		read("")
		var err error
		n := 0
		for ; err == nil && n < 1_000_000; n++ {
			err = k.Note(t.Context(), stream.SessionKey(fmt.Sprint(n)), now, []byte("x"))
		}
		if !errors.Is(err, revival.ErrNoRoom) || n != 100_001 {
			t.Errorf("%d notes: %v", n, err)
		}
		if err := k.Note(t.Context(), "7", now, nil); err != nil {
			t.Error(err)
		}
		if err := k.Note(t.Context(), "a", now, []byte("x")); err != nil {
			t.Errorf("with room again: %v", err)
		}
	}
}

// Notes of sessions that can be revived no more make room for others.
func TestOldNotesMakeRoom(t *testing.T) {
	t.Parallel()
	k := revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})
	now := time.Now()
	old := now.Add(-2 * time.Hour)
	for n := range 100_000 {
		began := old
		if n == 99_999 {
			began = now
		}
		if err := k.Note(t.Context(), stream.SessionKey(fmt.Sprint(n)), began, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Note(t.Context(), "new", now, []byte("y")); err != nil {
		t.Errorf("a note of a session that can be revived: %v", err)
	}
	for key, want := range map[stream.SessionKey]string{"new": "y", "99999": "x", "0": ""} {
		if got, err := k.Noted(t.Context(), key); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", key, got, err, want)
		}
	}
}

// Old notes are looked for once a minute: each search goes through all of them, with the lock held.
func TestOldNotesLookedForOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})
		began := time.Now().Add(30*time.Second - time.Hour) // the notes are old in 30 seconds
		for n := range 100_000 {
			if err := k.Note(t.Context(), stream.SessionKey(fmt.Sprint(n)), began, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []error{revival.ErrNoRoom, revival.ErrNoRoom, nil} {
			if err := k.Note(t.Context(), "new", time.Now(), []byte("y")); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			time.Sleep(31 * time.Second)
		}
	})
}
