// Package deferred has the records of calls that clients were given a name for in the place of the response: that of a task, or of an heir. All
// entries of such a call are in its stream. The record saves reading the stream, and is made again from it when the session is taken over.
//
// It knows nothing of tasks. A service knows a call that it has deferred as a [Deferred], and the session is an [Owner]. The lock of the
// calls is taken last, and not held while these are called.
package deferred

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/journal"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// An Owner is the session of the calls.
type Owner interface {
	// Running returns the call that still writes a stream; nil: it has ended.
	Running(number uint64) Running
	// Record returns the record of such a call. If it has none yet, begin makes one.
	Record(r Running, begin func(over bool) *Call) *Call
	// Hold keeps the session for as long as a call that ends now can be asked for.
	Hold()
	// Moved reports whether the session has left this node, and Taken whether it was taken over from another.
	Moved() bool
	Taken() bool
	// OpenRequests returns the backend's requests in a stream, up to the entry seq, that wait for a response.
	OpenRequests(ctx context.Context, number, seq uint64) ([]jsonrpc.Message, error)
	Streams() *reading.Streams
}

// A Running is a call that has not ended.
type Running interface {
	// Track has the end of the stream, if the store did not take that.
	Track() *journal.Track
	// AwaitsInput reports whether the call waits for its client's answer, and how many entries it has said.
	AwaitsInput() (asking bool, said uint64)
}

// A Deferred is a service's record of a call that it has deferred.
type Deferred interface {
	// Stored notes the stream that the call has got. The call's lock is held, or no other goroutine knows the call.
	Stored(number uint64)
	// AppendNote appends the members by which the service knows the call again.
	AppendNote(dst []byte) []byte
	// Plain returns the call's request as the backend gets it.
	Plain(m jsonrpc.Message) jsonrpc.Message
	// Changed notes that the call's standing may have changed.
	Changed()
}

// Options are those of the calls of all sessions.
type Options struct {
	Context  context.Context
	Keep     time.Duration                    // how long a call can be asked for after its end
	NotFound error                            // for a call that nothing is kept of
	Progress func(data []byte) (string, bool) // returns the message of a progress notification, if it is the server's
}

// Calls has the records of a session's calls. Its methods may be called concurrently.
type Calls struct {
	owner Owner
	opts  *Options

	mu       sync.Mutex
	all      map[uint64]*Call  // by the numbers of their streams; nil if there were none
	answered map[uint64]uint64 // the last entries that the client has answered questions of, by the calls
}

// A Call is the record of a call that may be asked for by a name. Guarded by Calls.mu.
type Call struct {
	of      *Calls
	message string    // of the last progress, or ""
	updated time.Time // when its standing last changed
	ended   time.Time // zero while the call runs
	read    bool      // message has the progress from before the record was made
	stopped bool      // its client has cancelled it
	// askedFor: its client has a name for it. Any call of a tool that was taken over may have been given one.
	askedFor bool
	tool     string // that the request of an heir calls; else ""
	watch    []chan<- struct{}
	since    time.Time // when its client was given its name; zero: when it began
	deferred Deferred  // nil if its client was not answered when it began; it does not change
}

// A Standing says how a call stands.
type Standing struct {
	Running  bool
	Message  string            // of the last progress, or ""
	Updated  time.Time         // zero: not known
	Ended    time.Time         // zero if it runs, or it is not known
	Asked    []jsonrpc.Message // requests of the backend that wait for the client
	Response []byte            // of a call that has ended; nil if it was cancelled
}

// Init makes all the records of a session's calls.
func (all *Calls) Init(owner Owner, opts *Options) { all.owner, all.opts = owner, opts }

// WereUsed reports whether any call of the session was asked for, or may be.
func (all *Calls) WereUsed() (were bool) {
	all.locked(func() { were = all.all != nil })
	return were
}

func (all *Calls) locked(do func()) {
	all.mu.Lock()
	defer all.mu.Unlock()
	do()
}

// use notes that calls of the session may be asked for. The lock is held.
func (all *Calls) use() map[uint64]*Call {
	if all.all == nil {
		all.all = make(map[uint64]*Call)
	}
	return all.all
}

// put puts the record of a call into the table.
func (all *Calls) put(number uint64, c *Call) { all.locked(func() { all.use()[number] = c }) }

// Begin returns the record of a call that is about to begin, and that no other goroutine knows yet. d is the record of the service that has deferred it; nil: none has.
func (all *Calls) Begin(d Deferred) *Call {
	all.locked(func() { all.use() })
	return &Call{of: all, updated: time.Now(), deferred: d}
}

// Record returns the record of a call that still writes its stream, and makes it if there is none.
func (all *Calls) Record(r Running, number uint64) *Call {
	made := false
	c := all.owner.Record(r, func(over bool) *Call {
		made = true
		c := all.Begin(nil)
		if over {
			c.ended = c.updated
		}
		return c
	})
	if made {
		all.put(number, c)
	}
	return c
}

