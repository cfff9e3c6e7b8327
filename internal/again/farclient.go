package again

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file lends stranded calls to other nodes. A node with a request for such a call asks for it: the call is taken, as for a request here, and its
// messages are written into the answer to that node, to the call's end. If this answer is not read to its end the call is stranded again.

// A loanQuery asks another node for a call.
type loanQuery struct {
	Name    string          `json:"name"`              // of the loan
	Cancel  bool            `json:"cancel,omitempty"`  // the client no longer wants an answer
	ID      json.RawMessage `json:"id,omitempty"`      // by which a modern client knows the request
	Request json.RawMessage `json:"request,omitempty"` // as the client has sent it, but for the id
	Talk    []byte          `json:"talk,omitempty"`    // see [Session]
	Client  []byte          `json:"client,omitempty"`
	Safe    bool            `json:"safe,omitempty"` // the tool may run twice
	Left    bool            `json:"left,omitempty"` // the client has left: the node does not wait for a call without a client
}

// A call is lent as frames: a kind, a length in four bytes, and so many bytes.
const (
	frameTaken   = 'a' // first: the call is taken, and the reason
	frameMessage = 'm' // a message of the call
	frameLast    = 'l' // its last message
	frameAnswer  = 'r' // its response, if it has no stream
	frameUnknown = 'u' // its end is not known
	frameWaits   = 'w' // first: no call can be lent: see [loanWaits]
)

// mostFrame bounds the bytes of a frame.
const mostFrame = 1 << 30

// writeFrame writes a frame.
func writeFrame(w io.Writer, kind byte, data []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data))), data...))
	return err
}

// readFrame reads a frame.
func readFrame(r io.Reader) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > mostFrame {
		return 0, nil, errors.New("a frame that is too long")
	}
	var b bytes.Buffer
	_, err = io.CopyN(&b, r, int64(n))
	return head[0], b.Bytes(), err
}

// A loan is a call that is lent.
type loan struct {
	stop      func()
	cancelled atomic.Bool // the client that made the request again wants no answer
}

// tellStranded tells other nodes of a stranded call that their clients may make again, by the name of its flight.
func (t *Calls) tellStranded(of *stranded) {
	keys := t.keysElsewhere(of)
	if keys == nil {
		return
	}
	name := rand.Uint64()
	if c := of.s.Call(of.number); c != nil && c.Standing().flight != nil {
		name = c.Standing().flight.name
	}
	of.hinted.Store(name)
	t.peers.Strand(keys, name)
}

// tellTaken tells other nodes that such a call is no longer known here.
func (t *Calls) tellTaken(of *stranded) {
	if hinted := of.hinted.Load(); hinted != 0 {
		t.peers.Unstrand("", t.keysElsewhere(of), hinted)
	}
}

// keysElsewhere returns the keys by which other nodes may find a stranded call; nil: they may not.
func (t *Calls) keysElsewhere(of *stranded) []byte {
	if t.peers == nil || of.doubtful {
		return nil
	}
	return keysElsewhere(of.keys, of.s)
}

// keysElsewhere returns the keys by which other nodes may find a call of a session; nil: they may not.
func keysElsewhere(of likeness.Keys, s Session) (keys []byte) {
	if s.Modern() == "" { // a session's requests come to its node, but for those in other sessions
		of[likeness.Asked] = likeness.Digest{}
		if s.IsAnonymous() {
			return nil
		}
	}
	for _, reason := range []likeness.Reason{likeness.Asked, likeness.Named} {
		if key := of[reason]; key != (likeness.Digest{}) {
			keys = append(keys, key[:]...)
		}
	}
	return keys
}

