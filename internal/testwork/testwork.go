// Package testwork measures in tests whether work grows with the size of its input, and no faster.
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
	// hopelessRounds is the least number of rounds before work that grows far too fast is given up.
	hopelessRounds = 6
	// hopeless is the growth from n to 4n that is far too fast.
	hopeless = 12
	// mostGrowth is the growth from n to 4n that is allowed.
	mostGrowth = 5
	// leastWork is the least time of work that can be compared.
	leastWork = time.Millisecond
)

// Many returns n copies of a text with commas in between; %d stands for a copy's number, from 0.
func Many(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%d", strconv.Itoa(i))
	}
	return strings.Join(all, ",")
}

// Linear fails the test if an input of four times the size takes more than five times the work. prepare returns the
// work for n members, elements or messages. The work is measured in processor time of its own thread, and the least
// of several rounds counts, so that a busy machine makes no difference. Nor do the processor's caches: the work for n
// is done on four inputs, which take as much memory as one of 4n, and after a failure it is measured again with a
// larger n.
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

// grows returns "", or, if the work grows too fast, a text with its times for n and for 4n. far says that it grows so
// fast that caches cannot be the reason: quadratic work takes sixteen times as long.
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
	times := 1 // how often the work is repeated, so that it takes long enough to be measured
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

// measure returns the processor time of doing work some times, with garbage collection off: the share of that in the
// work's thread depends on the rest of the process.
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
