// Package observe is the only seam for watching calls: the life of each call, and events of
// sessions, nodes and refused requests. Sessions and the server tell; metrics, the audit, traces
// and the live page are [Observer]s. Without observers no work is done.
//
// docs/decisions/0026-observers.md has the reasons.
package observe

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// An Observer is told of calls and other events.
//
//  1. The goroutines that do the work call its methods, also with locks held. They must not
//     block, call Holdfast, or panic. Slow work is left to a goroutine of the observer.
//  2. They may be called concurrently. A call's own messages come in their order: [Began], each
//     [Appended] entry, [CallObserver.Ended]. Events of readers come in between, and after the end.
//  3. Each call that began ends once, also if it ends because its session leaves the node
//     ([Left]). It goes on at another node as a call that began there ([Call.Again]).
//  4. The observer must neither change nor keep the bytes that it is shown.
type Observer interface {
	// Began is told of a call that begins, with the params of its request. It returns the observer
	// of the rest of the call, or nil.
	Began(c *Call, params []byte) CallObserver
	// Happened is told of the events that belong to no call in flight: those of readers of the standalone
	// stream or of a call that has ended, and all events of no call and no reader.
	Happened(e Event)
}

// A CallObserver is told of one call. One value may serve any number of calls.
type CallObserver interface {
	// Happened is told of an event of the call: [Promoted], [BecameTask], [Attached], [HandedOff],
	// [Appended], [ReaderCame], [ReaderRead] or [ReaderWent].
	Happened(c *Call, e Event)
	// Ended is told that the call has ended, or has left this node, once.
	Ended(c *Call, e End)
}

// Observers are the observers of a handler. They may be nil.
type Observers []Observer

// Happened tells all observers of an event that belongs to no call in flight.
func (o Observers) Happened(e Event) {
	for _, one := range o {
		one.Happened(e)
	}
}

// A Call is one request in flight. Each request of a batch is a Call.
type Call struct {
	Session   string // public name
	Server    string // the server of the session; "" if there is only one
	Principal string
	ID        string // of the request, as raw JSON; in a carrier it is not the client's
	Method    string
	Tool      string // the tool of a tools/call, as the client spells it; else ""
	Revision  string // of the protocol
	Trace     Trace
	HTTP      *Trace    // that the HTTP request of the call names; nil: none
	Was       *Span     // its span on the node that it began at, if Again; nil: not known
	Span      *Span     // its own span: an observer may set it in Began
	Began     time.Time // on this node
	BytesIn   int       // of the request
	Carrier   bool      // its session is a carrier
	Again     bool      // it began at another node, and this node has taken the session over

	number   atomic.Uint64
	readers  atomic.Int32
	entries  atomic.Int64
	bytesOut atomic.Int64
}

// A Trace names the trace that a request is part of, in the form of W3C Trace Context
// (params._meta.traceparent, and tracestate).
type Trace struct{ Parent, State string }

// Bounds of a client's texts about a trace, in bytes. In W3C Trace Context a traceparent of version 00 has
// 55 bytes, and a tracestate must be allowed at least 512.
const (
	mostParent = 128
	mostState  = 1024
)

// NewTrace returns the trace that a request names. A state that is too long is dropped, and a parent that
// is too long drops both.
func NewTrace(parent, state string) Trace {
	if len(parent) > mostParent {
		return Trace{}
	}
	if len(state) > mostState {
		state = ""
	}
	return Trace{Parent: parent, State: state}
}

// A Span is the span of a call in a trace. It is in the call's record, for a node that takes the call over.
type Span struct {
	Trace           // the trace that the backend is told its work is part of
	Under string    // the parent, in the form of traceparent; "" if there is none
	Began time.Time // at the call's first node
}

