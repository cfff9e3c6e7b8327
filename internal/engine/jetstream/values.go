package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/stream"
)

// mourning is how long the message is kept that marks a value as removed. A value
// is removed by such a message, and not by a purge, because storing a message can
// depend on the value's version.
const mourning = 2 * time.Second

func (l *Log) valueSubject(key string) string { return l.prefix + ".kv." + key }

// Put sets a value.
func (l *Log) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	m := message{subject: l.valueSubject(key), last: was, ttl: max(ttl, time.Second), data: value}
	for {
		at, err := l.publish(ctx, m)
		var wrong *wrongLast
		if err == nil || !errors.As(err, &wrong) {
			return at, err
		}
		if was != 0 {
			return l.contradict(ctx, l.values, m, wrong)
		}
		is, ok, err := l.last(ctx, l.values, m.subject)
		switch {
		case err != nil:
			return 0, err
		case ok && !is.removed:
			return 0, stream.ErrConflict
		case ctx.Err() != nil:
			return 0, unavailable(ctx.Err())
		}
		m.last = is.at // the message that marks the removal; 0: none
	}
}

// Get returns a value.
func (l *Log) Get(ctx context.Context, key string) ([]byte, uint64, time.Duration, error) {
	is, ok, err := l.last(ctx, l.values, l.valueSubject(key))
	switch {
	case err != nil:
		return nil, 0, 0, err
	case !ok || is.removed:
		return nil, 0, 0, stream.ErrNotFound
	}
	now, err := l.now(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	return is.data, is.at, now.Sub(is.time), nil
}

// Remove removes a value.
func (l *Log) Remove(ctx context.Context, key string, was uint64) error {
	m := message{subject: l.valueSubject(key), ttl: mourning, removed: true}
	for {
		is, ok, err := l.last(ctx, l.values, m.subject)
		switch {
		case err != nil:
			return err
		case !ok || is.removed:
			return nil
		case was != 0 && is.at != was:
			return stream.ErrConflict
		}
		m.last = is.at
		_, err = l.publish(ctx, m)
		switch {
		case errors.Is(err, stream.ErrFull):
			return l.erase(ctx, is.at)
		case err == nil || !errors.Is(err, stream.ErrConflict):
			return err
		case ctx.Err() != nil:
			return unavailable(ctx.Err())
		}
	}
}

// erase deletes a value's message, for lack of room for a message that marks the removal.
func (l *Log) erase(ctx context.Context, at uint64) error {
	err := l.ask(ctx, "STREAM.MSG.DELETE."+l.values, fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, at), new(failure))
	if code(err) == codeNoMessage || code(err) == codeNotDeleted {
		return nil // the message has gone meanwhile
	}
	return err
}
