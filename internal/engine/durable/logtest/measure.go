package logtest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// Measure has each session call its function from next, one call at a time, b.N times in all. It reports how long the calls took.
func Measure(b *testing.B, sessions int, next func(session string) func() error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration
	)
	run := fmt.Sprint(time.Now().UnixNano())
	b.ReportAllocs()
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
