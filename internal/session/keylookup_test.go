package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/observe/observetest"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// An undone is the store of a node that is lost before it takes a claim back.
type undone struct{ shared.Store }

func (undone) Unclaim(context.Context, shared.ClaimID, []byte) error { return stream.ErrUnavailable }

// keyNode starts a node on an engine. With lost, the node is lost before it takes a claim back.
func keyNode(t *testing.T, e *logtest.Engine, lost bool) *Manager {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st := durable.New(e.Open(), durable.Options{Patience: 10 * time.Second, Logger: logger})
	var used shared.Store = st
	if lost {
		used = undone{st}
	}
	m := NewManager(used, &desk{}, Options{Shared: Shared{Logger: logger, Observers: observe.Observers{observetest.New(t)}}})
	t.Cleanup(func() {
		m.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestKeyLookupLost loses a node that looks up a key, to cancel its call, before any call has begun
// under it. The key then does not count as taken: for a moment requests are refused with an error that
// allows to send them again. After that, of many requests that come to two nodes one begins the call.
func TestKeyLookupLost(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]logtest.Faults{"calm": {}, "faults": {Before: 0.02, After: 0.05, Late: 0.05}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := logtest.New(logtest.Options{})
			lost := keyNode(t, e, true)
			nodes := []*Manager{keyNode(t, e, false), keyNode(t, e, false)}
			var sessions []*Session
			for _, m := range nodes {
				s, err := m.New(newRequest(), caller.At("", "alice"), false, nil)
				if err != nil {
					t.Fatal(err)
				}
				sessions = append(sessions, s)
			}
			const rounds, each = 20, 4
			key := func(round int) string { return fmt.Sprint("k", round) }
			for round := range rounds {
				if c, err := lost.callOnce(&Client{principal: caller.At("", "alice")}, key(round)); c != nil || !errors.Is(err, stream.ErrUnavailable) {
					t.Fatalf("looked up by a node that is lost: %v, %v", c, err)
				}
			}
			refusal(t, sessions[0], key(0), request(0), ErrNotDelivered)
			e.Advance(2 * storeTimeout)
			e.SetFaults(faults)
			for round := range rounds {
				begun, told := beginAll(t, sessions, key(round), request(round), each)
				if begun > 1 || faults == (logtest.Faults{}) && (begun == 0 || told != each*len(sessions)-1) {
					t.Errorf("%s: %d calls begun, %d requests told of them", key(round), begun, told)
				}
			}
		})
	}
}

// beginAll makes a request under a key several times concurrently in each session. It returns
// how many requests began a call, and how many found that call.
func beginAll(t *testing.T, sessions []*Session, key, text string, each int) (begun, told int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, s := range sessions {
		for range each {
			all.Go(func() {
				var away *Redirect
				c, known, err := s.BeginOnce(Once{Key: key}, []byte(text), []jsonrpc.Message{mcptest.Parse(text)})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case c != nil:
					begun++
				case known != nil, errors.As(err, &away):
					told++
				case !errors.Is(err, stream.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("under %s: %v", key, err)
				}
			})
		}
	}
	all.Wait()
	return begun, told
}
