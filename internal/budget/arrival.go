package budget

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Messages of servers are counted while they are read, beside the requests in flight. As a rule the length of a message
// is known only when it has been read. So it takes a place for messages of up to some size, and a larger place when
// that is not enough. Places of each size have memory of their own: a message that waits for a larger place holds only
// a smaller one, so no two messages wait for each other.

// Uncounted is up to how many bytes a message of a server is not counted: it costs less than its connection.
const Uncounted = 16 << 10

// The sizes of places, in bytes; the largest places are as large as their memory.
const (
	smallPlace  = 128 << 10
	mediumPlace = 1 << 20
)

// arrivalWait is how long a message waits for a place.
const arrivalWait = 30 * time.Second

var (
	// ErrNoRoom says that a message was not read, as other messages took the memory for too long.
	ErrNoRoom = errors.New("messages of servers that are being read take up what --memory has room for: try again later")
	// ErrTooLarge says that a message is larger than the largest place.
	ErrTooLarge = errors.New("a message of the server is larger than what --memory has room for")
	// errAbandoned says that the message is no longer needed.
	errAbandoned = errors.New("the conversation has ended")
)

// Full reports whether a message was not read because there was no memory for it.
func Full(err error) bool {
	return errors.Is(err, ErrNoRoom) || errors.Is(err, ErrTooLarge) || errors.Is(err, errAbandoned)
}

// places are the places of one size. Guarded by Flight.mu.
type places struct {
	size    int64 // of one place
	most    int64 // of all places
	share   int64 // of one tenant
	used    int64
	tenants map[string]int64
	waiting []*waiter // oldest first
}

// A waiter waits for a place.
type waiter struct {
	tenant string
	size   int64
	ready  chan struct{} // closed when the waiter has its place
}

// newPlaces returns the places of all sizes for messages of servers that may take up to most bytes. share is the
// part that one tenant may have.
func newPlaces(most int64, share float64) []*places {
	var all []*places
	for _, p := range [][2]int64{{smallPlace, most / 8}, {mediumPlace, most / 4}, {most, most / 4 * 3}} {
		of := int64(share * float64(p[1]))
		if share <= 0 || share >= 1 {
			of = p[1]
		}
		all = append(all, &places{size: min(p[0], p[1]), most: p[1], share: of, tenants: make(map[string]int64)})
	}
	return all
}

// take counts size bytes for a tenant, if there is room and its share allows it. A tenant without other messages may
// have one of any size.
func (p *places) take(tenant string, size int64) bool {
	if p.used+size > p.most || !p.mayHave(tenant, size) {
		return false
	}
	p.used += size
	p.tenants[tenant] += size
	return true
}

// mayHave reports whether a tenant may have size bytes more.
func (p *places) mayHave(tenant string, size int64) bool {
	had := p.tenants[tenant]
	return had == 0 || tenant == "" || had+size <= p.share
}

// give gives bytes back, and gives places to waiters in their order, except those of tenants that have their
// share.
func (p *places) give(tenant string, size int64) {
	p.used -= size
	if p.tenants[tenant] -= size; p.tenants[tenant] <= 0 {
		delete(p.tenants, tenant)
	}
	for i := 0; i < len(p.waiting); {
		w := p.waiting[i]
		switch {
		case p.take(w.tenant, w.size):
			p.waiting = slices.Delete(p.waiting, i, i+1)
			close(w.ready)
		case p.mayHave(w.tenant, w.size):
			return // the waiter is next
		default:
			i++
		}
	}
}

// An Arrival counts the messages of a server, one after the other, each until Done. One goroutine uses it. A nil
// Arrival counts nothing.
type Arrival struct {
	f      *Flight
	tenant string
	done   <-chan struct{} // closed when the message is no longer needed; may be nil
	place  int             // the place taken: 1 + its index in Flight.places; 0: none
	size   int64           // bytes counted
}

// Arrive begins to count messages of a server for a tenant. Once done is closed, Grow does not wait for a place.
func (f *Flight) Arrive(tenant string, done <-chan struct{}) *Arrival {
	if f == nil {
		return nil
	}
	return &Arrival{f: f, tenant: tenant, done: done}
}

// Unnamed makes the Arrival one for messages of several tenants, and returns it.
func (a *Arrival) Unnamed() *Arrival {
	if a != nil {
		a.tenant = ""
	}
	return a
}

