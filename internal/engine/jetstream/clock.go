package jetstream

import (
	"context"
	"encoding/json"
	"math"
	"sync"
	"time"
)

// clockFor is how long a reading of the servers' clock is used.
const clockFor = 30 * time.Second

// A clock has the last reading of the servers' clock: the times of messages are by
// that clock, and this machine's may differ by an hour.
type clock struct {
	mu   sync.Mutex
	said time.Time // the servers' time
	at   time.Time // when that was, by our clock; only the time since then is used
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
	} // else the older reading will do
	return c.said.Add(time.Since(c.at)), nil
}

// look asks for the servers' time, and returns the time said that it was at our time at. The error
// of said is at most half of the time that the answer took, so after a slow answer it asks again.
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
		err = nil // an earlier answer will do
	}
	return said, at, err
}

// age returns how long ago a frame was stored, by the servers' time. It is 0 if the time of the
// frame seems to lie ahead, as the servers' time is not known exactly.
func age(stored, now time.Time) time.Duration { return max(now.Sub(stored), 0) }

// A timedAnswer has the time of an answer about a stream.
type timedAnswer struct {
	failure
	Time time.Time `json:"ts"`
}

func (t *timedAnswer) read(answer []byte) error { return json.Unmarshal(answer, t) }
