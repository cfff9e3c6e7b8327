package reading

import (
	"math"
	"time"

	"holdfast/internal/likeness"
	"holdfast/internal/observe"
)

// An observed is a reader as observers know it.
type observed struct {
	observe.Reader
	watch *observe.Watch // of the call; nil if that has ended
	there uint64         // sequence of the stream's last entry when the reader came
}

// Through says through which door the reader came, and the likeness of its call, if the call has ended and the likeness is known
// (else zero). Observers are told only of readers with a door.
func (r *Reader) Through(door observe.Door, like likeness.Likeness) {
	if r.call == nil && !like.IsZero() {
		r.like = like
	}
	if door != observe.DoorSession { // on its standalone stream a client hears of calls that it may have given up
		r.t.owner.Heard(r, Back)
	}
	if !r.t.opts.Observed {
		return
	}
	o := &observed{there: math.MaxUint64}
	o.Reader = observe.Reader{
		Session: string(r.t.key), Server: r.t.owner.Server(), Number: r.cursor.Stream.Number, Door: door, After: r.began, Came: time.Now(),
	}
	if r.call != nil {
		o.there = r.call.Progress().Said
		if o.watch = r.call.Observe(); o.watch != nil {
			o.Call = &o.watch.Call
		}
	}
	r.observed = o
	if o.watch != nil {
		o.watch.Came(&o.Reader)
	} else {
		r.t.owner.Observed(observe.ReaderCame{Reader: &o.Reader})
	}
}

// tell tells observers of an event of a reader that they know.
func (r *Reader) tell(e observe.Event) {
	if r.observed.watch != nil {
		r.observed.watch.Happened(e)
	} else {
		r.t.owner.Observed(e)
	}
}

// observeRead tells observers that the entries read so far were written.
func (r *Reader) observeRead() {
	if r.observed != nil {
		r.tell(observe.ReaderRead{Reader: &r.observed.Reader, Seq: r.cursor.Seq})
	}
}

// NoteCut notes that the connection broke, if Detach is not told so.
func (r *Reader) NoteCut() { r.cut = true }

// observeWent tells that the reader has left.
func (r *Reader) observeWent(broke bool) {
	o := r.observed
	if o == nil {
		return
	}
	e := observe.ReaderWent{Reader: &o.Reader, Seq: r.cursor.Seq}
	switch {
	case r.endWritten, r.cursor.Stream.Number == Standalone && r.t.owner.Life() >= Ended:
		e.Why = observe.Finished
	case broke, r.cut:
		e.Why = observe.Cut
	case r.t.owner.Life() == Moved:
		e.Why = observe.Moved
	case r.Gone():
		e.Why = observe.Superseded
	default:
		e.Why = observe.Disconnected
	}
	if through := min(o.there, r.cursor.Seq); o.Door.Resumes() && through > r.began {
		e.Replayed = through - r.began
	}
	r.tell(e)
}
