package tasktext

import (
	"time"
)

// PollAfter returns how long the client of a task of an age should wait before it asks again: the
// longer a task has run, the less it matters how soon the client learns of its end.
func PollAfter(age time.Duration) time.Duration { return min(max(minPoll, age/pollPart), maxPoll) }

const (
	minPoll  = 500 * time.Millisecond
	maxPoll  = 5 * time.Second
	pollPart = 20 // of the task's age
)
