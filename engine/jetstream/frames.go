package jetstream

import (
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
	at, err = l.lastAfter(ctx, l.events, m, wrong)
	if err != nil {
		return 0, err
	}
	return at, stream.ErrConflict
}

// lastAfter returns which message a subject really ends with, after a leader has said
// that it is not the one that we think. A leader also says so if it could not look.
func (l *Log) lastAfter(ctx context.Context, name string, m message, wrong *wrongLast) (uint64, error) {
	if wrong.at > m.last {
		return wrong.at, nil
	}
	is, _, err := l.last(ctx, name, m.subject) // none is at 0
	switch {
	case err != nil:
		return 0, err
	case is.at == m.last:
		return 0, unavailable(errors.New("the leader sees a conflict where there is none"))
	}
	return is.at, nil
}

// Frames reads a key's frames.
func (l *Log) Frames(ctx context.Context, key string, after uint64, yield func(uint64, time.Duration, []byte) bool) error {
	subject := l.eventSubject(key)
	end, ok, err := l.last(ctx, l.events, subject)
	if err != nil || !ok || end.at <= after {
		return err
	}
	if end.before <= after {
		yield(end.at, end.age(), end.data)
		return nil
	}
	s := scan{Log: l, stream: l.events, filter: subject, at: after, end: end.at, chained: true}
	return s.run(ctx, func(m stored) bool { return yield(m.at, m.age(), m.data) })
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