// Lend writes the messages of the stranded call that the request in query makes again, as frames. The call is then no longer known here as
// stranded. found: it has written to w, which has to flush each write.
func (t *Calls) Lend(ctx context.Context, query []byte, w io.Writer) (found bool) {
	var q loanQuery
	if json.Unmarshal(query, &q) != nil {
		return false
	}
	if q.Cancel {
		if l, ok := t.loans.Load(q.Name); ok {
			l.(*loan).cancelled.Store(true)
			l.(*loan).stop()
		}
		return false
	}
	msg, err := jsonrpc.Parse(q.Request)
	if err != nil || len(q.Talk) != len(likeness.Digest{}) || len(q.Client) != len(likeness.Digest{}) || !t.o.Work.Start() {
		return false
	}
	defer t.o.Work.Done()
	sum := SumOf(&msg)
	if q.ID != nil {
		sum += idSum(q.ID)
	}
	like := likeness.Of(&msg, sum, t.o.CallIDs)
	if like.IsZero() {
		return false
	}
	keys := like.KeysAt(likeness.Digest(q.Talk), likeness.Digest(q.Client))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l := &loan{stop: stop}
	t.loans.Store(q.Name, l)                  // before the call is taken: the client may cancel the request while this node waits for the call
	defer t.loans.CompareAndDelete(q.Name, l) // the node may have asked again by that name
	of, call, reason := t.takeFlying(ctx, keys, &q, l)
	if of == nil {
		return q.Left && t.flying.allWait(keys) && writeFrame(w, frameWaits, nil) == nil
	}
	if call != nil {
		t.goesFar(call.Standing())
	}
	whole := t.lend(ctx, of, call, reason, w)
	switch {
	case whole:
	case !l.cancelled.Load():
		t.comesBack(of, call)
	case call != nil && !call.Standing().IsFollowed():
		withdraw(call, of.s, of.number)
	}
	return true
}

// landsWithin is how long a node that is asked for a call waits until it is stranded, if the call's client has left.
const landsWithin = 500 * time.Millisecond

// takeFlying takes a stranded call, as take does, and waits for a call in flight that its client has left, also to cancel it, if the loan is cancelled.
func (t *Calls) takeFlying(ctx context.Context, keys likeness.Keys, q *loanQuery, l *loan) (*stranded, Call, likeness.Reason) {
	found := keys
	if q.Safe {
		found[likeness.Asked] = likeness.Digest{}
	}
	came, wait := time.Now(), time.Millisecond
	for {
		leaves := !q.Left && t.leaves(found, time.Since(came) < strandsWithin) // asked first: the call may be stranded meanwhile
		of, call, reason := t.take(keys, q.Safe, came, nil)
		if of != nil || !leaves || ctx.Err() != nil && !l.cancelled.Load() || time.Since(came) > landsWithin {
			return of, call, reason
		}
		time.Sleep(wait)
		wait = min(2*wait, mostPause)
	}
}

// lend writes the messages of a call, and reports whether they were written to the end.
func (t *Calls) lend(ctx context.Context, of *stranded, call Call, reason likeness.Reason, w io.Writer) bool {
	defer followed(call)()
	if writeFrame(w, frameTaken, []byte{byte(reason)}) != nil {
		return false
	}
	if of.number == 0 {
		return writeFrame(w, frameAnswer, of.answer) == nil
	}
	var failed error
	over, err := t.follow(ctx, of, call, func(e *stream.Entry) bool {
		kind := byte(frameMessage)
		if e.Last {
			kind = frameLast
		}
		failed = writeFrame(w, kind, e.Data)
		return e.Last || failed != nil
	})
	switch {
	case over:
		return failed == nil
	case err != nil:
		return writeFrame(w, frameUnknown, nil) == nil
	}
	return false
}

// comesBack strands a call again that was lent to a node which was lost. call is nil if it has ended.
func (t *Calls) comesBack(of *stranded, call Call) {
	back := &stranded{keys: of.keys, s: of.s, number: of.number, answer: of.answer, since: time.Now(), told: of.told, doubtful: of.doubtful}
	if call != nil {
		t.stranded.giveBack(call.Standing())
	}
	t.stranded.untake(of.s, of.number)
	t.stranded.add(back, t.o.Keep)
	if call != nil && of.s.Modern() != "" {
		call.AwaitReturn(wholeWithin, "the node of its client was lost, and the client did not come back in time")
	}
	t.tellStranded(back)
}
