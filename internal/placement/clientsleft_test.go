package placement

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Clients that leave are remembered for a while, and no more than so many of them.
func TestLeaversRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l leavers
		began := time.Now()
		l.note("first")
		time.Sleep(leftFor - time.Second)
		if l.note("second"); !l.hasLeft("first", began) || !l.hasLeft("second", began) {
			t.Error("a client that has left is not known")
		}
		for range 2 {
			time.Sleep(leftFor + time.Second)
			l.note("third")
		}
		if l.hasLeft("first", began) {
			t.Error("a client that left long ago is known")
		}
		for i := range 3 * mostRemembered {
			l.note(fmt.Sprint(i))
		}
		if !l.hasLeft(fmt.Sprint(2*mostRemembered), began) {
			t.Error("a client is forgotten too soon")
		}
		if n := len(l.left) + len(l.leftBefore); n > 2*mostRemembered {
			t.Errorf("%d clients are remembered", n)
		}
	})
}

// A request that has come twice, as the connection between the nodes broke, is watched until both are over: its client's leaving ends each.
func TestLeaversWatchTwice(t *testing.T) {
	t.Parallel()
	for _, over := range []int{0, 1} { // which is over before the client leaves
		var l leavers
		first, done := l.watch(t.Context(), "r")
		second, alsoDone := l.watch(t.Context(), "r")
		rest := second
		if over == 0 {
			done()
		} else {
			alsoDone()
			rest = first
		}
		if rest.Err() != nil {
			t.Fatal("ended with the other one")
		}
		l.requestLeft("r")
		if rest.Err() == nil {
			t.Errorf("after the end of request %d the other one is not watched", over)
		}
		done()
		alsoDone()
		if len(l.waiting) != 0 {
			t.Errorf("%d requests are watched", len(l.waiting))
		}
	}
}
