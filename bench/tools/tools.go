// Package tools has the three tools that the benchmarks call, once for an official mcp.Server and
// once for Holdfast's message backend:
//
//	echo {text}                    the text; read-only, so that its calls are light
//	progress {n, size, pause_ms?}  n progress notifications, then "done <n>"
//	slow {ms}                      "slept <ms>", that much later
package tools

import (
	"strconv"
	"time"

	"holdfast/jsonrpc"
)

// Input schemas.
const (
	echoSchema     = `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`
	progressSchema = `{"type":"object","properties":{"n":{"type":"integer"},"size":{"type":"integer"},"pause_ms":{"type":"integer"}},"required":["n","size"]}`
	slowSchema     = `{"type":"object","properties":{"ms":{"type":"integer"}},"required":["ms"]}`
)

const (
	// progress pauses after every pauseEvery notifications.
	pauseEvery = 50
	// maxSize bounds a notification's text, in bytes.
	maxSize = 1 << 20
)

// A Run has the arguments of progress.
type Run struct {
	N, Size int
	Pause   time.Duration
}

// ParseRun parses the arguments of progress. Missing arguments, and those that are not integers,
// count as 0.
func ParseRun(args []byte) Run {
	return Run{
		N:     integer(args, "n"),
		Size:  min(max(integer(args, "size"), 0), maxSize),
		Pause: time.Duration(integer(args, "pause_ms")) * time.Millisecond,
	}
}

// Rest pauses after every 50th notification.
func (r Run) Rest(i int) {
	if r.Pause > 0 && i%pauseEvery == 0 {
		time.Sleep(r.Pause)
	}
}

// Millis parses the argument of slow.
func Millis(args []byte) int { return integer(args, "ms") }

func integer(args []byte, name string) int {
	n, err := strconv.Atoi(string(jsonrpc.Field(args, name)))
	if err != nil {
		return 0
	}
	return n
}
