package budget

import (
	"math"
	"testing"
)

func TestCgroup(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":        {nil, math.MaxInt64},
		"version 2":   {map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "268435456\n"}, 256 << 20},
		"of a parent": {map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		"the least":   {map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "2000\n", "/sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		"a container": {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "4096\n"}, 4096},
		"no limit":    {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, math.MaxInt64},
		"version 1": {map[string]string{"/proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/docker/c\n",
			"/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes": "5000\n", "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1\n"}, 5000},
		"version 1 in a container": {map[string]string{"/proc/self/cgroup": "2:memory:/docker/c\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n"}, 6000},
		"garbage": {map[string]string{"/proc/self/cgroup": "x\n0::\n::\n", "/sys/fs/cgroup/memory.max": "-1"}, math.MaxInt64},
	} {
		if got := cgroup(func(name string) string { return c.files[name] }); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	if got := machine("MemFree: 1 kB\nMemTotal:       24615668 kB\n"); got != 24615668<<10 {
		t.Errorf("the machine has %d", got)
	}
	if got := machine(""); got != math.MaxInt64 {
		t.Errorf("a machine that says nothing has %d", got)
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	for has, want := range map[int64]int64{256 << 20: 64 << 20, 1 << 40: 1 << 30, math.MaxInt64: 1 << 30, 1000: 16 << 20} {
		if got := fitting(has); got != want {
			t.Errorf("of %d: %d, want %d", has, got, want)
		}
		if Kept(want)+InFlight(want) != want {
			t.Errorf("%d is not its parts", want)
		}
	}
	if got := Default(); got < least || got > most {
		t.Errorf("here: %d", got)
	}
}

// The messages on their way stay below the bound, in all and for each tenant. One
// message always passes.
func TestFlight(t *testing.T) {
	t.Parallel()
	f := NewFlight(1600, 50, 0.75)
	step := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	step("a", f.Read("a", 100), true)
	step("a again", f.Read("a", 1), false)
	step("b", f.Read("b", 60), true)
	step("b again", f.Read("b", 40), true)
	step("c, too large for a quarter", f.Read("c", 150), true)
	step("over all", f.Take(51), false)
	step("the rest", f.Take(50), true)
	step("one more", f.Read("d", 1), false)
	f.Done("c", 150)
	step("d", f.Read("d", 1), true)
	f.Done("d", 1)
	f.Done("a", 100)
	f.Done("b", 60)
	f.Done("b", 40)
	f.Add(-50)
	if f.Used() != 0 || len(f.tenants) != 0 {
		t.Errorf("%d bytes and %d tenants are left", f.Used(), len(f.tenants))
	}
	if f := NewFlight(1600, 1000, 0.75); !f.Read("a", 1000) {
		t.Error("the largest message has no room")
	}
	if f := NewFlight(1600, 50, 0.75); f.Share() != 200 {
		t.Errorf("requests of one tenant that run may have %d of 400 bytes", f.Share())
	}
	f = NewFlight(1600, 50, 1)
	step("all of one", f.Read("a", 300) && f.Read("a", 100) && f.Share() == 400, true)
	step("and no more", f.Read("a", 1), false)
	step("nobody counts", (*Flight)(nil).Take(1<<40), true)
}
