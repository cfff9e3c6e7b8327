package memory

// A ranking is a heap of tenants or sessions by the bytes that they keep, most on
// top. The members have their indexes.
type ranking[T ranker] struct{ heap []T }

type ranker interface {
	comparable
	place() *rank
}

// rank is the place of a member in a ranking.
type rank struct {
	at   int   // index in the heap; -1: in no ranking
	kept int64 // bytes at the last fix
}

var unranked = rank{at: -1}

func (r *rank) place() *rank { return r }

// top returns the member that keeps most, or nil.
func (r *ranking[T]) top() (first T) {
	if len(r.heap) > 0 {
		first = r.heap[0]
	}
	return first
}

// fix adds a member, or moves it after its kept has changed.
func (r *ranking[T]) fix(x T) {
	if x.place().at < 0 {
		x.place().at = len(r.heap)
		r.heap = append(r.heap, x)
	}
	r.down(r.up(x.place().at))
}

// remove removes a member, if it is there.
func (r *ranking[T]) remove(x T) {
	at, last := x.place().at, len(r.heap)-1
	if at < 0 {
		return
	}
	r.swap(at, last)
	var none T
	r.heap[last] = none
	r.heap = r.heap[:last]
	x.place().at = -1
	if at < last {
		r.down(r.up(at))
	}
}

func (r *ranking[T]) up(at int) int {
	for at > 0 && r.less((at-1)/2, at) {
		r.swap(at, (at-1)/2)
		at = (at - 1) / 2
	}
	return at
}

func (r *ranking[T]) down(at int) {
	for {
		next := 2*at + 1
		if next+1 < len(r.heap) && r.less(next, next+1) {
			next++
		}
		if next >= len(r.heap) || !r.less(at, next) {
			return
		}
		r.swap(at, next)
		at = next
	}
}

func (r *ranking[T]) less(i, j int) bool { return r.heap[i].place().kept < r.heap[j].place().kept }

func (r *ranking[T]) swap(i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	r.heap[i].place().at, r.heap[j].place().at = i, j
}
