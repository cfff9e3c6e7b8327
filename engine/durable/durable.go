package durable

import (
	"log/slog"
	"time"

	"holdfast/stream"
)

// Options say what a store keeps. The zero value of each field stands for the
// default given with it.
type Options struct {
	Keep       time.Duration // how long a finished stream is kept; 10 minutes
	SessionTTL time.Duration // how long a session lives that nobody uses; 30 minutes
	Patience   time.Duration // how long an append is repeated while its outcome is not known; 30 s

	// What one node keeps in its memory of the sessions that it owns.
	StreamBytes  int64 // most bytes of one stream; 16 MiB
	SessionBytes int64 // most bytes of one session; 64 MiB
	TotalBytes   int64 // most bytes of all sessions; 1 GiB

	Logger *slog.Logger // slog.Default()
}

// New returns a store over an engine, which it closes.
func New(log Log, o Options) stream.Store { panic("to come") }
