package limit

import (
	"fmt"
	"hash/maphash"
	"time"

	"golang.org/x/time/rate"
)

// A bucket has the tokens of one key: a call takes one.
type bucket struct {
	*rate.Limiter
	r    Rate
	used int // calls that have begun here since other nodes were told
}

// buckets are the buckets of all keys that were used of late. There are at most mostBuckets: a
// bucket that is full again is like a new one, and is dropped. If all are in use, new keys share a
// fixed number of buckets: so no number of names takes more memory, or escapes its rate.
type buckets struct {
	all    map[key]*bucket
	sweep  int       // how many buckets make the next drop due
	swept  time.Time // when the last drop was
	shared maphash.Seed
	crowd  bool // the seed is set
}

const (
	mostBuckets  = 1 << 16
	leastBuckets = 1 << 10 // so few are not searched for full ones
	crowdBuckets = 1 << 8  // shared by keys when there are too many
)

// of returns the bucket of a key.
func (b *buckets) of(k key, r Rate, now time.Time) *bucket {
	if one := b.all[k]; one != nil {
		one.follow(r, now)
		return one
	}
	if len(b.all) >= max(b.sweep, leastBuckets) && (len(b.all) < mostBuckets || now.Sub(b.swept) >= time.Second) {
		b.drop(now)
	}
	if len(b.all) >= mostBuckets {
		if !b.crowd {
			b.shared, b.crowd = maphash.MakeSeed(), true
		}
		k = key{k.kind, "", fmt.Sprintf("\x00%d", maphash.Comparable(b.shared, k)%crowdBuckets)}
		if one := b.all[k]; one != nil {
			one.follow(r, now)
			return one
		}
	}
	if b.all == nil {
		b.all = make(map[key]*bucket)
	}
	one := &bucket{Limiter: rate.NewLimiter(rate.Limit(r.PerSecond), r.burst()), r: r}
	b.all[k] = one
	return one
}

// follow sets the bucket's rate, which may have changed.
func (b *bucket) follow(r Rate, now time.Time) {
	if b.r != r {
		b.r = r
		b.SetLimitAt(now, rate.Limit(r.PerSecond))
		b.SetBurstAt(now, r.burst())
	}
}

// owe takes tokens for calls that have begun, also more than the bucket has or can have.
func (b *bucket) owe(n int, now time.Time) {
	b.SetBurstAt(now, max(n, b.r.burst())) // a reservation is for no more tokens than that
	b.ReserveN(now, n)
	b.SetBurstAt(now, b.r.burst())
}

// drop drops buckets that are full again.
func (b *buckets) drop(now time.Time) {
	for k, one := range b.all {
		if one.used == 0 && one.TokensAt(now) >= float64(one.r.burst()) {
			delete(b.all, k)
		}
	}
	b.sweep, b.swept = min(2*len(b.all), mostBuckets), now
}

// calls returns how many calls a request counts as.
func (d *demand) calls() int { return max(d.work, 1) }

// charge takes the tokens of requests from the buckets of all their rates, or from none. l.mu is held.
func (l *Limiter) charge(demands []demand, now time.Time) *Refusal {
	for i := range demands {
		for _, r := range demands[i].rates[:demands[i].m] {
			n := 0 // how many calls need the rate
			for j := range demands {
				for _, other := range demands[j].rates[:demands[j].m] {
					if other.key == r.key {
						n += demands[j].calls()
					}
				}
			}
			if n > r.burst() {
				return tooMany(r.kind, n, r.Rate, demands[i].work > 0)
			}
			b := l.buckets.of(r.key, r.Rate, now)
			if has := b.TokensAt(now); has < float64(n) {
				return tooFast(r.kind, r.Rate, time.Duration((float64(n)-has)/r.PerSecond*float64(time.Second)))
			}
		}
	}
	for i := range demands {
		for _, r := range demands[i].rates[:demands[i].m] {
			b := l.buckets.of(r.key, r.Rate, now)
			b.AllowN(now, demands[i].calls())
			l.use(r.key, b, demands[i].calls())
		}
	}
	return nil
}
