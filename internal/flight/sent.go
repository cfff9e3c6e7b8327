package flight

import (
	"sync"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/reading"
)

// What was sent as the answer of a call. It is a [Source]: if its client has left with some of that unread, the call is stranded.
type sent struct {
	t      *Calls
	s      Session
	number uint64 // of the stream; 0: it is the answer
	like   again.Likeness
	answer []byte
	at     time.Time
	once   sync.Once
}

// Sent returns what stands for the answer of a call with a likeness, in a stream, or nil if nothing is like it. besides says that it is written on the
// standalone stream.
func (t *Calls) Sent(s Session, number uint64, like again.Likeness, besides bool) reading.Sent {
	if besides {
		t.stranded.tell(s, number)
	}
	if like.IsZero() {
		return nil
	}
	return &sent{t: t, s: s, number: number, like: like, at: time.Now()}
}

// Disconnected implements [Source].
func (a *sent) Disconnected(from string, since time.Time) {
	if a.number != 0 {
		a.s.Streams().Disconnected(from, since)
	}
	a.Strand()
}

// Strand implements [reading.Sent]: it strands the call, once. A client that has read all and ends its connection does not reset it.
func (a *sent) Strand() {
	a.once.Do(func() {
		switch doubtful := time.Since(a.at) > resetWithin; {
		case a.number != 0:
			a.t.strand(a.s, a.number, a.like, doubtful, a)
		case !doubtful:
			a.t.strandAnswer(a.s, a.like, a.answer)
		}
	})
}

// heldAnswer bounds the answers that wait with a connection for what the network says of its client, in bytes. Larger ones wait
// for a second.
const heldAnswer = 4 << 10

// Wrote notes that the answer of a call was written, or is about to be, that is stored nowhere. nil: none was.
func (t *Calls) Wrote(c Call, answer []byte) {
	st := c.Standing()
	if st.conn == nil || st.like.IsZero() || st.IsLate() || !mayKeep(answer) {
		return
	}
	what := &sent{t: t, s: c.In(), like: st.like, answer: answer, at: time.Now()}
	st.conn.Wrote(what)
	if len(answer) > heldAnswer {
		time.AfterFunc(resetWithin, func() { what.once.Do(func() { what.answer = nil }) })
	}
}
