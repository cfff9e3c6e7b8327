package placement

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// A location is found by its principal alone, for a while, and until it turns out wrong.
func TestLocations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		remote := func(key, owner string) *session.Remote {
			return &session.Remote{Record: whereabouts.Record{Session: shared.Session{Key: stream.SessionKey(key), Owner: owner}, Principal: caller.At("", "me")}}
		}
		var l locations
		a, b := remote("a", "n1"), remote("b", "n2")
		l.keep(a)
		l.keep(b)
		want := func(key string, want *session.Remote) {
			t.Helper()
			if got := l.find(stream.SessionKey(key), caller.At("", "me")); got != want {
				t.Errorf("%s is at %v, want %v", key, got, want)
			}
		}
		want("a", a)
		if l.find("a", caller.At("", "you")) != nil {
			t.Error("another principal found it")
		}
		l.forget(remote("a", "n1")) // an older location
		want("a", a)
		l.forget(a)
		want("a", nil)
		want("b", b)
		l.keep(a)
		l.forgetNode("n2")
		want("a", a)
		want("b", nil)
		time.Sleep(locatedFor + 1)
		want("a", nil)
		l.keep(a)
		l.forgetAll()
		want("a", nil)
		for i := range 3 * mostLocated {
			l.keep(remote(fmt.Sprint(i), "n1"))
		}
		if len(l.all) > mostLocated {
			t.Errorf("%d are remembered", len(l.all))
		}
	})
}
