package memory

// A queue holds finished logs, oldest first. A finished log is in two: its
// session's and the store's. The links are the logs' own, so that a finished call
// is few objects for the garbage collector, which meets all that is kept.
type queue struct{ oldest, newest *log }

// The queues that a log is in.
const (
	inSession = iota
	inStore
)

// place is where a log is in a queue.
type place struct{ older, newer *log }

func (q *queue) push(l *log, in int) {
	l.places[in].older = q.newest
	if q.newest != nil {
		q.newest.places[in].newer = l
	} else {
		q.oldest = l
	}
	q.newest = l
}

// precede puts a log before all others.
func (q *queue) precede(l *log, in int) {
	l.places[in].newer = q.oldest
	if q.oldest != nil {
		q.oldest.places[in].older = l
	} else {
		q.newest = l
	}
	q.oldest = l
}

func (q *queue) remove(l *log, in int) {
	p := &l.places[in]
	if p.older != nil {
		p.older.places[in].newer = p.newer
	} else {
		q.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.places[in].older = p.older
	} else {
		q.newest = p.older
	}
	*p = place{}
}
