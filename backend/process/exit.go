package process

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// An exitError is the error of a conversation with a process that exited by itself.
type exitError struct {
	atStart  bool   // it had sent no message, and was not asked to do anything: nothing has begun
	status   string // such as "exit status 1"
	stderr   string // its last lines
	toClient bool   // clients may see these lines
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

// NothingBegan reports whether the process has begun none of its requests.
func (e *exitError) NothingBegan() bool { return e.atStart }

// Logged tells [protocol.Logged] whether the log has the error already.
func (e *exitError) Logged() bool { return e.atStart }

// Stderr returns the end of the process's stderr, for the log.
func (e *exitError) Stderr() string { return e.stderr }

// endedAtStart logs that the process has ended at its start, and returns the level of that line.
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

// early has the output of a process before its first message: on stderr, or lines on stdout that are no messages. If the last
// start of the server has failed, it holds these lines until it is known whether this start fails: if it does, the line about
// the failure has the end of them.
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

// mostEarly bounds the lines that are held. If there are more, all are logged.
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

// release logs the held lines: at their levels, or at Debug if they are nothing new.
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

// Bounds of the stderr of one process that is logged in each window. A server that logs each byte must not fill
// the operator's disk, nor take the room of other servers in the log.
const (
	logWindow = time.Minute
	logLines  = 200
	logBytes  = 64 << 10
)

// An allowance counts the lines of a window, to bound those that are logged.
type allowance struct {
	end          time.Time
	lines, bytes int // that were logged
	left         int // lines that were left out
}

// take reports whether to log a line of so many bytes. left is how many lines were left out in the window that has just ended.
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

// Bounds of the end of a process's stderr that is kept.
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
