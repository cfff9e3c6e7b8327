package reading

import "time"

// absences are clients that are away from streams that they may come back for: since
// when, by the numbers of the streams. Guarded by Streams.mu.
type absences struct {
	since map[uint64]time.Time
	crowd int // from this number on clients are looked through for some that are no longer waited for
}

// add notes that the client of a stream is away from now on. No client is waited
// for longer than the given time.
func (a *absences) add(number uint64, longest time.Duration) {
	if len(a.since) >= a.crowd {
		a.prune(longest)
		a.crowd = 2*len(a.since) + 8
	}
	if a.since == nil {
		a.since = make(map[uint64]time.Time, 1)
	}
	a.since[number] = time.Now()
}

// prune forgets the clients that have been away for longer.
func (a *absences) prune(longest time.Duration) {
	for number, at := range a.since {
		if time.Since(at) > longest {
			delete(a.since, number)
		}
	}
}

// remove notes that the client of a stream has come back.
func (a *absences) remove(number uint64) { delete(a.since, number) }

// has reports whether a client is away from a stream.
func (a *absences) has(number uint64) bool {
	_, ok := a.since[number]
	return ok
}

// within reports whether a client is away for no longer than the given time.
func (a *absences) within(longest time.Duration) bool {
	for _, at := range a.since {
		if time.Since(at) <= longest {
			return true
		}
	}
	return false
}
