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
	var info told
	err := l.ask(ctx, "STREAM.INFO."+l.values, nil, &info)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.said, c.at = info.Time, time.Now()
	case c.at.IsZero():
		return time.Time{}, err
	} // else what it said before will do
	return c.said.Add(time.Since(c.at)), nil
}

// told is what an answer about a stream says of the time.
type told struct {
	failure
	Time time.Time `json:"ts"`
}

func (t *told) read(answer []byte) error { return json.Unmarshal(answer, t) }
