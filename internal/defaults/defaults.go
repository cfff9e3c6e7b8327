// Package defaults has the defaults of holdfast.Options. The flags of holdfast serve have the same defaults, and so have the
// packages below the handler.
package defaults

import "time"

// The defaults, by the names of the options.
const (
	UpgradeAfter  = 50 * time.Millisecond
	Retry         = time.Second
	KeepAlive     = 15 * time.Second
	PingAfter     = time.Second
	TaskAfter     = 2 * time.Second
	AttachWithin  = 2 * time.Minute
	CutGrace      = 30 * time.Second
	SessionTTL    = 30 * time.Minute
	SleepAfter    = 5 * time.Minute
	SessionLife   = 30 * 24 * time.Hour
	Keep          = 10 * time.Minute
	MaxWait       = time.Hour
	MaxBody       = 4 << 20
	MaxSessions   = 250_000
	MaxCalls      = 1_000_000
	MaxProcesses  = 256
	MaxShare      = 0.75
	UnusedProcess = time.Minute
	QueueWait     = 10 * time.Second
)
