// Package processes bounds how many server processes run on a node at a time, if each conversation with a server costs one. It decides
// which session waits for a place, which tenant has used up its share, and which conversation makes room. See
// docs/decisions/0018-bounds-and-tenants.md.
package processes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Patience is how long a place is kept for an admitted call that has not opened a conversation yet.
const Patience = 30 * time.Second

// lookAgain is how often an owner that waits for a place looks for a conversation that is unused by now.
const lookAgain = 500 * time.Millisecond

// Options configure a [Bound].
type Options struct {
	Most  int   // processes at a time; 0: any number
	Share int   // of one tenant
	Busy  error // wrapped by the errors that say that there is no place
}

// A Bound has the places of processes. Its methods may be called concurrently.
type Bound struct {
	Options

	mu      sync.Mutex
	total   count
	tenants map[string]count    // by their names
	freed   chan struct{}       // closed when a place is free; nil if no owner waits
	open    map[*Place]struct{} // places with an open conversation
	kept    map[Owner]time.Time // promised places: an admitted call has not opened a conversation yet; since when
}

// A count is a number of places.
type count struct {
	taken   int // by conversations that are open, being opened or being closed
	leaving int // how many of them are being closed
}

// An Owner is a session that has conversations. It is comparable. Only its methods LastSeen and CloseUnused may take the locks that
// are held while [Bound.Promise] is called.
type Owner interface {
	// NeedsProcess reports whether a conversation costs a process.
	NeedsProcess() bool
	// Tenant returns the tenant that the process is counted against, and whether the tenant's share bounds it: it does not if the
	// session had a place at another node.
	Tenant() (name string, shared bool)
	// Gone returns an error if no conversation may be opened any more.
	Gone() error
	// LastSeen orders owners by when they were last used.
	LastSeen() int64
	// CloseUnused closes the conversation if it is unused. It reports whether the owner has none now.
	CloseUnused() bool
}

// A Place is a taken place. Methods of nil do nothing: no place was needed.
type Place struct {
	b       *Bound
	owner   Owner
	leaving bool // guarded by Bound.mu
}

// Take takes a place for a conversation, or returns nil if that needs none. It waits for a place for at most wait; if it is not
// patient, only while a place is about to be free. The error wraps [Options.Busy], or is the owner's.
func (b *Bound) Take(ctx context.Context, o Owner, wait time.Duration, patient bool) (*Place, error) {
	if !b.counts(o) {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for {
		p, freed, coming, full := b.take(o)
		if p != nil {
			return p, nil
		}
		if !coming && !b.evict(o) && !patient {
			return nil, full
		}
		again := time.NewTimer(lookAgain)
		select {
		case <-freed:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return nil, full
		}
		if err := o.Gone(); err != nil {
			return nil, err
		}
	}
}

func (b *Bound) counts(o Owner) bool { return b.Most > 0 && o.NeedsProcess() }

// take takes a place if one is free. Otherwise it returns the error, whether a place is about to be free, and a channel that is closed
// when one is.
func (b *Bound) take(o Owner) (p *Place, freed <-chan struct{}, coming bool, full error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, o)
	if full, coming = b.full(o); full != nil {
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		return nil, b.freed, coming, full
	}
	b.add(o, count{taken: 1})
	return &Place{b: b, owner: o}, nil, false, nil
}

// add counts places of an owner. b.mu is held.
func (b *Bound) add(o Owner, n count) {
	if b.tenants == nil {
		b.tenants = make(map[string]count)
	}
	name, _ := o.Tenant()
	of := b.tenants[name].plus(n)
	if b.tenants[name] = of; of.taken == 0 {
		delete(b.tenants, name)
	}
	b.total = b.total.plus(n)
}

func (c count) plus(n count) count { return count{c.taken + n.taken, c.leaving + n.leaving} }

// full returns an error if there is no place for a conversation of an owner, and whether a place is about to be free. b.mu is held.
func (b *Bound) full(o Owner) (full error, coming bool) {
	if b.total.taken >= b.Most {
		return b.errFull(), b.total.leaving > 0
	}
	if b.isShareFull(o, 0) {
		name, _ := o.Tenant()
		return b.errShare(), b.tenants[name].leaving > 0
	}
	return nil, false
}

