package budget

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Messages of servers are counted while they are read, beside the requests that are on their way. How long one is is
// known when it has been read, as a rule. So it takes a place for messages of up to some size, and a larger place when
// that is not enough. Places of each size have memory of their own: who waits for a larger place keeps nobody from what
// he waits for, and no two wait for each other.

// Uncounted is how long a message of a server is, in bytes, that is not counted: it costs less than its connection.
const Uncounted = 16 << 10

// The sizes of places, in bytes; the largest place is as large as all of them may be together.
const (
	smallPlace  = 128 << 10
	mediumPlace = 1 << 20
)

// arrivalWait is how long a message waits for its turn.
const arrivalWait = 30 * time.Second

var (
	// ErrNoRoom says that other messages took the memory for so long that one was not read.
	ErrNoRoom = errors.New("messages of servers that are being read take up what --memory has room for: try again later")
	// ErrTooLarge says that there is never room for a message.
	ErrTooLarge = errors.New("a message of the server is larger than what --memory has room for")
	// errAbandoned says that nobody waits for the message any more.
	errAbandoned = errors.New("the conversation has ended")
)

// Full reports whether a message was not read because there was no memory for it.
func Full(err error) bool {
	return errors.Is(err, ErrNoRoom) || errors.Is(err, ErrTooLarge) || errors.Is(err, errAbandoned)
}

// A places are those of one size. Guarded by Flight.mu.
type places struct {
	size    int64 // of one
	most    int64 // of all
	share   int64 // of one tenant
	used    int64
	tenants map[string]int64
	waiting []*waiter // oldest first
}

// A waiter waits for a place.
type waiter struct {
	tenant string
	size   int64
	ready  chan struct{} // closed when it has the place
}

// newPlaces returns places for messages of servers that may take up most bytes together, and of which one tenant
// may have a share.
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

// take takes so many bytes for a tenant, if it can have them. One message of a tenant may be of any size.
func (p *places) take(tenant string, size int64) bool {
	if p.used+size > p.most || !p.mayHave(tenant, size) {
		return false
	}
	p.used += size
	p.tenants[tenant] += size
	return true
}

// mayHave reports whether so many bytes more are within the share of a tenant.
func (p *places) mayHave(tenant string, size int64) bool {
	had := p.tenants[tenant]
	return had == 0 || tenant == "" || had+size <= p.share
}

// give gives bytes back, and lets those go on who waited for them: in their order, but for those whose tenants
// have their share.
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
			return // it is next
		default:
			i++
		}
	}
}

// An Arrival counts one message after the other of a server, each until Done. One goroutine uses it. A nil Arrival
// counts nothing.
type Arrival struct {
	f      *Flight
	tenant string
	done   <-chan struct{} // nobody waits for the message any more; may be nil
	place  int             // which is taken, from 1 on; 0: none
	size   int64           // what it counts for
}

// Arrive begins to count messages of a server for a tenant. Who waits for a place does not when done is closed.
func (f *Flight) Arrive(tenant string, done <-chan struct{}) *Arrival {
	if f == nil {
		return nil
	}
	return &Arrival{f: f, tenant: tenant, done: done}
}

// Unnamed returns the Arrival as one of messages that are for several tenants.
func (a *Arrival) Unnamed() *Arrival {
	if a != nil {
		a.tenant = ""
	}
	return a
}

// Grow counts the message that is being read as one of up to size bytes, or more. It is of most bytes at the longest: as
// many as size, if that is known. Grow waits for its turn, if it must. The errors are ErrNoRoom and ErrTooLarge: then
// the message is not to be read, and Done gives back what it has.
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
		all[to].give("", 0) // others may have waited for it
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

// ReadAll reads all of r, of which at most most bytes are read. size is how many there are; -1: that is not known.
// No more memory is taken than the message needs, and a piece beside it.
func (a *Arrival) ReadAll(r io.Reader, size, most int64) ([]byte, error) {
	if size >= 0 && size <= most && (a != nil || size <= 4*Uncounted) { // else memory is taken as it comes
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

// Pieces are a message that is read: what comes is not copied until all is there.
type Pieces struct {
	full [][]byte
	last []byte
	size int64
}

// mostPiece is the size of a piece, in bytes, of a long message.
const mostPiece = 1 << 20

// Size is how many bytes there are.
func (p *Pieces) Size() int64 { return p.size }

// Room returns memory for what is read next, of which there is at most so much.
func (p *Pieces) Room(most int64) []byte {
	if len(p.last) == cap(p.last) {
		if len(p.last) > 0 {
			p.full = append(p.full, p.last)
		}
		p.last = make([]byte, 0, max(1, min(most, max(512, min(p.size, mostPiece)))))
	}
	return p.last[len(p.last):min(int64(cap(p.last)), int64(len(p.last))+max(most, 1))]
}

// Took notes that so many bytes of that were used.
func (p *Pieces) Took(n int) {
	p.last = p.last[:len(p.last)+n]
	p.size += int64(n)
}

// Add adds bytes.
func (p *Pieces) Add(b []byte) {
	for len(b) > 0 {
		n := copy(p.Room(int64(len(b))), b)
		p.Took(n)
		b = b[n:]
	}
}

// Join returns the message, and forgets it.
func (p *Pieces) Join() []byte {
	data := p.last
	if len(p.full) > 0 || cap(data)-len(data) > 64+len(data)/4 { // it may be kept for long
		data = bytes.Join(append(p.full, p.last), nil)
	}
	*p = Pieces{}
	return data
}

// arriving are places of messages of servers, and how long one waits. The places are guarded by Flight.mu.
type arriving struct {
	places   []*places
	patience time.Duration
}

// Arriving is how many bytes messages of servers take that are being read.
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
