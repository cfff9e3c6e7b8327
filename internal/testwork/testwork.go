// Package testwork measures in tests whether work grows with what it is done for, and no faster.
package testwork

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	leastRounds = 3
	mostRounds  = 20
	// hopelessRounds is how many there are at the least before work is given up that grows far too fast.
	hopelessRounds = 6
	// hopeless is how many times as long that takes.
	hopeless = 12
	// mostGrowth is how many times the work may take for four times as much.
	mostGrowth = 5
	// leastWork is how long work takes, at the least, whose growth can be told.
	leastWork = time.Millisecond
)

// Many returns n texts with commas in between; %d stands for their number.
func Many(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%d", strconv.Itoa(i))
	}
	return strings.Join(all, ",")
}

// Linear fails the test if four times as much takes more than five times the work. prepare returns the
// work for n members, elements or messages. It is measured in processor time of its own thread, and the
// least of several rounds counts, so that a busy machine makes no difference. Nor do the processor's
// caches: n are worked on in four places, which take as much memory as 4n in one, and if that is not
// enough, more are looked at.
func Linear(t *testing.T, n int, prepare func(n int) (work func())) {
	t.Helper()
	why, far := grows(n, prepare)
	for i := 0; i < 2 && why != "" && !far; i++ {
		n *= 4
		why, far = grows(n, prepare)
	}
	if why != "" {
		t.Error(why)
	}
}

// grows says what work takes for n and for 4n, if that is too much, or "". far says that it is so much
// that no cache can be why: what is quadratic takes sixteen times as long.
func grows(n int, prepare func(n int) (work func())) (why string, far bool) {
	var parts [4]func()
	for i := range parts {
		parts[i] = prepare(n)
	}
	whole := prepare(4 * n)
	apart := func() {
		for _, part := range parts {
			part()
		}
	}
	times := 1 // that the work is repeated, so that it can be measured
	for ; times < 1<<20; times *= 2 {
		if measure(times, apart) >= leastWork {
			break
		}
	}
	least, most := time.Duration(1<<62), time.Duration(1<<62)
	for round := range mostRounds {
		least, most = min(least, measure(times, apart)), min(most, measure(times, whole))
		if round+1 < leastRounds {
			continue
		}
		if most <= least/4*mostGrowth {
			return "", false
		}
		if round+1 >= hopelessRounds && most > least/4*hopeless {
			break
		}
	}
	one := time.Duration(4 * times)
	return fmt.Sprintf("%d take %v, and %d take %v: more than %d times as long", n, least/one, 4*n, 4*most/one, mostGrowth), most > least/4*hopeless
}

// measure returns the processor time of doing work some times, without that of collecting garbage: of that the work's
// thread has a share which depends on all else that the process does.
func measure(times int, work func()) time.Duration {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	for range times {
		work()
	}
	return threadTime() - began
}
