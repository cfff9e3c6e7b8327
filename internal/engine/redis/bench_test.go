//go:build unix

package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
)

// BenchmarkAppend is fenced appends of 256 bytes, one in flight for each session,
// through Log.Append and as a bare script that only looks at the last id and adds.
func BenchmarkAppend(b *testing.B) {
	bare := newScript(`
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if (tail and tail[1] or '0-0') ~= ARGV[1] then return redis.error_reply('FENCED') end
return redis.call('XADD', KEYS[1], ARGV[2], 'f', ARGV[3])
`)
	for _, fsync := range []string{"everysec", "always"} {
		l := open(b, redistest.Start(b, "--appendfsync", fsync).URL())
		frame := make([]byte, 256)
		for _, sessions := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/%d/log", fsync, sessions), func(b *testing.B) {
				measure(b, sessions, func(session string) func() error {
					last := uint64(0)
					return func() (err error) {
						last, err = l.Append(b.Context(), "e."+session, last, frame)
						return err
					}
				})
			})
			b.Run(fmt.Sprintf("%s/%d/bare", fsync, sessions), func(b *testing.B) {
				measure(b, sessions, func(session string) func() error {
					n := 0
					key := "bare:{" + session + "}"
					return func() error {
						n++
						args := []any{fmt.Sprintf("%d-0", n-1), fmt.Sprintf("%d-0", n), frame}
						ctx := context.Background()
						err := l.client.EvalSha(ctx, bare.sum, []string{key}, args...).Err()
						if err != nil && n == 1 {
							err = l.client.Eval(ctx, bare.text, []string{key}, args...).Err()
						}
						return err
					}
				})
			})
		}
	}
}

// measure has each session do what next returns, one at a time, b.N times in all.
func measure(b *testing.B, sessions int, next func(session string) func() error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration
	)
	run := fmt.Sprint(time.Now().UnixNano())
	b.ResetTimer()
	for i := range sessions {
		wg.Go(func() {
			do := next(fmt.Sprint(run, "-", i))
			mine := make([]time.Duration, 0, b.N/sessions+1)
			for range cap(mine) {
				began := time.Now()
				if err := do(); err != nil {
					b.Error(err)
					return
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	b.StopTimer()
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "appends/s")
}
