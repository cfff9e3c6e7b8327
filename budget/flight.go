package budget

import (
	"sync"
	"sync/atomic"
)

// A Flight counts the bytes that are on their way, against a bound. Its methods may be
// called concurrently; those of a nil Flight bound nothing.
type Flight struct {
	most int64
	used atomic.Int64

	mu      sync.Mutex
	tenants map[string]int64 // bytes that are read for each
}

// NewFlight returns a count against the in-flight part of a budget, or against so many
// bytes as the largest message has, if that is more.
func NewFlight(budget, largest int64) *Flight {
	return &Flight{most: max(InFlight(budget), largest), tenants: make(map[string]int64)}
}

// Most is the bound, in bytes.
func (f *Flight) Most() int64 {
	if f == nil {
		return 1 << 62
	}
	return f.most
}

// Share is how many bytes one tenant may have on their way in requests that run; as
// many again may be had by all others at any time.
func (f *Flight) Share() int64 { return f.Most() / 2 }

// Used is how many bytes are on their way.
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

// Add counts n bytes that are there in any case; less than nothing: they are no longer.
func (f *Flight) Add(n int64) {
	if f != nil {
		f.used.Add(n)
	}
}

// Read counts n bytes that are about to be read from a tenant, if there is room for
// them: in all, and in the quarter that one tenant has for what is being read. They are
// counted until Done. A tenant that reads nothing else may have one message of any size.
func (f *Flight) Read(tenant string, n int64) bool {
	if f == nil {
		return true
	}
	if !f.Take(n) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if had := f.tenants[tenant]; had > 0 && had+n > f.most/4 {
		f.used.Add(-n)
		return false
	}
	f.tenants[tenant] += n
	return true
}

// Done ends what Read began.
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
