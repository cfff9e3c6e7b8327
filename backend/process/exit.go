package process

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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

// Logged implements what [protocol.Logged] asks.
func (e *exitError) Logged() bool { return e.atStart }

// Stderr is the end of what the process wrote to its stderr, for the log.
func (e *exitError) Stderr() string { return e.stderr }

// endedAtStart logs that the process has ended before it has said anything, and returns the level of that line.
func (c *conn) endedAtStart(why *exitError) slog.Level {
	level := c.b.starts.Failed(why.status, why.stderr)
	attrs := []any{"error", (&exitError{atStart: true, status: why.status}).Error(), "calls", c.requests.Len()}
	if why.stderr != "" {
		attrs = append(attrs, "stderr", why.stderr)
	}
	c.log.Log(context.Background(), level, "the server ends at its start: run its command by hand and see what it lacks", attrs...)
	return level
}

// started notes the first message of the process.
func (c *conn) started() {
	c.spoke = true
	if again, failed, since := c.b.starts.Worked(); again {
		c.log.Info("the server has started again", "failed_starts", failed, "for", time.Since(since).Round(time.Millisecond))
	}
	c.early.release(true)
}

// early is what a process says before its first message, on stderr or as what is no message. Where the last start of the server
// has failed that is held until it is known whether this one does: of one that does, the line about that has the end of it.
type early struct {
	log *slog.Logger

	mu    sync.Mutex
	held  bool
	lines []earlyLine
}

type earlyLine struct {
	level slog.Level
	text  string
	attrs []any
}

// mostEarly bounds the lines that are held. With any more, all are logged.
const mostEarly = 2 * tailLines

// say logs a line, or holds it.
func (e *early) say(level slog.Level, text string, attrs ...any) {
	e.mu.Lock()
	if e.held {
		e.lines = append(e.lines, earlyLine{level, text, attrs})
		over := len(e.lines) > mostEarly
		e.mu.Unlock()
		if over {
			e.release(true)
		}
		return
	}
	e.mu.Unlock()
	e.log.Log(context.Background(), level, text, attrs...)
}

// release logs what was held: at its level, or at Debug if it is nothing new.
func (e *early) release(isNew bool) {
	e.mu.Lock()
	lines := e.lines
	e.held, e.lines = false, nil
	e.mu.Unlock()
	for _, l := range lines {
		if !isNew {
			l.level = slog.LevelDebug
		}
		e.log.Log(context.Background(), l.level, l.text, l.attrs...)
	}
}

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
