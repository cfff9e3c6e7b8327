package torture

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// A kind is what happens to the connections of a call.
type kind int

// The kinds.
const (
	clean    kind = iota // nothing
	unsent               // the request does not reach the server
	unseen               // the request reaches the server, but no byte of the answer reaches the client
	partly               // the answer is cut after some events, or in the middle if it is not an event stream
	silent               // the connection stays open, but nothing more comes over it
	held                 // the answer comes late, as a whole
	delayed              // each event of the answer comes late
	repeated             // the request is sent twice, as by a proxy that tries again
	killed               // the server's process is killed when it has got the call
	lastKind = killed
)

// String returns the name of the kind in reports.
func (k kind) String() string {
	return [...]string{
		"nothing", "request cut", "cut before the first byte", "cut after some events", "silent connection", "answer held",
		"events delayed", "request repeated", "server killed",
	}[k]
}

// end is how a connection is cut.
type end int

// The ends.
const (
	fin      end = iota
	rst          // both sides
	halfOpen     // the client gets a FIN, and the server is not told
	lastEnd  = halfOpen
)

// A plan says what happens to one call. It depends only on the seed and the number of the call.
type plan struct {
	kind   kind
	end    end
	events int           // how many events pass before a cut or silence
	times  int           // how many connections of the call are cut, one after another
	wait   time.Duration // the delay of an answer or event
}

// planOf returns the plan for a call. Calls count from 0. kills says whether the server has a process to kill. Each kind
// comes once in as many calls as there are kinds, so that a short run has them all.
func planOf(seed uint64, call int, kills bool) plan {
	kinds := int(lastKind) + 1
	round := source(seed, call/kinds, 0)
	k := kind(round.Perm(kinds)[call%kinds])
	r := source(seed, call, 1)
	p := plan{
		kind:   k,
		end:    end(r.IntN(int(lastEnd) + 1)),
		events: r.IntN(4),
		times:  1 + r.IntN(3),
		wait:   time.Duration(100+r.IntN(200)) * time.Millisecond,
	}
	switch p.kind {
	case killed:
		if !kills {
			p.kind = partly
		}
	case held:
		p.wait *= 10
	}
	return p
}

// source returns random numbers for a seed and two numbers. They are the same in each run.
func source(seed uint64, number, use int) *rand.Rand {
	hash := fnv.New64a()
	fmt.Fprint(hash, seed, number, use)
	return rand.New(rand.NewPCG(seed, hash.Sum64())) //nolint:gosec // a plan is no secret
}
