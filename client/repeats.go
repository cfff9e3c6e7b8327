package client

import "hash/maphash"

// repeats are the messages that a call's stream has brought without event ids. Who
// asks for such a stream again can't say how far it has come, and is told
// everything that is kept (SEP-975, "Resuming"; SEP-1335, `rel="stream"` URL):
// what comes again is known by what it says.
type repeats struct {
	sums      []uint64
	first     int  // where the repetition began that comes now
	next      int  // where what comes now may stand; len(sums): nowhere
	from      int  // where the newest stream began that goes on with the call
	beginning bool // nothing has come since the stream was asked for again
	turns     bool // what comes now may be another stream
}

// mostTold bounds how many messages of a stream are remembered.
const mostTold = 1 << 16

// again notes that the stream is asked for again.
func (t *repeats) again() { t.beginning, t.next = true, len(t.sums) }

// turn notes that the server has been given what it asked for: it goes on with
// another stream, or with the same one.
func (t *repeats) turn() {
	t.again()
	t.turns = true
}

// add notes a message, and reports whether it has come before: the stream repeats
// what it has said from its first message on, or that of the newest of several
// streams, or from another of which there is only one like it.
func (t *repeats) add(seed maphash.Seed, data []byte) bool {
	sum := maphash.Bytes(seed, data)
	if t.beginning {
		t.next = t.find(sum)
		t.first = t.next
		if t.turns && t.next == len(t.sums) {
			t.from = t.next
		}
		t.beginning, t.turns = false, false
	}
	switch n := len(t.sums); {
	case t.next < n && t.sums[t.next] == sum:
		t.next++
		return true
	case n >= mostTold:
	case t.next < n: // it goes on otherwise: it is another stream that begins alike
		t.from = n
		t.sums = append(t.sums, t.sums[t.first:t.next]...)
		t.sums = append(t.sums, sum)
	default:
		t.sums = append(t.sums, sum)
	}
	t.next = len(t.sums)
	return false
}

// find returns where a repetition begins whose first message is known; len(sums):
// it is none.
func (t *repeats) find(sum uint64) int {
	at := len(t.sums)
	if t.from < at && t.sums[t.from] == sum {
		return t.from
	}
	for i, s := range t.sums {
		switch {
		case s != sum:
		case i == 0:
			return 0
		case at < len(t.sums):
			return len(t.sums)
		default:
			at = i
		}
	}
	return at
}
