package live

import (
	"slices"
	"sync"
)

// viewers are the pages that are open, of which there are at most mostViewers. Any program that reaches the address can
// open them, so an operator who has the token always gets a place: that of the page that is open longest without the
// token, or else of the one that is open longest.
type viewers struct {
	mu  sync.Mutex
	all []*viewer // the one that is open longest first
}

// A viewer is a page that is open.
type viewer struct {
	operator bool
	gone     chan struct{} // closed when another has its place
}

// enter gives a page a place, if there is one.
func (v *viewers) enter(operator bool) (place *viewer, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) >= mostViewers {
		if !operator {
			return nil, false
		}
		i := max(0, slices.IndexFunc(v.all, func(other *viewer) bool { return !other.operator }))
		close(v.all[i].gone)
		v.all = slices.Delete(v.all, i, i+1)
	}
	place = &viewer{operator: operator, gone: make(chan struct{})}
	v.all = append(v.all, place)
	return place, true
}

// leave frees the place of a page, if that still has it.
func (v *viewers) leave(place *viewer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(other *viewer) bool { return other == place })
}
