package whereabouts

import (
	"context"
	"fmt"
	"testing"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/internal/testlong"
	"holdfast/stream"
)

// A shelf is a store with the records of sessions.
type shelf struct {
	shared.Store
	all map[stream.SessionKey]shared.Session
}

func (s shelf) Node() string { return "a" }

func (s shelf) Lookup(_ context.Context, key stream.SessionKey) (shared.Session, error) {
	was, ok := s.all[key]
	if !ok {
		return was, stream.ErrNotFound
	}
	return was, nil
}

func (s shelf) Sessions(_ context.Context, yield func(shared.Session) bool) error {
	for _, was := range s.all {
		if !yield(was) {
			break
		}
	}
	return nil
}

// TestOrphansBounded has more sessions without an owner than a node remembers: those of one principal are found all
// the same, and the result is not cached.
func TestOrphansBounded(t *testing.T) {
	testlong.OneGoroutine(t)
	t.Parallel()
	store := shelf{all: make(map[stream.SessionKey]shared.Session)}
	f := NewFinder(Options{
		Store: store, NotFound: stream.ErrNotFound,
		IsHere: func(stream.SessionKey) bool { return false },
		Work:   new(handover.Work),
	})
	changes := uint64(0)
	f.OnHomes(func() Homes { return Homes{Changes: changes, Settled: true} })
	left := func(id, who string) {
		a := About{ID: id, Principal: []byte(caller.At("", who).Text())}
		key := KeyOf(id)
		store.all[key] = shared.Session{Key: key, Epoch: 1, About: a.Text()}
	}
	find := func(who string) int {
		t.Helper()
		found, err := f.LocateAll(t.Context(), caller.At("", who), "", func(string) bool { return true }, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Orphans)
	}
	left("hers", "ann")
	if find("ann") != 1 || f.last.Load() == nil {
		t.Fatal("what was found is not kept")
	}
	changes++ // as when a node is lost
	for i := range mostOrphans + 2 {
		left(fmt.Sprint("his", i), "bob")
	}
	left("hers, too", "ann")
	was := f.last.Load()
	if found := find("ann"); found != 2 || f.last.Load() != was {
		t.Errorf("%d are found, and so many are kept", found)
	}
}
