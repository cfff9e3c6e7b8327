package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestOrphansBounded has more sessions without an owner than a node remembers: those of one principal are found all
// the same, and nothing is kept.
func TestOrphansBounded(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	f := newShelf()
	n := f.add(t, "a", safeTools())
	changes := uint64(0)
	n.OnHomes(func() Homes { return Homes{Changes: changes, Settled: true} })
	left := func(id, who string) {
		text, err := json.Marshal(about{ID: id, Principal: []byte(caller.At("", who).Text())})
		if err != nil {
			t.Fatal(err)
		}
		key := KeyOf(id)
		f.sessions[key] = &shelved{Session: shared.Session{Key: key, Epoch: 1, About: text}}
	}
	find := func(who string) int {
		t.Helper()
		found, err := n.LocateAll(t.Context(), caller.At("", who), "", func(string) bool { return true }, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Orphans)
	}
	left("hers", "ann")
	if find("ann") != 1 || n.orphans.last.Load() == nil {
		t.Fatal("what was found is not kept")
	}
	changes++ // a node was lost
	for i := range mostOrphans + 2 {
		left(fmt.Sprint("his", i), "bob")
	}
	left("hers, too", "ann")
	was := n.orphans.last.Load()
	if found := find("ann"); found != 2 || n.orphans.last.Load() != was {
		t.Errorf("%d are found, and so many are kept", found)
	}
}

// TestListsBounded has more requests of one client for all its calls than may wait.
func TestListsBounded(t *testing.T) {
	t.Parallel()
	var l lists
	served, err := l.await(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	for range mostLists {
		go func() {
			_, err := l.await(ctx, "ann")
			ended <- err
		}()
	}
	mcptest.Eventually(t, "all to wait", time.Minute, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.of["ann"].n == mostLists+1
	})
	if _, err := l.await(t.Context(), "ann"); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	if other, err := l.await(t.Context(), "bob"); err != nil {
		t.Errorf("another client: %v", err)
	} else {
		other()
	}
	leave()
	for range mostLists {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("one that left: %v", err)
		}
	}
	served()
	if len(l.of) > 0 {
		t.Errorf("kept of clients that are gone: %v", l.of)
	}
}
