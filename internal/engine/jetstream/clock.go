package jetstream

import (
	"context"
	"encoding/json"
	"math"
	"sync"
	"time"
)

// clockFor is how long a look at the servers' clock is good for.
const clockFor = 30 * time.Second

// A clock is the servers', as far as it is known here: when messages were stored is
// said by theirs, and this machine's may be another hour.
type clock struct {
	mu   sync.Mutex
	said time.Time // what theirs said
	at   time.Time // at that time, by ours, of which only what has passed since counts
}

// now returns the servers' time.
func (l *Log) now(ctx context.Context) (time.Time, error) {
	c := &l.clock
	c.mu.Lock()
	said, at := c.said, c.at
	c.mu.Unlock()
	if passed := time.Since(at); !at.IsZero() && passed < clockFor {
		return said.Add(passed), nil
	}
	said, at, err := look(func() (time.Time, error) {
		var info timedAnswer
		err := l.ask(ctx, "STREAM.INFO."+l.values, nil, &info)
		return info.Time, err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.said, c.at = said, at
	case c.at.IsZero():
		return time.Time{}, err
	} // else what it said before will do
	return c.said.Add(time.Since(c.at)), nil
}

// look asks for the servers' time, and returns what it was at a time of ours. It is off by half of
// how long the answer took at the most, so where that is long it asks again.
func look(ask func() (time.Time, error)) (said, at time.Time, err error) {
	const soon = 250 * time.Millisecond
	least := time.Duration(math.MaxInt64)
	for tries := 0; tries < 3 && least > soon; tries++ {
		asked := time.Now()
		theirs, failure := ask()
		if failure != nil {
			err = failure
			break
		}
		if took := time.Since(asked); took < least {
			said, at, least = theirs, asked.Add(took/2), took
		}
	}
	if !at.IsZero() {
		err = nil // what it said before will do
	}
	return said, at, err
}

// age is how long ago a message was stored, by the servers' time. Where that is not known well it may
// seem to come yet.
func age(stored, now time.Time) time.Duration { return max(now.Sub(stored), 0) }

// A timedAnswer is the time in an answer about a stream.
type timedAnswer struct {
	failure
	Time time.Time `json:"ts"`
}

func (t *timedAnswer) read(answer []byte) error { return json.Unmarshal(answer, t) }
