package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// TestListsBounded makes more requests for the list of a client's calls than may wait.
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