// ID returns the trace's id, 32 hexadecimal digits, or "".
func (t Trace) ID() string {
	if len(t.Parent) < 55 || t.Parent[2] != '-' || t.Parent[35] != '-' {
		return ""
	}
	for _, c := range []byte(t.Parent[3:35]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return t.Parent[3:35]
}

// SampledID returns the trace's id if the trace is recorded, else "".
func (t Trace) SampledID() string {
	id := t.ID()
	if id == "" {
		return ""
	}
	if flags, err := strconv.ParseUint(t.Parent[53:55], 16, 8); err != nil || flags&1 == 0 {
		return ""
	}
	return id
}

// TraceID returns the id of the trace that the call is part of, or "".
func (c *Call) TraceID() string {
	if c.Span != nil {
		return c.Span.ID()
	}
	return c.Trace.ID()
}

// Number returns the number of the call's stream, or 0 while it is light. (All calls of revision
// 2024-11-05 share their session's stream, and count as light.)
func (c *Call) Number() uint64 { return c.number.Load() }

// Connections returns how many connections have read the call so far. A light call has the
// connection that waits for it.
func (c *Call) Connections() int { return max(1, int(c.readers.Load())) }

// Entries returns how many messages the server has sent so far.
func (c *Call) Entries() int { return int(c.entries.Load()) }

// BytesOut returns how many bytes these messages have.
func (c *Call) BytesOut() int64 { return c.bytesOut.Load() }

// An Outcome is how a call ended.
type Outcome uint8

// Outcomes.
const (
	Result              Outcome = iota // with a result
	ToolError                          // with a tool's result that has isError
	Error                              // with an error
	Cancelled                          // by its client
	Unknown                            // with "outcome unknown"
	CancelledByOperator                // by an operator, with an error that says so
	Left                               // not ended: it has left this node
)

// String implements fmt.Stringer.
func (o Outcome) String() string {
	return [...]string{"result", "tool_error", "error", "cancelled", "outcome_unknown", "cancelled_by_operator", "left"}[o]
}

// Outcomes returns all outcomes but [Left].
func Outcomes() []Outcome {
	return []Outcome{Result, ToolError, Error, Cancelled, Unknown, CancelledByOperator}
}

// An End is the end of a call.
type End struct {
	Outcome Outcome
	Code    int       // of a JSON-RPC error; else 0
	At      time.Time // when the call was answered
}

// A Watch tells a call's observers. Its methods may be called concurrently; all methods of a nil
// Watch do nothing. Only the code that runs the call uses it. It gives the number of the stream, 0
// for a light call: a request that was handed off has left the stream of its call.
type Watch struct {
	Call
	next  *Watch // of another request of the same batch
	room  [4]CallObserver
	tells []CallObserver

	mu      sync.Mutex // held while observers are told of [Promoted], [HandedOff], [Appended] and the end
	settled bool
	told    bool
	end     End
}

// Begin tells the observers of w.Call, which begins. next are the requests of the same batch that
// began before, or nil.
func (o Observers) Begin(w *Watch, params []byte, next *Watch) {
	w.next, w.Began, w.tells = next, time.Now(), w.room[:0]
	for _, one := range o {
		if of := one.Began(&w.Call, params); of != nil {
			w.tells = append(w.tells, of)
		}
	}
}

// SpanOf returns the span of a request of the call, or nil.
func (w *Watch) SpanOf(id string) *Span {
	for w != nil && w.ID != id {
		w = w.next
	}
	if w == nil {
		return nil
	}
	return w.Span
}

// Before returns a watch without observers, with the span that a request had on the node that it
// began at, before w.
func (w *Watch) Before(id string, span *Span) *Watch {
	return &Watch{Call: Call{ID: id, Span: span}, next: w}
}

// Stored notes that the light call has got a stream with a number, and tells of it.
func (w *Watch) Stored(number uint64) {
	for ; w != nil; w = w.next {
		w.mu.Lock()
		if !w.told && w.Number() == 0 {
			w.number.Store(number)
			w.happened(Promoted{Number: number})
		}
		w.mu.Unlock()
	}
}

// HandOff notes that a request of the call with the stream from goes on in the stream to, behind a
// handle, and tells of it. It returns the watch of the request, which the number from does not reach
// any more.
func (w *Watch) HandOff(from uint64, id string, to uint64) *Watch {
	if w = w.of(from, id); w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		return nil
	}
	w.number.Store(to)
	w.happened(HandedOff{Was: from, Number: to})
	return w
}

// Append tells of an entry in the stream with a number, unless the call has ended: entries that are
// stored after a call has left this node are not told.
func (w *Watch) Append(number uint64, e Appended) {
	for ; w != nil; w = w.next {
		w.mu.Lock()
		if !w.told && w.Number() == number {
			w.entries.Add(1)
			w.bytesOut.Add(int64(len(e.Data)))
			w.happened(e)
		}
		w.mu.Unlock()
	}
}

// Came tells of a new reader. Of a batch, only the observers of the last request are told of readers.
func (w *Watch) Came(r *Reader) {
	for one := w; one != nil; one = one.next {
		one.readers.Add(1)
	}
	w.happened(ReaderCame{r})
}

// Happened tells of an event of the call that has no method of its own here.
func (w *Watch) Happened(e Event) { w.happened(e) }

func (w *Watch) happened(e Event) {
	if w == nil {
		return
	}
	for _, one := range w.tells {
		one.Happened(&w.Call, e)
	}
}

// Answered counts an answer that is not stored.
func (w *Watch) Answered(number uint64, id string, data []byte) {
	if w = w.of(number, id); w != nil {
		w.entries.Add(1)
		w.bytesOut.Add(int64(len(data)))
	}
}

// Settle notes how a request of the call with a stream's number has ended. The first Settle of a
// request counts. Observers are told with [Watch.End].
func (w *Watch) Settle(number uint64, id string, outcome Outcome, code int) {
	w.settle(number, id, outcome, code, false)
}

// Resettle is Settle for several requests. It overrides an earlier Settle.
func (w *Watch) Resettle(number uint64, ids [][]byte, outcome Outcome, code int) {
	for _, id := range ids {
		w.settle(number, string(id), outcome, code, true)
	}
}

func (w *Watch) settle(number uint64, id string, outcome Outcome, code int, again bool) {
	if w = w.of(number, id); w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.settled || again {
		w.settled, w.end = true, End{Outcome: outcome, Code: code, At: time.Now()}
	}
}

// End tells how the call with a stream's number has ended, once. Requests that were not settled
// have the outcome.
func (w *Watch) End(number uint64, outcome Outcome, code int) {
	w.tell(number, End{Outcome: outcome, Code: code}, false)
}

// Leave tells that the call has left this node. It overrides Settle for a stored call; a settled light
// call was answered from memory, and has ended.
func (w *Watch) Leave(number uint64) { w.tell(number, End{Outcome: Left}, number != 0) }

func (w *Watch) tell(number uint64, end End, whatever bool) {
	for ; w != nil; w = w.next {
		w.mu.Lock()
		if !w.told && w.Number() == number {
			w.told = true
			if !w.settled || whatever {
				w.settled, w.end = true, end
				w.end.At = time.Now()
			}
			for _, one := range w.tells {
				one.Ended(&w.Call, w.end)
			}
		}
		w.mu.Unlock()
	}
}

// of returns the watch of a request of the batch, if the request is still in the stream with a number.
func (w *Watch) of(number uint64, id string) *Watch {
	for w != nil && (w.ID != id || w.Number() != number) {
		w = w.next
	}
	return w
}
