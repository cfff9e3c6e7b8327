package whereabouts

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/stream"
)

// This file finds all sessions of a principal, on all nodes, without a look through the records of all sessions
// for each request. Nodes that live know their own sessions by principal, and are asked. No node knows the
// sessions without an owner: they are found by a look through all records, with a result that is kept, by
// principal, until a node is lost or gives sessions up. docs/decisions has the reasons.

// Homes are the nodes that may have the sessions which are not on this node.
type Homes struct {
	Nodes   []string // the other nodes that live, except doors
	Changes uint64   // grows whenever one of them is lost, or begins to give its sessions up
	Settled bool     // none gives sessions up just now

	// Heard returns the names of all other nodes that were heard of, with those that were lost in the last hour; nil: they are Nodes.
	Heard func() []string
}

// OnHomes sets the function that returns the other nodes. It is called once, before there are sessions. Without
// it, each look for the sessions of a principal is a look through all records.
func (f *Finder) OnHomes(homes func() Homes) { f.homes = homes }

// Shed notes that this node may have lost a session that no other node has.
func (f *Finder) Shed() { f.shed.Add(1) }

// mostOrphans bounds how many sessions without an owner are kept by their principals. If there are more, each look
// for the sessions of a principal is one through all records.
const mostOrphans = 1 << 17

// lookShare is the denominator of the part of the time that successive looks may take, and longestPause the most that a look waits for that.
const (
	lookShare    = 20
	longestPause = time.Second
)

// orphans are the sessions without an owner that a look has found.
type orphans struct {
	at     Homes  // before it
	shed   uint64 // before it
	kept   bool   // they may be used again
	owners []string

	mu  sync.Mutex
	all map[caller.Principal][]stream.SessionKey // sorted
}

// now returns the homes as they are now.
func (f *Finder) now() Homes {
	if f.homes == nil {
		return Homes{}
	}
	return f.homes()
}

// isCurrent reports whether no session can have lost its owner since a look.
func (f *Finder) isCurrent(l *orphans) bool {
	return l != nil && l.kept && l.at.Changes == f.now().Changes && f.shed.Load() == l.shed
}

// findOrphans returns the sessions without an owner: as the last look found them, if no session can have lost its owner
// since, or by another look through all records, one look at a time. Those of the principal are among them in any case.
func (f *Finder) findOrphans(ctx context.Context, principal caller.Principal, gone func(node string) bool) (*orphans, error) {
	if l := f.last.Load(); f.isCurrent(l) {
		return l, nil
	}
	select {
	case f.looking <- struct{}{}:
		defer func() { <-f.looking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := f.last.Load(); f.isCurrent(l) {
		return l, nil
	}
	if wait := time.Until(f.pause); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	began := time.Now()
	l, err := f.lookForOrphans(ctx, principal, gone)
	if f.homes != nil {
		ended := time.Now()
		f.pause = ended.Add(min(lookShare*ended.Sub(began), longestPause))
	}
	if err == nil && l.kept {
		f.last.Store(l)
	}
	return l, err
}

// lookForOrphans looks through all records.
func (f *Finder) lookForOrphans(ctx context.Context, principal caller.Principal, gone func(node string) bool) (*orphans, error) {
	l := &orphans{at: f.now(), shed: f.shed.Load(), all: make(map[caller.Principal][]stream.SessionKey)}
	l.kept = f.homes != nil && l.at.Settled && !f.Work.Reached(handover.HandingOver)
	me := f.Store.Node()
	others := make(map[string]map[caller.Principal][]stream.SessionKey) // by owners that are not known to live
	n := 0
	err := f.Store.Sessions(ctx, func(was shared.Session) bool {
		of := l.all
		switch {
		case was.Owner == me && f.IsHere(was.Key), slices.Contains(l.at.Nodes, was.Owner):
			return true
		case was.Owner != "" && was.Owner != me:
			if of = others[was.Owner]; of == nil {
				of = make(map[caller.Principal][]stream.SessionKey)
				others[was.Owner] = of
			}
		}
		at, err := Parse(was)
		if err != nil || at.Principal.IsAnonymous() || at.SingleStream {
			return true
		}
		if n++; n > mostOrphans && at.Principal != principal {
			l.kept = false
			return true
		}
		of[at.Principal] = append(of[at.Principal], was.Key)
		return true
	})
	for owner, all := range others {
		if !gone(owner) {
			l.owners = append(l.owners, owner)
			continue
		}
		for p, keys := range all {
			l.all[p] = append(l.all[p], keys...)
		}
	}
	for _, keys := range l.all {
		slices.Sort(keys)
	}
	return l, err
}

// of returns the sessions of a principal that come after one.
func (l *orphans) of(p caller.Principal, after stream.SessionKey) []stream.SessionKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, there := slices.BinarySearch(l.all[p], after)
	if there {
		i++
	}
	return slices.Clone(l.all[p][i:])
}

// drop forgets a session that has an owner, or is no more.
func (l *orphans) drop(p caller.Principal, key stream.SessionKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, there := slices.BinarySearch(l.all[p], key); there {
		l.all[p] = slices.Delete(l.all[p], i, i+1)
	}
	if len(l.all[p]) == 0 {
		delete(l.all, p)
	}
}

// Locations says where sessions of a principal are that are not on this node.
type Locations struct {
	Range
	Owners  []string  // the other nodes that may own some; they may be gone
	Orphans []*Record // sessions without an owner, or with one that is gone
}

// LocateAll looks where the principal's sessions are, in the order of their keys, until
// it has found as many orphans as most says: the others are for the next call. gone
// reports whether a node is gone. The error is that of the store, or ctx's.
func (f *Finder) LocateAll(ctx context.Context, principal caller.Principal, after stream.SessionKey, gone func(node string) bool, most int) (Locations, error) {
	found := Locations{Range: Range{After: after}}
	if f.Store == nil || principal.IsAnonymous() {
		return found, nil
	}
	l, err := f.findOrphans(ctx, principal, gone)
	if err != nil {
		return found, err
	}
	found.Owners = slices.Concat(l.owners, l.at.Nodes, f.now().Nodes)
	slices.Sort(found.Owners)
	found.Owners = slices.Compact(found.Owners)
	keys := l.of(principal, after)
	for i, key := range keys {
		at, err := f.orphan(ctx, key, principal, gone)
		switch {
		case err != nil:
			return found, err
		case at == nil:
			l.drop(principal, key)
			continue
		}
		found.Orphans = append(found.Orphans, at)
		if len(found.Orphans) == most && i < len(keys)-1 {
			found.Until = key
			break
		}
	}
	return found, nil
}

// orphan returns a session that had no owner, or nil if it has one by now, or is no more.
func (f *Finder) orphan(ctx context.Context, key stream.SessionKey, principal caller.Principal, gone func(node string) bool) (*Record, error) {
	if f.IsHere(key) {
		return nil, nil
	}
	at, err := f.Lookup(ctx, key)
	switch {
	case errors.Is(err, f.NotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case at.Principal != principal, at.Owner != "" && !gone(at.Owner):
		return nil, nil
	}
	return at, nil
}
