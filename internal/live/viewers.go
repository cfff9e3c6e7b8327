package live

import (
	"slices"
	"sync"
)

// viewers are the open pages, mostViewers at most. Any program that reaches the address can open one, so an operator
// who has the token always gets a place: that of the page that has been open longest without the token, or else of the
// page that has been open longest.
type viewers struct {
	mu  sync.Mutex
	all []*viewer // the oldest first
}

// A viewer is an open page.
type viewer struct {
	operator bool
	gone     chan struct{} // closed when another page has got its place
}

// enter gives a page a place; an operator's page always gets one.
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

// leave frees the place of a page, if the page still has it.
func (v *viewers) leave(place *viewer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(other *viewer) bool { return other == place })
}
