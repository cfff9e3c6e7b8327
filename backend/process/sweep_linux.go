package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// maxRounds bounds the scans for processes that were born during a scan.
	maxRounds = 20
	// A process between two programs (execve) has no environment for a moment. A process
	// that seems to have none is looked at again.
	environTries = 3
	environWait  = time.Millisecond
)

// killTagged sends SIGKILL to every process with one of the tags in its environment. Processes
// of which the environment can't be read could not be killed either, and are passed over.
func killTagged(tags map[string]bool) error {
	killed := make(map[int]bool)
	for range maxRounds {
		more, err := killRound(tags, killed)
		if err != nil {
			return err
		}
		// A process with SIGKILL pending can't fork any more, so when a round finds no new
		// process, no new one can come.
		if !more {
			return nil
		}
	}
	return fmt.Errorf("kill descendants: new ones still appear after %d rounds", maxRounds)
}

// killRound makes one round of killTagged. It reports whether it found a process that is
// not in killed, and adds that.
func killRound(tags map[string]bool, killed map[int]bool) (more bool, err error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return false, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("list processes: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() || killed[pid] || !tags[tagOf(name)] {
			continue
		}
		// FindProcess holds on to the process (pidfd), so the process that is looked at
		// once more is the one that is killed, even if its id was just given to another.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if tags[tagOf(name)] && p.Kill() == nil {
			killed[pid], more = true, true
		}
		_ = p.Release()
	}
	return more, nil
}

// tagOf returns the tag in a process's environment, or "".
func tagOf(pid string) string {
	dir := filepath.Join("/proc", pid)
	for range environTries {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			return ""
		}
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if tag, ok := bytes.CutPrefix(v, []byte(tagVariable+"=")); ok {
				return string(tag)
			}
		}
		if len(environ) > 0 {
			return ""
		}
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
			return "" // a zombie, or a thread of the kernel
		}
		time.Sleep(environWait)
	}
	return ""
}
