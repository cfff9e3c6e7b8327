package client

import "hash/maphash"

// told are the messages that a call's stream has brought without event ids. Who
// asks for such a stream again can't say how far it has come, and is told
// everything that is kept (SEP-975, "Resuming"; SEP-1335, `rel="stream"` URL):
// what comes again is known by what it says.
type told struct {
	sums      []uint64
	next      int  // where what comes now may stand; len(sums): nowhere
	beginning bool // nothing has come since the stream was asked for again
}

// mostTold bounds how many messages of a stream are remembered.
const mostTold = 1 << 16

// again notes that the stream is asked for again.
func (t *told) again() { t.beginning, t.next = true, len(t.sums) }

// anew notes that another stream goes on with the call, which repeats nothing.
func (t *told) anew() { *t = told{} }

// repeats notes a message, and says whether it has come before: the stream repeats
// what it has said from its first message on, or from another of which there is
// only one like it.
func (t *told) repeats(seed maphash.Seed, data []byte) bool {
	sum := maphash.Bytes(seed, data)
	if t.beginning {
		t.beginning, t.next = false, t.find(sum)
	}
	if t.next < len(t.sums) && t.sums[t.next] == sum {
		t.next++
		return true
	}
	if len(t.sums) < mostTold {
		t.sums = append(t.sums, sum)
	}
	t.next = len(t.sums)
	return false
}

// find returns where a repetition begins whose first message is known; len(sums):
// it is none.
func (t *told) find(sum uint64) int {
	at := len(t.sums)
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
