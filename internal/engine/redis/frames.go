package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast/stream"
)

// Frames are read in pages: firstPage frames first, then as many as fill about
// pageBytes, but at most mostPage.
const (
	firstPage = 16
	mostPage  = 1024
	pageBytes = 1 << 20
)

// Append adds a frame to a key's sequence, if its last is the one at last.
func (l *Log) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	if len(frame) > maxFrame {
		return 0, fmt.Errorf("append: %w", stream.ErrTooLarge)
	}
	cmd, err := l.run(ctx, &appendScript, l.key("f", key), frame, last, max(1, l.retention.Milliseconds()), l.touch())
	if err != nil {
		return 0, failed("append", err)
	}
	at, err := cmd.Int64()
	if err != nil {
		return 0, failed("append", err)
	}
	if at <= 0 {
		return uint64(-at), fmt.Errorf("append: %w", stream.ErrConflict)
	}
	return uint64(at), nil
}

// Frames calls yield with the frames that are kept after a place.
func (l *Log) Frames(ctx context.Context, key string, after uint64, yield func(at uint64, age time.Duration, frame []byte) bool) error {
	name := l.key("f", key)
	for n := firstPage; ; {
		cmd, now, err := l.read(ctx, name, "xrange", name, "("+strconv.FormatUint(after, 10)+"-0", "+", "count", n)
		if err != nil {
			return failed("read frames", err)
		}
		entries, err := cmd.Slice()
		if err != nil {
			return failed("read frames", err)
		}
		size := 0
		for _, entry := range entries {
			at, frame, err := parseEntry(entry)
			if err != nil {
				return failed("read frames", err)
			}
			if !yield(at, age(now, at), frame) {
				return nil
			}
			after = at
			size += len(frame)
		}
		if len(entries) < n {
			return nil
		}
		n = max(1, min(2*n, mostPage, pageBytes/max(1, size/n)))
	}
}

// parseEntry decodes an entry of XRANGE's answer: its id, and a list of its only
// field's name and value.
func parseEntry(entry any) (at uint64, frame []byte, err error) {
	parts, _ := entry.([]any)
	if len(parts) == 2 {
		id, _ := parts[0].(string)
		fields, _ := parts[1].([]any)
		if ms, _, ok := strings.Cut(id, "-"); ok && len(fields) == 2 {
			data, _ := fields[1].(string)
			at, err = strconv.ParseUint(ms, 10, 64)
			return at, []byte(data), err
		}
	}
	return 0, nil, errors.New("not a frame of ours")
}

// Trim drops a key's frames before a place; 0: all of them.
func (l *Log) Trim(ctx context.Context, key string, before uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.attempt)
	defer cancel()
	name := l.key("f", key)
	args := []any{"unlink", name}
	if before > 0 {
		args = []any{"eval", trimScript, 1, name, strconv.FormatUint(before, 10)}
	}
	_, err := l.exec(ctx, name, commands(ctx, args))
	return failed("trim", err)
}
