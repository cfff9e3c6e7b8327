package durable

import (
	"context"
	"sync/atomic"
	"time"
)

// A timedLog is a Log that tells an observer how long its engine takes.
type timedLog struct {
	Log
	observer atomic.Pointer[func(operation string, took time.Duration, err error)]
}

// Observe has f called after each request to the engine of these operations: "append", "put",
// "get", "read", "ping" and "sync". f must not block, and may be called concurrently.
func (st *Store) Observe(f func(operation string, took time.Duration, err error)) {
	st.log.observer.Store(&f)
}

// timed begins to measure an operation. The function that it returns ends that.
func (l *timedLog) timed(operation string) func(error) {
	observer := l.observer.Load()
	if observer == nil {
		return func(error) {}
	}
	began := time.Now()
	return func(err error) { (*observer)(operation, time.Since(began), err) }
}

// Append implements [Log].
func (l *timedLog) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	done := l.timed("append")
	at, err := l.Log.Append(ctx, key, last, frame)
	done(err)
	return at, err
}

// Put implements [Log].
func (l *timedLog) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	done := l.timed("put")
	version, err := l.Log.Put(ctx, key, was, value, ttl)
	done(err)
	return version, err
}

// Get implements [Log].
func (l *timedLog) Get(ctx context.Context, key string) ([]byte, uint64, time.Duration, error) {
	done := l.timed("get")
	value, version, age, err := l.Log.Get(ctx, key)
	done(err)
	return value, version, age, err
}

// Frames implements [Log].
func (l *timedLog) Frames(ctx context.Context, key string, after uint64, yield func(at uint64, age time.Duration, frame []byte) bool) error {
	done := l.timed("read")
	err := l.Log.Frames(ctx, key, after, yield)
	done(err)
	return err
}

// Ping implements [Log].
func (l *timedLog) Ping(ctx context.Context) error {
	done := l.timed("ping")
	err := l.Log.Ping(ctx)
	done(err)
	return err
}
