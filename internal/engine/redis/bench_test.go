//go:build unix

package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
)

// BenchmarkAppend measures fenced appends of 256 bytes, one in flight for each session,
// through Log.Append and as a bare script that only checks the last id and adds.
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

// measure has each session call its function from next, one call at a time, b.N times in all.
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

// BenchmarkBus measures round trips between two nodes in this process, of the size of a
// light call and its answer, with sixteen in flight. A forwarded call costs at least
// this beside its cost at its owner. CPU is that of this process.
func BenchmarkBus(b *testing.B) {
	url := redistest.Start(b).URL()
	here, there := open(b, url), open(b, url)
	const calls = 16
	var back [calls]chan struct{}
	for i := range back {
		back[i] = make(chan struct{}, 1)
	}
	listen := func(l *Log, f func([]byte)) {
		stop, err := l.Receive(passOn(f))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(stop)
	}
	listen(here, func(m []byte) { back[m[0]] <- struct{}{} })
	listen(there, func(m []byte) { _ = there.Send(here.Node(), m) })
	cpu := spent()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			message := make([]byte, 400)
			message[0] = byte(i)
			for n := i; n < b.N; n += calls {
				if err := here.Send(there.Node(), message); err != nil {
					b.Error(err)
					return
				}
				<-back[i]
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((spent()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
}

// passOn is a function that receives messages.
type passOn func([]byte)

func (f passOn) Message(m []byte) { f(m) }
func (passOn) Gone(string)        {}

// spent returns the CPU time of this process.
func spent() time.Duration {
	var use syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &use)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
