// Package budget has the memory budget of the process: its size, and how much of it the
// requests and messages in flight take.
//
// The budget has two parts of a fixed size. One is for stores; internal/engine/memory decides
// which streams are dropped when it is full. The other is for requests and messages in
// flight. Neither part can take memory from the other. docs/decisions/0019-memory.md says how
// large they are, and why.
package budget

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Bounds of the default budget, in bytes.
const (
	most  = 1 << 30
	least = 16 << 20
)

// Default returns the default budget of a process, in bytes: a quarter of the memory
// that it may have, which is the least of GOMEMLIMIT, its cgroup's limit and the
// machine's memory; from 16 MiB to 1 GiB.
func Default() int64 { return fitting(available()) }

func fitting(available int64) int64 { return max(min(available/4, most), least) }

// Kept returns the part of a budget that stores may fill, in bytes.
func Kept(budget int64) int64 { return budget - InFlight(budget) }

// InFlight returns the part for requests that are read or run and for messages that
// wait to be stored, in bytes.
func InFlight(budget int64) int64 { return budget / 4 }

// available returns how much memory the process may have, in bytes, as far as that can
// be found out.
func available() int64 {
	limit := debug.SetMemoryLimit(-1) // GOMEMLIMIT, or no limit
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			return "" // other systems have no such files
		}
		return string(text)
	}
	return min(limit, cgroup(read), machine(read("/proc/meminfo")))
}

// cgroup returns the lowest limit of the process's cgroup and those above it. In a
// container the files of its own cgroup may be those at the root.
func cgroup(read func(name string) string) int64 {
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(read("/proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max" // version 2
		if fields[1] != "" {
			if !strings.Contains(","+fields[1]+",", ",memory,") {
				continue
			}
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			n, err := strconv.ParseInt(strings.TrimSpace(read(path.Join(root, dir, file))), 10, 64)
			if err == nil && n > 0 { // else "max", or there is no such file
				limit = min(limit, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// machine returns the machine's memory, from Linux's /proc/meminfo.
func machine(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		var kib int64
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err == nil && kib > 0 {
			return kib << 10
		}
	}
	return math.MaxInt64
}
