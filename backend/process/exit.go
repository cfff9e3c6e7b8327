package process

import (
	"fmt"
	"strings"
	"time"
)

// An exitError is why a conversation ended whose process exited by itself.
type exitError struct {
	atStart  bool   // it had said nothing, and was not asked to do anything: nothing has begun
	status   string // such as "exit status 1"
	stderr   string // the last lines
	toClient bool   // clients may see them
}

func (e *exitError) Error() string {
	status := e.status
	if e.toClient && e.stderr != "" {
		status = fmt.Sprintf("%s: %s", status, e.stderr)
	}
	if e.atStart {
		return fmt.Sprintf("the server ended at its start (%s)", status)
	}
	return "server process exited: " + status
}

// NothingBegan reports that the process has begun nothing that it was asked.
func (e *exitError) NothingBegan() bool { return e.atStart }

// Stderr is the end of what the process wrote to its stderr, for the log.
func (e *exitError) Stderr() string { return e.stderr }

// Of the stderr of one process so much is logged in each window. A server that logs each byte must not fill the
// operator's disk, nor take the room of other servers in the log.
const (
	logWindow = time.Minute
	logLines  = 200
	logBytes  = 64 << 10
)

// An allowance is what may still be logged in a window.
type allowance struct {
	end          time.Time
	lines, bytes int // that were logged
	left         int // lines that were not
}

// take reports whether a line of so many bytes is to be logged, and how many were left out in the window that
// has ended just now.
func (a *allowance) take(size int, now time.Time) (pass bool, left int) {
	if !now.Before(a.end) {
		left = a.left
		*a = allowance{end: now.Add(logWindow)}
	}
	if a.lines == logLines || a.bytes+size > logBytes {
		a.left++
		return false, left
	}
	a.lines++
	a.bytes += size
	return true, left
}

// Of the end of a process's stderr so much is kept.
const (
	tailLines = 10
	tailLine  = 400 // bytes
)

// A tail is the last lines of a text.
type tail struct{ lines []string }

func (t *tail) add(line string) {
	if len(line) > tailLine {
		line = strings.ToValidUTF8(line[:tailLine], "") + "…"
	}
	if len(t.lines) == tailLines {
		copy(t.lines, t.lines[1:])
		t.lines = t.lines[:tailLines-1]
	}
	t.lines = append(t.lines, strings.Clone(line))
}

func (t *tail) String() string { return strings.Join(t.lines, "\n") }
