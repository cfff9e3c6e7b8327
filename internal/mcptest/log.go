package mcptest

import (
	"bytes"
	"strings"
	"sync"
)

// A Log keeps the text that is written to it. Its methods may be called concurrently. The zero value is an
// empty log.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the text of the log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Lines returns the lines of the log that contain a text, without line ends and without empty lines.
func (l *Log) Lines(with string) []string { return linesOf(l.String(), with) }

// Take returns the text of the log, and empties the log.
func (l *Log) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// TakeLines returns all lines, as [Log.Lines] does, and empties the log.
func (l *Log) TakeLines() []string { return linesOf(l.Take(), "") }

func linesOf(text, with string) (all []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && strings.Contains(line, with) {
			all = append(all, line)
		}
	}
	return all
}
