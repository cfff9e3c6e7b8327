package server

import (
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/stream"
)

// An arrival is something for the loop to take up: one of text, call and src.
type arrival struct {
	text  []byte        // to be said
	call  *session.Call // a light call, to be waited for
	since time.Time     // when it began
	batch bool          // its answers are
	src   source        // to be read
	of    *strand       // that says it; nil for what is of this node
}

// Until the loop has taken them up, so many arrivals, and so many bytes said, may
// wait: then nothing more is taken off the connection.
const (
	mostArrivals     = 64
	mostArrivedBytes = 64 << 10
)

// put hands something to the loop. It waits while too much is on its way there.
func (d *duplex) put(a arrival) {
	d.mu.Lock()
	for !d.closed && !a.muted() && (len(d.arrivals) >= mostArrivals || d.bytes > mostArrivedBytes) {
		d.room.Wait()
	}
	closed := d.closed || a.muted()
	if !closed {
		d.arrivals = append(d.arrivals, a)
		d.bytes += len(a.text)
	}
	d.mu.Unlock()
	if closed {
		d.drop(&a)
	} else {
		session.Wake(d.ready)
	}
}

// muted says whether nobody wants to hear it any more. duplex.mu is held.
func (a *arrival) muted() bool { return a.of != nil && a.of.mute }

// say says something to the client.
func (d *duplex) say(text []byte) { d.put(arrival{text: text}) }

// drop lets go of what the loop will not take up, or wait for, any more.
func (d *duplex) drop(a *arrival) {
	switch {
	case a.call != nil:
		a.call.ConnectionLost()
	case a.src.Reader != nil:
		d.detach(&a.src, true)
	}
}

// detach ends the reading of a call. broke says that the connection broke before
// its end: then a client that has no tokens to resume its calls by can have it
// continued where it comes back with nothing but the session, as if it had made
// it with a POST.
func (d *duplex) detach(src *source, broke bool) {
	src.Detach(broke && src.about.session == d.s && !d.s.Resumable(), false, false)
}

// takeUp takes up what has arrived, and appends what there is to say of it. more
// says that it has left something for the next turn.
func (d *duplex) takeUp(text []byte) (_ []byte, more bool) {
	d.ids = d.tags()
	d.mu.Lock()
	arrivals := slices.DeleteFunc(d.arrivals, func(a arrival) bool { return a.muted() })
	d.arrivals, d.bytes = nil, 0
	d.room.Broadcast()
	d.mu.Unlock()
	for i := range arrivals {
		switch a := &arrivals[i]; {
		case a.call != nil:
			d.light = append(d.light, *a)
		case a.src.Reader != nil:
			d.sources = append(d.sources, a.src)
		default:
			text = append(append(text, a.text...), '\n')
		}
	}
	text = append(text, d.last...)
	d.last = nil
	kept := d.light[:0]
	for i := range d.light {
		a := &d.light[i]
		if len(text) >= mostText {
			kept, more = append(kept, *a), true
			continue
		}
		answers, done, number := a.call.Answers()
		switch {
		case d.madeAgain(a.call, a.src.about, a.batch):
		case number != 0:
			if err := d.follow(a.call, a.src.about); err != nil {
				text = d.refuse(text, a.src.about.ids, err)
			}
		case !done:
			kept = append(kept, *a)
		case len(answers) > 0: // else it was cancelled
			text = append(appendAnswers(text, answers, a.batch), '\n')
		}
	}
	clear(d.light[len(kept):])
	if d.light = kept; len(kept) == 0 {
		d.light = nil
	}
	return text, more
}

// follow adds the stream of a call that was light until now to what is read.
func (d *duplex) follow(call *session.Call, of *asked) error {
	of.msgs = nil // it is found by its stream
	src, err := d.source(d.s, stream.Cursor{Stream: stream.ID{Number: call.Number()}}, of)
	if err == nil {
		d.sources = append(d.sources, src)
	}
	return err
}
