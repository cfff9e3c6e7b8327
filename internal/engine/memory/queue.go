package memory

// A queue is a list of finished logs, oldest first. A finished log is in two
// queues: one of its session and one of the store. The links are in the logs, so
// that the garbage collector finds few objects for each finished call.
type queue struct{ oldest, newest *log }

// The queues that a log is in.
const (
	inSession = iota
	inStore
)

// place has the neighbours of a log in a queue.
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
