// Package testlong has the flag -long of all tests:
//
//	go test ./...         about a minute, with nothing else than Go and git
//	go test ./... -long   all there is
//
// Tests that take longer, or need other programs (node, Chromium, Redis, strace), run with -long only; CI always runs them. As
// each test binary must know the flag, each package with tests imports this one in a _test.go file.
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

// Only skips t unless -long is set. why says why the test takes long, or what it checks beyond the others.
func Only(t testing.TB, why string) {
	t.Helper()
	if !Wanted() {
		t.Skipf("only with -long: %s", why)
	}
}

// All reports whether tests try all of many similar cases: with -long, and under the race detector, which CI runs without
// -long.
func All() bool { return Wanted() || Race }

// Part skips t unless [All] cases are tried, or t is in a third of them, which its name decides. It is for tables of similar
// cases that take long together.
func Part(t testing.TB) {
	t.Helper()
	if sum := fnv.New32a(); !All() {
		_, _ = sum.Write([]byte(t.Name()))
		if sum.Sum32()%3 != 0 {
			t.Skip("only with -long: a third of the cases is tried without")
		}
	}
}

// OneGoroutine skips t under the race detector. It is for tests that run in one goroutine, such as those that read the sources
// of the module, so that they have no races.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("it works in one goroutine: no race is possible")
	}
}

// Needs skips t unless -long is set, and fails it if found is false: then this machine lacks a program. what names the program,
// and says how to get it.
func Needs(t testing.TB, found bool, what string) {
	t.Helper()
	if !Wanted() {
		t.Skipf("only with -long: it needs %s", what)
	}
	if !found {
		t.Fatalf("this machine lacks %s", what)
	}
}

// Either returns with if -long is set, else without.
func Either[T any](without, with T) T {
	if !flag.Parsed() { // a TestMain may call it
		flag.Parse()
	}
	if Wanted() {
		return with
	}
	return without
}

// AtOnce lets n tests of a package run at a time, unless -parallel is set. It is for tests that wait more than they work. Under
// the race detector, where they work more, n is 12 at most. A TestMain calls it.
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