// AddEnded makes the record of a call that ended on another node. tool is that of an heir, or "".
func (all *Calls) AddEnded(number uint64, tool string) {
	now := time.Now()
	all.put(number, &Call{of: all, tool: tool, updated: now, ended: now})
}

// Drop forgets a call that no client was told of.
func (all *Calls) Drop(number uint64) { all.locked(func() { delete(all.all, number) }) }

// Inherit notes that the call is an heir, with a request that calls a tool. message is that of the last progress of the request.
func (c *Call) Inherit(tool, message string) {
	c.of.locked(func() { c.tool, c.message = tool, message })
}

// Name notes that the client is given a name for the call, and returns when that was first done.
func (c *Call) Name() (since time.Time) {
	c.of.locked(func() {
		if c.since.IsZero() {
			c.since = time.Now()
		}
		since = c.since
	})
	return since
}

// Deferred returns the record of the service that has deferred the call; nil: its client was not answered when it began.
func (c *Call) Deferred() Deferred { return c.deferred }

// Stored notes that the call has got a stream, and reports whether it is deferred.
func (c *Call) Stored(number uint64) bool {
	if c.deferred == nil {
		return false
	}
	c.deferred.Stored(number)
	c.of.put(number, c)
	return true
}

// Said takes in a message of the call other than its response. The lock of the call is held.
func (c *Call) Said(data []byte) {
	text, ok := c.of.opts.Progress(data)
	c.of.locked(func() {
		if c.updated = time.Now(); ok {
			c.message = text
		}
	})
}

// End notes that the call has ended. stopped says that its client has cancelled it.
func (c *Call) End(stopped bool) {
	c.of.owner.Hold()
	c.of.locked(func() {
		c.updated = time.Now()
		c.ended, c.stopped = c.updated, c.stopped || stopped
	})
}

// IsAskedFor reports whether the client was told a name for the call, or has asked for it.
func (c *Call) IsAskedFor() (is bool) {
	c.of.locked(func() { is = c.askedFor })
	return is
}

// Progress returns the message of the last progress in a stream, or "". If tokens is not nil, only progress under these counts: a
// batch has that of several requests.
func (all *Calls) Progress(number uint64, tokens []string) (message string) {
	_ = all.owner.Streams().Each(all.opts.Context, number, math.MaxUint64, func(e *stream.Entry) {
		text, ok := all.opts.Progress(e.Data)
		if ok && (tokens == nil || slices.Contains(tokens, string(jsonrpc.Key(jsonrpc.Field(e.Data, "params", "progressToken"))))) {
			message = text
		}
	})
	return message
}

// Wake tells the watchers of a call that entries of it were stored, or that its client has answered.
func (all *Calls) Wake(number uint64) {
	var d Deferred
	all.locked(func() {
		if c := all.all[number]; c != nil {
			for _, ready := range c.watch {
				reading.Wake(ready)
			}
			d = c.deferred
		}
	})
	if d != nil {
		d.Changed()
	}
}

// Watch tells ready when the standing of a call may have changed, until stop is called.
func (all *Calls) Watch(number uint64, ready chan<- struct{}) (stop func()) {
	r := all.owner.Running(number)
	if r == nil {
		reading.Wake(ready)
		return func() {}
	}
	c := all.Record(r, number)
	all.locked(func() { c.watch = append(c.watch, ready) })
	return func() {
		all.locked(func() {
			if i := slices.Index(c.watch, ready); i >= 0 {
				c.watch = slices.Delete(c.watch, i, i+1)
			}
		})
	}
}

// Sweep forgets calls that ended long ago.
func (all *Calls) Sweep(now time.Time) {
	all.locked(func() {
		maps.DeleteFunc(all.all, func(_ uint64, c *Call) bool { return !c.ended.IsZero() && now.Sub(c.ended) > all.opts.Keep+time.Minute })
	})
}

// canBeAskedFor reports whether a call runs, or has ended not long ago. The lock is held.
func (c *Call) canBeAskedFor() bool {
	return c.ended.IsZero() || time.Since(c.ended) <= c.of.opts.Keep
}

// HasHeirs reports whether heirs run, or can be asked for.
func (all *Calls) HasHeirs() bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, c := range all.all {
		if c.tool != "" && c.canBeAskedFor() {
			return true
		}
	}
	return false
}

// Tool returns the tool that the request of an heir calls; "" if there is no such heir.
func (all *Calls) Tool(number uint64) string {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c := all.use()[number]; c != nil {
		return c.tool
	}
	return ""
}

// Deferred returns the record of the service that has deferred the call of a stream, and how the call stands. The error is that of [Calls.Standing].
func (all *Calls) Deferred(ctx context.Context, number uint64) (d Deferred, st Standing, err error) {
	all.locked(func() {
		if c := all.use()[number]; c != nil && c.canBeAskedFor() {
			d = c.deferred
		}
	})
	if d == nil {
		return nil, st, all.opts.NotFound
	}
	st, err = all.Standing(ctx, number)
	return d, st, err
}