// isShareFull reports whether the owner's tenant has used up its share, together with places that were promised to it. b.mu is held.
func (b *Bound) isShareFull(o Owner, promised int) bool {
	name, shared := o.Tenant()
	return name != "" && shared && b.tenants[name].taken+promised >= b.Share
}

func (b *Bound) errFull() error {
	return fmt.Errorf("%w: %d server processes run on this node (--max-processes or MaxProcesses)", b.Busy, b.Most)
}

func (b *Bound) errShare() error {
	return fmt.Errorf("%w: %d server processes run for this client (--max-share or MaxShare, of --max-processes)", b.Busy, b.Share)
}

// Promise promises an owner a place that is free, or about to be, if it needs a place. Without a promise, many calls that come at the
// same time, as after a take-over, would all be admitted for one place. The error wraps [Options.Busy].
func (b *Bound) Promise(o Owner) error {
	if !b.counts(o) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	full, coming := b.full(o)
	if promised := b.promisedBeside(o); full == nil && promised > 0 && b.isShareFull(o, promised) {
		full = b.errShare()
	}
	if _, has := b.kept[o]; !has && (full == nil || coming) && b.total.taken-b.total.leaving+len(b.kept) >= b.Most {
		full, coming = b.errFull(), false
	}
	if full == nil || coming {
		b.keep(o)
		return nil
	}
	return full
}

// promisedBeside returns how many places are promised to other owners of the same tenant, and forgets the promises to calls that were
// not delivered. b.mu is held.
func (b *Bound) promisedBeside(o Owner) (n int) {
	name, _ := o.Tenant()
	for other, since := range b.kept {
		switch of, shared := other.Tenant(); {
		case time.Since(since) > Patience, other.Gone() != nil:
			delete(b.kept, other)
		case other != o && of == name && shared:
			n++
		}
	}
	return n
}

// keep keeps a place for an owner. b.mu is held.
func (b *Bound) keep(o Owner) {
	if b.kept == nil {
		b.kept = make(map[Owner]time.Time)
	}
	b.kept[o] = time.Now()
}

// MakeRoom makes another owner close its conversation, and promises the place to o. It returns false if no owner can.
func (b *Bound) MakeRoom(o Owner) bool {
	if !b.evict(o) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep(o)
	return true
}

// Break frees the place that was promised to an owner, if its call will not be delivered: it was refused or cancelled.
func (b *Bound) Break(o Owner) {
	if b.Most <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, o)
}

// evict closes a conversation to make room for one of an owner: the least recently used of those that are unused, and one of the
// same tenant if that has used up its share. It returns false if there is none.
func (b *Bound) evict(o Owner) bool {
	name, _ := o.Tenant()
	b.mu.Lock()
	own := b.isShareFull(o, 0)
	all := make([]Owner, 0, len(b.open))
	for p := range b.open {
		if of, _ := p.owner.Tenant(); !own || of == name {
			all = append(all, p.owner)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(x, y Owner) int { return cmp.Compare(x.LastSeen(), y.LastSeen()) })
	return slices.ContainsFunc(all, func(x Owner) bool { return x != o && x.CloseUnused() }) // each is tried: it may be in use by now
}

// Opened notes that the place has a conversation, which may make room for another one.
func (p *Place) Opened() {
	if p == nil {
		return
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.open == nil {
		p.b.open = make(map[*Place]struct{})
	}
	p.b.open[p] = struct{}{}
}

// Leave notes that the conversation is about to be closed.
func (p *Place) Leave() {
	if p == nil {
		return
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	delete(p.b.open, p)
	p.leaving = true
	p.b.add(p.owner, count{leaving: 1})
}

// Free frees the place: the conversation was closed, or not opened.
func (p *Place) Free() {
	if p == nil {
		return
	}
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	n := count{taken: -1}
	if p.leaving {
		n.leaving = -1
	}
	b.add(p.owner, n)
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// Taken returns how many places are taken, how many of them have an open conversation, and how many a conversation that is being closed.
func (b *Bound) Taken() (taken, open, leaving int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total.taken, len(b.open), b.total.leaving
}
