package budget

import (
	"sync"
	"sync/atomic"
)

// A Flight counts the bytes of requests and messages in flight, against a bound. Its
// methods may be called concurrently; those of a nil Flight bound nothing.
type Flight struct {
	most        int64
	reads, runs int64 // of that, the parts for one tenant
	used        atomic.Int64

	mu      sync.Mutex
	tenants map[string]int64 // bytes that are being read, by tenant
	arriving
}

// NewFlight returns a count against the in-flight part of a budget, or against largest,
// the size of the largest message, if that is more. One tenant may have a share of it,
// as a part of 1: a third of the share in requests being read, and two thirds in
// requests that run. With a share of 1 a tenant may have all.
func NewFlight(budget, largest int64, share float64) *Flight {
	f := &Flight{most: max(InFlight(budget), largest), tenants: make(map[string]int64)}
	if f.reads, f.runs = f.most, f.most; share > 0 && share < 1 {
		f.reads = int64(share / 3 * float64(f.most))
		f.runs = int64(share * 2 / 3 * float64(f.most))
	}
	f.arriving = arriving{newPlaces(f.most, share), arrivalWait}
	return f
}

// Most returns the bound, in bytes.
func (f *Flight) Most() int64 {
	if f == nil {
		return 1 << 62
	}
	return f.most
}

// Share returns how many bytes one tenant may have in requests that run.
func (f *Flight) Share() int64 {
	if f == nil {
		return 1 << 62
	}
	return f.runs
}

// Used returns how many bytes are counted.
func (f *Flight) Used() int64 {
	if f == nil {
		return 0
	}
	return f.used.Load()
}

// Take counts n bytes, if there is room for them.
func (f *Flight) Take(n int64) bool {
	if f == nil {
		return true
	}
	if f.used.Add(n) > f.most {
		f.used.Add(-n)
		return false
	}
	return true
}

// Add counts n bytes whether there is room or not; a negative n gives bytes back.
func (f *Flight) Add(n int64) {
	if f != nil {
		f.used.Add(n)
	}
}

// Read counts n bytes that are about to be read from a tenant, if there is room for them
// in all, and in the tenant's part for requests being read. They are counted until Done.
// A tenant without other reads may have one message of any size.
func (f *Flight) Read(tenant string, n int64) bool {
	if f == nil {
		return true
	}
	if !f.Take(n) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if had := f.tenants[tenant]; had > 0 && had+n > f.reads {
		f.used.Add(-n)
		return false
	}
	f.tenants[tenant] += n
	return true
}

// Done gives the bytes of a Read back.
func (f *Flight) Done(tenant string, n int64) {
	if f == nil || n == 0 {
		return
	}
	f.used.Add(-n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tenants[tenant] -= n; f.tenants[tenant] <= 0 {
		delete(f.tenants, tenant)
	}
}