// AllDeferred returns the streams of the calls that are deferred, oldest first.
func (all *Calls) AllDeferred() (numbers []uint64) {
	all.locked(func() {
		for number, c := range all.all {
			if c.deferred != nil {
				numbers = append(numbers, number)
			}
		}
	})
	slices.Sort(numbers)
	return numbers
}

// Standing returns how the call of a stream stands. The error is Options.NotFound if nothing is kept of it, [reading.ErrMoved], or that of
// the store.
func (all *Calls) Standing(ctx context.Context, number uint64) (st Standing, err error) {
	r := all.owner.Running(number)
	if r == nil {
		return all.ended(ctx, number)
	}
	c, known, message := all.Record(r, number), false, ""
	all.locked(func() { known = c.read || c.message != "" })
	if !known { // read the progress from before the record was made
		message = all.Progress(number, nil)
	}
	all.locked(func() {
		c.askedFor, c.read = true, true
		c.message = cmp.Or(c.message, message)
		if st = (Standing{Running: !c.stopped, Message: c.message, Updated: c.updated}); c.stopped {
			st.Ended = c.ended
		}
	})
	if !st.Running {
		if all.awaitEndStored(ctx, r, number); all.owner.Moved() { // the session's next owner says how the call stands
			err = reading.ErrMoved
		}
		return st, err
	}
	if end := r.Track().End(); end != nil {
		st.Running, st.Response, st.Ended = false, end.Data, st.Updated
		return st, nil
	}
	if asking, said := r.AwaitsInput(); asking {
		st.Asked, err = all.owner.OpenRequests(ctx, number, said)
	}
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return st, err
}

// storedWithin bounds how long the end of a cancelled call is waited for, if another goroutine appends it.
const storedWithin = 5 * time.Second

// awaitEndStored waits until the store has the end of a call, which was cancelled, so that the next owner of the session says that, too.
func (all *Calls) awaitEndStored(ctx context.Context, r Running, number uint64) {
	ready := make(chan struct{}, 1)
	defer all.Watch(number, ready)()
	ctx, stop := context.WithTimeout(ctx, storedWithin)
	defer stop()
	for all.owner.Running(number) == r && r.Track().End() == nil && !all.owner.Moved() {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
}

// errEndLost ends a call that the store has no response of.
var errEndLost = jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: what became of the call is not kept", protocol.TextOutcomeUnknown)

// ended is Standing for a call that has ended.
func (all *Calls) ended(ctx context.Context, number uint64) (st Standing, err error) {
	all.locked(func() {
		if c := all.use()[number]; c != nil {
			st.Message, st.Updated, st.Ended = c.message, c.updated, c.ended
		}
	})
	end, err := all.owner.Streams().End(ctx, number)
	if all.owner.Streams().IsBlind(number) {
		end = nil
	}
	switch {
	case err != nil && all.owner.Moved():
		return st, reading.ErrMoved
	case errors.Is(err, stream.ErrNotFound) || errors.Is(err, stream.ErrTrimmed):
		return st, all.opts.NotFound
	case err != nil:
		return st, fmt.Errorf("task not read: %w", err)
	case end == nil && all.owner.Moved():
		return st, reading.ErrMoved
	case end == nil:
		st.Response = jsonrpc.AppendError(nil, []byte("0"), errEndLost)
	case len(end.Data) > 0:
		st.Response = end.Data
	}
	return st, nil
}

// mostAnswered bounds how many calls with answered questions a session remembers.
const mostAnswered = 1 << 10

// Answered notes that the client has answered the questions of a call up to the entry seq: it must not answer them twice.
func (all *Calls) Answered(number, seq uint64) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.use()
	if all.answered == nil {
		all.answered = make(map[uint64]uint64)
	}
	if _, known := all.answered[number]; !known && len(all.answered) >= mostAnswered {
		oldest := number
		for n := range all.answered {
			oldest = min(oldest, n)
		}
		delete(all.answered, oldest)
	}
	all.answered[number] = max(all.answered[number], seq)
}

// EndOf returns the response of a call that has ended without the answers to its questions up to the entry seq: its backend has not waited for them,
// or its outcome is unknown. It is nil if the client has answered, or may have at another node, if the call has no response, and if none is kept.
func (all *Calls) EndOf(ctx context.Context, number, seq uint64) []byte {
	st, err := all.ended(ctx, number)
	switch {
	case err != nil:
		return nil
	case string(jsonrpc.Field(st.Response, "error", "code")) == strconv.Itoa(protocol.CodeOutcomeUnknown):
		return st.Response
	case all.owner.Taken(): // the client may have answered at another node
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if through, answered := all.answered[number]; answered && through >= seq {
		return nil
	}
	return st.Response
}
