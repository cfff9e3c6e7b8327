package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
)

// BenchmarkAppend compares an append with its one part that reaches a server: a publish with the same
// header, over a connection to the same server. Each session has one append in flight.
func BenchmarkAppend(b *testing.B) {
	for _, e := range []struct {
		name string
		url  func(b *testing.B) string
	}{
		{"file", func(b *testing.B) string { return "file:" + b.TempDir() }},
		{"cluster", func(b *testing.B) string { return natstest.Cluster(b).URL() }},
	} {
		b.Run(e.name, func(b *testing.B) {
			l := must(b, e.url(b))
			defer l.Close()
			js := mcptest.Must(natsjs.New(jetstream.Conn(l), natsjs.WithDefaultTimeout(2*time.Second)))(b)
			for _, sessions := range []int{1, 64, 256} {
				b.Run(strconv.Itoa(sessions), func(b *testing.B) {
					b.Run("bare", func(b *testing.B) { measure(b, sessions, bare(js)) })
					b.Run("log", func(b *testing.B) { measure(b, sessions, l.Append) })
				})
			}
		})
	}
}

type appendFunc func(ctx context.Context, key string, last uint64, frame []byte) (uint64, error)

func bare(js natsjs.JetStream) appendFunc {
	return func(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
		m := &nats.Msg{Subject: "holdfast.ev." + key, Data: frame, Header: nats.Header{
			natsjs.ExpectedLastSubjSeqHeader: {strconv.FormatUint(last, 10)},
		}}
		for {
			ack, err := js.PublishMsg(ctx, m)
			if err == nil {
				return ack.Sequence, nil
			}
			var api *natsjs.APIError
			if !errors.As(err, &api) || api.ErrorCode != 10164 { // the append before it is in flight
				return 0, err
			}
		}
	}
}

// measure reports the time of an append, from the call to its return.
func measure(b *testing.B, sessions int, add appendFunc) {
	frame := make([]byte, 256)
	run := fmt.Sprintf("b%016x-", rand.Uint64())
	took := make([][]time.Duration, sessions)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range sessions {
		wg.Go(func() {
			var last uint64
			for left.Add(-1) >= 0 {
				start := time.Now()
				at, err := add(context.Background(), run+strconv.Itoa(i), last, frame)
				if err != nil {
					b.Error(err)
					return
				}
				took[i], last = append(took[i], time.Since(start)), at
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(0, "ns/op")
}
