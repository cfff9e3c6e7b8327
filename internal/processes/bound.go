// Package processes bounds how many server processes run on a node at a time, where each conversation with a server costs one: who
// waits for a place, whose share is used up, and whose conversation makes room. See docs/decisions/0018-bounds-and-tenants.md.
package processes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Patience is how long a place is kept for a call that was admitted, and is still to open a conversation.
const Patience = 30 * time.Second

// lookAgain is how often an owner that waits for a place looks again whether another one is unused by now.
const lookAgain = 500 * time.Millisecond

// Options are those of a [Bound].
type Options struct {
	Most  int   // processes at a time; 0: any number
	Share int   // of one tenant
	Busy  error // which is wrapped by what says that there is no place
}

// A Bound is the places that processes have. Its methods may be called concurrently.
type Bound struct {
	Options

	mu      sync.Mutex
	total   count
	tenants map[string]count    // by their names
	freed   chan struct{}       // closed when a place is free; nil if no owner waits
	open    map[*Place]struct{} // that a conversation has
	kept    map[Owner]time.Time // promised: a call was admitted that is still to open a conversation, and when
}

// A count is of places.
type count struct {
	taken   int // by conversations that are open, being opened, or being closed
	leaving int // of them, being closed
}

// An Owner is a session that has conversations. It is comparable. Of its methods only LastSeen and CloseUnused may take the locks that
// are held while [Bound.Promise] is called.
type Owner interface {
	// NeedsProcess reports whether a conversation costs a process.
	NeedsProcess() bool
	// Tenant names whom the process is counted against, and whether as a part of a share: it had a place at another node if it is not.
	Tenant() (name string, shared bool)
	// Gone returns why nothing is opened any more; nil: it may be.
	Gone() error
	// LastSeen orders owners by when they were last used.
	LastSeen() int64
	// CloseUnused closes the conversation if it is unused. It reports whether there is none now.
	CloseUnused() bool
}

// A Place is one that is taken. Methods of nil do nothing: no place was needed.
type Place struct {
	b       *Bound
	owner   Owner
	leaving bool // guarded by Bound.mu
}

// Take takes a place for a conversation, if that needs one; else it returns nil. It waits for one, if it is not patient only as long
// as one is about to be free. The error wraps [Options.Busy], or is the owner's.
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

// take takes a place if there is one. Else it returns why not, whether one is about to be free, and what is closed when one is.
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

// full says why there is no place for a conversation of an owner, and then whether one is about to be free. b.mu is held.
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

// isShareFull reports whether the owner's tenant has its share, with some places that were promised to it. b.mu is held.
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

// Promise promises an owner a place that is free, or about to be, if it needs one. Without it many calls that come at a time, as after
// a take-over, would all be admitted for one place. The error wraps [Options.Busy].
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

// promisedBeside returns how many places are promised to other owners of the same tenant, and forgets those that were promised to calls
// which were not delivered. b.mu is held.
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

// MakeRoom has another owner close its conversation, and promises the place. It is false if there is none that could.
func (b *Bound) MakeRoom(o Owner) bool {
	if !b.evict(o) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep(o)
	return true
}

// Break frees what was promised to an owner for which nothing is to be delivered: its call was refused, or cancelled before that.
func (b *Bound) Break(o Owner) {
	if b.Most <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, o)
}

// evict closes the conversation that is needed least, for one of an owner: of those that are unused, the one that was used last the
// longest ago; one of the same tenant if that has too many. It is false if there is none.
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
	return slices.ContainsFunc(all, func(x Owner) bool { return x != o && x.CloseUnused() }) // each once: it may be used by now
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

// Taken returns how many places are taken, how many of them have an open conversation, and how many one that is being closed.
func (b *Bound) Taken() (taken, open, leaving int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total.taken, len(b.open), b.total.leaving
}
