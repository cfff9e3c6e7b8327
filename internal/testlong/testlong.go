// Package testlong has the flag -long of all tests:
//
//	go test ./...         about a minute, with nothing else than Go and git
//	go test ./... -long   all there is
//
// What takes longer, or needs other programs (node, Chromium, Redis, strace), runs
// with -long only; CI has it always. As each test binary must know the flag, each
// package with tests imports this one in a _test.go file.
package testlong

import (
	"flag"
	"hash/fnv"
	"strconv"
	"testing"
)

var wanted = flag.Bool("long", false, "run also what takes long, or needs other programs")

// Wanted reports whether -long is set. It may be called once the flags are parsed.
func Wanted() bool { return *wanted }

// Only skips t unless -long is set. why says what takes long in it, or what it is run
// for beside the others.
func Only(t testing.TB, why string) {
	t.Helper()
	if !Wanted() {
		t.Skipf("only with -long: %s", why)
	}
}

// All reports whether cases that are alike are all tried: with -long, and under the race detector, which CI runs without -long.
func All() bool { return Wanted() || Race }

// Part skips t unless all cases of its table are tried, or it is among a third of them, which its name decides: cases that are
// alike, and take long together.
func Part(t testing.TB) {
	t.Helper()
	if sum := fnv.New32a(); !All() {
		_, _ = sum.Write([]byte(t.Name()))
		if sum.Sum32()%3 != 0 {
			t.Skip("only with -long: a third of the cases is tried without")
		}
	}
}

// OneGoroutine skips t under the race detector: it reads the sources of the module, say, in one goroutine of its own, where
// there is no race to be found. It runs without the detector.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("it works in one goroutine: no race is possible")
	}
}

// Needs skips t unless -long is set, and fails it if found is false: then something is
// missing on this machine. what says what that is, and how to get it.
func Needs(t testing.TB, found bool, what string) {
	t.Helper()
	if !Wanted() {
		t.Skipf("only with -long: it needs %s", what)
	}
	if !found {
		t.Fatalf("this machine lacks %s", what)
	}
}

// Either returns how much, or how long, it is with -long, and without.
func Either[T any](without, with T) T {
	if !flag.Parsed() { // a TestMain may call it
		flag.Parse()
	}
	if Wanted() {
		return with
	}
	return without
}

// AtOnce has n tests of a package run at a time, unless -parallel says how many: tests that
// wait more than they work. Under the race detector, where they work more, it is a few. A
// TestMain calls it.
func AtOnce(n int) {
	if Race { // more of them would keep each other from the processor for seconds
		n = min(n, 12)
	}
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
