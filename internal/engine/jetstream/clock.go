package jetstream

import (
	"context"
	"encoding/json"
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
	said, at, err := l.askTime(ctx)
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

// askTime asks for the servers' time, and returns what it was at a time of ours. It is off by half of
// how long the answer took at the most, so where that is long it asks again.
func (l *Log) askTime(ctx context.Context) (said, at time.Time, err error) {
	least := time.Duration(-1)
	for range 3 {
		var info told
		asked := time.Now()
		if err = l.ask(ctx, "STREAM.INFO."+l.values, nil, &info); err != nil {
			break
		}
		took := time.Since(asked)
		if least < 0 || took < least {
			said, at, least = info.Time, asked.Add(took/2), took
		}
		if took < 250*time.Millisecond {
			break
		}
	}
	if least >= 0 {
		err = nil
	}
	return said, at, err
}

// age is how long ago a message was stored, by the servers' time. Where that is not known well it may
// seem to come yet.
func age(stored, now time.Time) time.Duration { return max(now.Sub(stored), 0) }

// told is what an answer about a stream says of the time.
type told struct {
	failure
	Time time.Time `json:"ts"`
}

func (t *told) read(answer []byte) error { return json.Unmarshal(answer, t) }
