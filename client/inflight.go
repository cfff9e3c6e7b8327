package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// inFlight are the calls of a Conn that have no response yet. Its methods may be called concurrently.
type inFlight struct {
	givenUp atomic.Bool // a call was cancelled before it was answered

	mu       sync.Mutex
	byRecord map[string]*call
}

// errAmbiguous refuses a call with the id of another call, if one of the two is another Conn's.
var errAmbiguous = fmt.Errorf("%w: a call of another connection, which continues over this one", ErrDuplicate)

// add adds a call, unless its record is taken. shared says that one connection carries all calls: there messages are
// told apart by their ids alone.
func (f *inFlight) add(k *call, shared bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byRecord[k.record] != nil {
		return ErrDuplicate
	}
	if shared {
		for _, o := range f.byRecord {
			if (k.origin.resumed || o.origin.resumed) && o.named(k.id) {
				return errAmbiguous
			}
		}
	}
	f.byRecord[k.record] = k
	return nil
}

// remove removes a call. It reports whether the call was there.
func (f *inFlight) remove(k *call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := f.byRecord[k.record] == k
	if there {
		delete(f.byRecord, k.record)
	}
	return there
}

// putBack adds a call again, as the host did not get its response.
func (f *inFlight) putBack(k *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byRecord[k.record] == nil {
		f.byRecord[k.record] = k
	}
}

// count returns how many calls there are.
func (f *inFlight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byRecord)
}

// all yields the calls. f.mu is held meanwhile.
func (f *inFlight) all() iter.Seq[*call] {
	return func(yield func(*call) bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, k := range f.byRecord {
			if !yield(k) {
				return
			}
		}
	}
}

// of returns the call that the host has made under an id, or nil.
func (f *inFlight) of(id []byte) *call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byRecord[string(jsonrpc.Key(id))]
}

// find returns the call that was sent under an id, or nil. Some servers write an integer as a string, or a string as an integer.
func (f *inFlight) find(id []byte) *call {
	for _, id := range [][]byte{id, rpc.Respelled(jsonrpc.Key(id))} {
		for k := range f.all() {
			if k.named(id) {
				return k
			}
		}
	}
	return nil
}

// withProgress returns the call with a progress token, or nil.
func (f *inFlight) withProgress(token string) *call {
	for k := range f.all() {
		if k.progress.token == token {
			return k
		}
	}
	return nil
}

// failSent fails all calls that were sent, as err may concern any of them.
func (f *inFlight) failSent(err error) {
	for _, k := range slices.Collect(f.all()) {
		if k.mayHaveRun() {
			k.fail(&unknownOutcome{err})
			k.cancel(nil)
		}
	}
}

// Named implements [rpc.Requests].
func (f *inFlight) Named(id []byte) rpc.Request {
	if k := f.find(id); k != nil {
		return k
	}
	return nil
}

// InFlight implements [rpc.Requests].
func (f *inFlight) InFlight() (all []rpc.Request) {
	for k := range f.all() {
		if !k.done() { // an answer may come before it is known that the request was sent
			all = append(all, k)
		}
	}
	return all
}

// GivenUp implements [rpc.Requests].
func (f *inFlight) GivenUp() bool { return f.givenUp.Load() }

// cancelling are the cancellations on their way to the server.
type cancelling struct {
	mu    sync.Mutex
	count int
	none  chan struct{} // closed when no cancellation is left; nil: no caller waits
}

// add counts n more cancellations, or fewer.
func (s *cancelling) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count += n; s.count == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}

// done returns a channel that is closed when no cancellation is left.
func (s *cancelling) done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	none := s.none
	if none == nil {
		none = make(chan struct{})
	}
	if s.count > 0 {
		s.none = none
	} else {
		close(none)
	}
	return none
}

// wait waits until no cancellation is left, or ctx is done.
func (s *cancelling) wait(ctx context.Context) {
	select {
	case <-s.done():
	case <-ctx.Done():
	}
}

// response delivers a response to its call: k, if the response came on k's stream, or
// another call. A nil k says that it came on no call's stream.
func (c *Conn) response(k *call, m jsonrpc.Message) {
	if k != nil && k.named(m.ID) {
		k.deliver(m)
		return
	}
	other := c.calls.find(m.ID)
	if other == nil {
		c.logger.Debug("response to no request in flight", "id", string(m.ID))
		return
	}
	other.deliver(m)
	other.cancel(nil)
}

// named reports whether the request has an id, or was last sent under it.
func (k *call) named(id []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sameID(id, k.wire) || sameID(id, k.id)
}

// nameAtServer returns the id by which the server knows the call: that of the request that its token is for, or else that
// under which the request was last sent. k.mu is held.
func (k *call) nameAtServer() []byte {
	if k.ways.token != "" {
		return k.ways.tokenFor
	}
	return k.wire
}

// answeredUnder reports whether a response with an id is the request's: some servers write an integer as a string, or a
// string as an integer.
func (k *call) answeredUnder(id []byte) bool {
	return k.named(id) || k.named(rpc.Respelled(jsonrpc.Key(id)))
}

// sameID reports whether two ids, as raw JSON, are the same.
func sameID(a, b []byte) bool {
	return len(a) > 0 && string(jsonrpc.Key(a)) == string(jsonrpc.Key(b))
}
