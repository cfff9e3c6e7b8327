package durable_test

import (
	"context"
	"testing"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/stream"
)

// null is an engine that does nothing, so that only the store's cost is measured.
type null struct {
	cluster.Bus
	at uint64
}

func (*null) Node() string               { return "null" }
func (*null) Retention() time.Duration   { return time.Hour }
func (*null) MaxFrame() int              { return 8 << 20 }
func (*null) Ping(context.Context) error { return nil }
func (*null) Close() error               { return nil }

func (*null) Put(context.Context, string, uint64, []byte, time.Duration) (uint64, error) {
	return 1, nil
}

func (*null) Get(context.Context, string) ([]byte, uint64, time.Duration, error) {
	return nil, 0, 0, stream.ErrNotFound
}

func (*null) Remove(context.Context, string, uint64) error { return nil }

func (*null) List(context.Context, string, func(string, []byte, uint64) bool) error { return nil }

func (l *null) Append(context.Context, string, uint64, []byte) (uint64, error) {
	l.at++
	return l.at, nil
}

func (*null) Frames(context.Context, string, uint64, func(uint64, time.Duration, []byte) bool) error {
	return nil
}

func (*null) Trim(context.Context, string, uint64) error { return nil }

func benchmarkAppend(b *testing.B, log durable.Log) {
	st := durable.New(log, durable.Options{})
	defer st.Close()
	l, err := st.Create(b.Context(), "a", nil)
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 256)
	ctx := context.Background()
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		if err := st.Append(ctx, l, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: seq, Data: data}}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	b.Run("null", func(b *testing.B) { benchmarkAppend(b, new(null)) })
	b.Run("memory", func(b *testing.B) { benchmarkAppend(b, logtest.New(logtest.Options{}).Open()) })
}

// BenchmarkFenced measures an append under a lease that another node has taken.
func BenchmarkFenced(b *testing.B) {
	st := durable.New(new(null), durable.Options{})
	defer st.Close()
	l, err := st.Create(b.Context(), "a", nil)
	if err != nil {
		b.Fatal(err)
	}
	l.Epoch++
	records := []stream.Record{{Number: 1, Entry: stream.Entry{Seq: 1}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := st.Append(b.Context(), l, records); err == nil {
			b.Fatal("appended")
		}
	}
}