// Grow takes a place for size bytes or more, for the message that is being read. most is the longest that the message
// can be: size, if its length is known. Grow waits for a place, if it must. After an error ([Full]) the caller must not
// read the message; Done gives back the place that it has.
func (a *Arrival) Grow(size, most int64) error {
	if a == nil || size <= Uncounted || size <= a.size {
		return nil
	}
	all := a.f.places
	to := slices.IndexFunc(all, func(p *places) bool { return size <= p.size })
	if to < 0 {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, all[len(all)-1].most)
	}
	want := max(size, min(all[to].size, most))
	a.f.mu.Lock()
	if all[to].take(a.tenant, want) {
		a.leave()
		a.place, a.size = to+1, want
		a.f.mu.Unlock()
		return nil
	}
	w := &waiter{tenant: a.tenant, size: want, ready: make(chan struct{})}
	all[to].waiting = append(all[to].waiting, w)
	a.f.mu.Unlock()
	late := time.NewTimer(a.f.patience)
	defer late.Stop()
	err := ErrNoRoom
	select {
	case <-w.ready:
		err = nil
	case <-late.C:
	case <-a.done:
		err = errAbandoned
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if i := slices.Index(all[to].waiting, w); i >= 0 {
		all[to].waiting = slices.Delete(all[to].waiting, i, i+1)
		all[to].give("", 0) // waiters behind it may go on
		return err
	}
	a.leave()
	a.place, a.size = to+1, want
	return nil
}

// Done ends the counting of a message.
func (a *Arrival) Done() {
	if a == nil || a.place == 0 {
		return
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	a.leave()
}

// leave gives up the place. Flight.mu is held.
func (a *Arrival) leave() {
	if a.place > 0 {
		a.f.places[a.place-1].give(a.tenant, a.size)
		a.place, a.size = 0, 0
	}
}

// ReadAll reads r to its end, or up to most bytes. size is the length of r; -1: not known. It takes no more memory
// than the message needs, and a piece beside it.
func (a *Arrival) ReadAll(r io.Reader, size, most int64) ([]byte, error) {
	if size >= 0 && size <= most && (a != nil || size <= 4*Uncounted) { // else memory is taken as bytes come
		if err := a.Grow(size, size); err != nil {
			return nil, err
		}
		data := make([]byte, size)
		_, err := io.ReadFull(r, data)
		return data, err
	}
	var p Pieces
	for {
		n, err := r.Read(p.Room(most - p.Size()))
		p.Took(n)
		switch {
		case errors.Is(err, io.EOF), p.Size() == most:
			return p.Join(), nil
		case err != nil:
			return p.Join(), err
		}
		if err := a.Grow(p.Size(), most); err != nil {
			return p.Join(), err
		}
	}
}

// Pieces are a message that is being read, without copying until it is complete.
type Pieces struct {
	full [][]byte
	last []byte
	size int64
}

// mostPiece is the size of a piece, in bytes, of a long message.
const mostPiece = 1 << 20

// Size returns how many bytes there are.
func (p *Pieces) Size() int64 { return p.size }

// Room returns memory for the next bytes of the message, of which there are at most most.
func (p *Pieces) Room(most int64) []byte {
	if len(p.last) == cap(p.last) {
		if len(p.last) > 0 {
			p.full = append(p.full, p.last)
		}
		p.last = make([]byte, 0, max(1, min(most, max(512, min(p.size, mostPiece)))))
	}
	return p.last[len(p.last):min(int64(cap(p.last)), int64(len(p.last))+max(most, 1))]
}

// Took notes that n bytes of Room's memory were filled.
func (p *Pieces) Took(n int) {
	p.last = p.last[:len(p.last)+n]
	p.size += int64(n)
}

// Add appends bytes.
func (p *Pieces) Add(b []byte) {
	for len(b) > 0 {
		n := copy(p.Room(int64(len(b))), b)
		p.Took(n)
		b = b[n:]
	}
}

// Join returns the message, and empties the Pieces.
func (p *Pieces) Join() []byte {
	data := p.last
	if len(p.full) > 0 || cap(data)-len(data) > 64+len(data)/4 { // the message may be kept for long
		data = bytes.Join(append(p.full, p.last), nil)
	}
	*p = Pieces{}
	return data
}

// arriving has the places for messages of servers, and how long a message waits for one. Flight.mu guards the places.
type arriving struct {
	places   []*places
	patience time.Duration
}

// Arriving returns how many bytes are counted for messages of servers that are being read.
func (f *Flight) Arriving() (used int64) {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.places {
		used += p.used
	}
	return used
}
