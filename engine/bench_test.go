package engine_test

import (
	"path/filepath"
	"testing"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/redis"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
)

// BenchmarkAppend compares an append of 256 bytes to the store with one to the
// engine alone, one append at a time.
func BenchmarkAppend(b *testing.B) {
	run := func(name string, open opener, url func(b *testing.B) string) {
		data := make([]byte, 256)
		b.Run(name+"/engine", func(b *testing.B) {
			log, err := open(b.Context(), url(b), durable.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close()
			last := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				if last, err = log.Append(b.Context(), "e.a", last, data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/store", func(b *testing.B) {
			log, err := open(b.Context(), url(b), durable.Options{})
			if err != nil {
				b.Fatal(err)
			}
			st := durable.New(log, durable.Options{})
			defer st.Close()
			l, err := st.Create(b.Context(), "a", nil)
			if err != nil {
				b.Fatal(err)
			}
			seq := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				seq++
				if err := st.Append(b.Context(), l, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: seq, Data: data}}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("file", embedded.Open, func(b *testing.B) string { return "file:" + filepath.Join(b.TempDir(), "new") })
	run("redis", redis.Open, func(b *testing.B) string { return redistest.Start(b).URL() })
}
