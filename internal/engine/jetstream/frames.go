package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"holdfast/stream"
)

func (l *Log) eventSubject(key string) string { return l.prefix + ".ev." + key }

// Append adds a frame.
func (l *Log) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	m := message{subject: l.eventSubject(key), last: last, data: frame}
	at, err := l.publish(ctx, m)
	var wrong *wrongLast
	if err == nil || !errors.As(err, &wrong) {
		return at, err
	}
	return l.contradict(ctx, l.events, m, wrong)
}

// contradict returns the place of a subject's last message, and ErrConflict, after a
// leader has said that m.last is not it. If the leader has named an earlier message or
// none, it may have failed to look, or no longer be the leader without knowing. Then
// contradict asks the leader, which may even have stored m: that is no error.
func (l *Log) contradict(ctx context.Context, name string, m message, wrong *wrongLast) (uint64, error) {
	if wrong.at > m.last {
		return wrong.at, stream.ErrConflict
	}
	is, _, err := l.last(ctx, name, m.subject) // is.at is 0 if there is no message
	switch {
	case err != nil:
		return 0, err
	case is.at == m.last:
		return 0, unavailable(errors.New("the leader sees a conflict where there is none"))
	case is.at > m.last && is.before == m.last && bytes.Equal(is.data, m.data):
		return is.at, nil
	}
	return is.at, stream.ErrConflict
}

// Frames reads a key's frames.
func (l *Log) Frames(ctx context.Context, key string, after uint64, yield func(uint64, time.Duration, []byte) bool) error {
	subject := l.eventSubject(key)
	free, err := l.turn(ctx, l.framing)
	if err != nil {
		return err
	}
	end, ok, err := l.last(ctx, l.events, subject)
	free()
	if err != nil || !ok || end.at <= after {
		return err
	}
	now, err := l.now(ctx)
	if err != nil {
		return err
	}
	if end.before <= after {
		yield(end.at, age(end.time, now), end.data)
		return nil
	}
	s := scan{Log: l, stream: l.events, filter: subject, at: after, end: end.at, chained: true}
	return s.run(ctx, func(m stored) bool { return yield(m.at, age(m.time, now), m.data) })
}

// Recent reads a key's frames from any server that has them, without asking the leader
// where they end: that server may lag behind.
func (l *Log) Recent(ctx context.Context, key string, after uint64, yield func(uint64, time.Duration, []byte) bool) error {
	now, err := l.now(ctx)
	if err != nil {
		return err
	}
	s := scan{Log: l, stream: l.events, filter: l.eventSubject(key), at: after, chained: true}
	for {
		got, pending, err := s.batch(ctx)
		if err != nil {
			return err
		}
		for _, m := range got {
			if !s.follows(m) {
				return nil
			}
			if !s.take(m, func(m stored) bool { return yield(m.at, age(m.time, now), m.data) }) {
				return nil
			}
		}
		if pending == 0 || len(got) == 0 {
			return nil
		}
	}
}

// Trim drops frames.
func (l *Log) Trim(ctx context.Context, key string, before uint64) error {
	request, err := json.Marshal(struct {
		Filter string `json:"filter"`
		Before uint64 `json:"seq,omitempty"`
	}{l.eventSubject(key), before})
	if err != nil {
		return err
	}
	return l.ask(ctx, "STREAM.PURGE."+l.events, request, new(failure))
}
