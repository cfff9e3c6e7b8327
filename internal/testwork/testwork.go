// Package testwork measures in tests whether work grows with what it is done for, and no faster.
package testwork

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

const (
	leastRounds = 3
	mostRounds  = 20
	// mostGrowth is how many times the work may take for four times as much.
	mostGrowth = 5
	// leastWork is how long work takes, at the least, whose growth can be told.
	leastWork = 200 * time.Microsecond
)

// Linear fails the test if four times as much takes more than five times the work. prepare returns the
// work for n members, elements or messages. It is measured in processor time of its own thread, and the
// least of several rounds counts, so that a busy machine makes no difference. What fits into the
// processor's caches only while it is small is looked at once more with four times as much.
func Linear(t *testing.T, n int, prepare func(n int) (work func())) {
	t.Helper()
	why := grows(n, prepare)
	if why != "" {
		why = grows(4*n, prepare)
	}
	if why != "" {
		t.Error(why)
	}
}

// grows says what work takes for n and for 4n, if that is too much, or "".
func grows(n int, prepare func(n int) (work func())) (why string) {
	one, four := prepare(n), prepare(4*n)
	times := 1 // that the work is repeated, so that it can be measured
	for ; times < 1<<20; times *= 2 {
		if measure(times, one) >= leastWork {
			break
		}
	}
	least, most := time.Duration(1<<62), time.Duration(1<<62)
	for round := range mostRounds {
		least, most = min(least, measure(times, one)), min(most, measure(times, four))
		if round+1 >= leastRounds && most <= mostGrowth*least {
			return ""
		}
	}
	return fmt.Sprintf("%d take %v, and %d take %v: more than %d times as long", n, least/time.Duration(times), 4*n, most/time.Duration(times), mostGrowth)
}

// measure returns the processor time of doing work some times.
func measure(times int, work func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	for range times {
		work()
	}
	return threadTime() - began
}
