package client

import "hash/maphash"

// repeats finds messages that come again. A client that requests a stream again, without
// event ids, can't say how far it has read, and gets all messages that the server has
// (SEP-975, "Resuming"; SEP-1335, `rel="stream"` URL). Messages are compared by their hashes.
type repeats struct {
	sums      []uint64
	first     int  // the index at which the present repetition began
	next      int  // the index of the next message in the repetition; len(sums): there is none
	from      int  // where the newest stream of the call began
	beginning bool // no message has come since the stream was requested again
	turns     bool // the next messages may be another stream
}

// mostRepeats bounds how many messages of a stream are remembered.
const mostRepeats = 1 << 16

// again notes that the stream is requested again.
func (t *repeats) again() { t.beginning, t.next = true, len(t.sums) }

// turn notes that the server has the replies that it waited for: it continues with another
// stream, or with the same one.
func (t *repeats) turn() {
	t.again()
	t.turns = true
}

// add notes a message, and reports whether it has come before. A repetition begins with the
// first message of the stream, with the first message of the newest of several streams, or
// with another message that has come only once.
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
	case n >= mostRepeats:
	case t.next < n: // it differs now: it is another stream that begins alike
		t.from = n
		t.sums = append(t.sums, t.sums[t.first:t.next]...)
		t.sums = append(t.sums, sum)
	default:
		t.sums = append(t.sums, sum)
	}
	t.next = len(t.sums)
	return false
}

// find returns the index at which a repetition that starts with the hash begins; len(sums): there is none.
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
