package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A node has sessions, by their numbers.
type node struct {
	mu       sync.Mutex
	sessions map[int]*session
	log      bytes.Buffer
	arrived  bool
}

// A session is busy until a time.
type session struct {
	of     *node
	number int
	calls  int
	until  time.Time // when its last call ends
	read   time.Time // when its reader leaves
	asking bool      // a call waits for its client
	cut    bool
}

func (s *session) leave() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	delete(s.of.sessions, s.number)
}

func (s *session) IsQuiet() bool {
	return time.Now().After(s.until) || s.cut && time.Now().After(s.read)
}
func (s *session) IsAwaited(time.Duration) bool { return time.Now().Before(s.read) }
func (s *session) HandOver()                    { s.leave() }
func (s *session) WithdrawWaiting()             { s.asking = false }
func (s *session) Cut() func()                  { s.cut = true; return s.leave }
func (s *session) Unfinished(most int) (int, []string) {
	var names []string
	for i := range min(most, s.calls) {
		names = append(names, fmt.Sprintf("%d of %d", i, s.number))
	}
	return s.calls, names
}

// departs returns a node with sessions, and its departure.
func departs(sessions ...*session) (*node, *Departure) {
	n := &node{sessions: make(map[int]*session)}
	for i, s := range sessions {
		s.of, s.number = n, i
		n.sessions[i] = s
	}
	w := NewWork()
	return n, New(&w, Options{
		Shared: true, Logger: slog.New(slog.NewTextHandler(&n.log, nil)),
		Sessions: func() (all []Session) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, s := range n.sessions {
				all = append(all, s)
			}
			return all
		},
		Calls: func() (calls int) {
			for _, s := range n.sessions {
				if time.Now().Before(s.until) {
					calls++
				}
			}
			return calls
		},
		AwaitArrivals: func(context.Context) { n.arrived = true },
	})
}

// in returns the time d from now.
func in(d time.Duration) time.Time { return time.Now().Add(d) }

// A session is given up as soon as it is quiet. At the deadline the others are cut, once their readers have noticed, or have had ReadersGrace.
func TestHandOver(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		until, read time.Duration // of the last session
		within      time.Duration
		took        time.Duration
		err         error
	}{
		"in time":          {until: time.Second, within: time.Minute, took: time.Second},
		"cut":              {until: time.Hour, within: time.Minute, took: time.Minute, err: context.DeadlineExceeded},
		"cut and read":     {until: time.Hour, read: time.Minute + time.Second, within: time.Minute, took: time.Minute + time.Second, err: context.DeadlineExceeded},
		"cut and not read": {until: time.Hour, read: time.Hour, within: time.Minute, took: time.Minute + ReadersGrace, err: context.DeadlineExceeded},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, d := departs(&session{}, &session{calls: 3, until: in(test.until), read: in(test.read)})
				began := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), test.within)
				defer stop()
				if err := d.HandOver(ctx); !errors.Is(err, test.err) || d.work.State() != HandingOver || !n.arrived {
					t.Errorf("%v, state %d, arrivals awaited: %v", err, d.work.State(), n.arrived)
				}
				if took := time.Since(began); took < test.took || took > test.took+100*time.Millisecond || len(n.sessions) > 0 {
					t.Errorf("it took %v, %d sessions are left", took, len(n.sessions))
				}
				if logged := strings.Contains(n.log.String(), "calls=3 "); logged != (test.err != nil) {
					t.Errorf("logged: %s", &n.log)
				}
			})
		})
	}
}

// A node that is alone waits for its calls. Then it serves again, or hands over.
func TestDrainAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, d := departs(&session{until: in(time.Minute)})
		began := time.Now()
		looks := 0
		d.DrainAlone(t.Context(), func() bool {
			if looks++; d.work.State() != WaitingAlone {
				t.Errorf("state %d", d.work.State())
			}
			return true
		})
		if took := time.Since(began); took < time.Minute || looks < 2 || d.work.State() != Serving {
			t.Errorf("it took %v, state %d", took, d.work.State())
		}
		d.DrainAlone(t.Context(), func() bool { return false })
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		d.work.become(WaitingAlone)
		d.Sessions()[0].(*session).until = in(time.Hour)
		d.DrainAlone(ctx, func() bool { return true })
		if ctx.Err() == nil {
			t.Error("it has not waited")
		}
	})
}

// A node that keeps its sessions waits for calls and readers, and waits longer by the time for which the process stood still.
func TestAwaitIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, d := departs(&session{until: in(time.Second), read: in(time.Minute), calls: 50, asking: true})
		d.Shared = false
		if err := d.HandOver(t.Context()); err != nil || d.work.State() != Serving {
			t.Errorf("handed over: %v", err)
		}
		d.DrainAlone(t.Context(), func() bool { t.Error("alone"); return true })
		d.Stop()
		if d.work.State() != Stopped || n.sessions[0].asking {
			t.Error("not stopped, or a call waits for its client")
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		if err := d.AwaitIdle(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) || strings.Count(n.log.String(), " of 0") != mostUnfinished {
			t.Errorf("%v: %s", err, &n.log)
		}
		if err := d.AwaitIdle(t.Context(), time.Second); err != nil || time.Now().Before(n.sessions[0].read) {
			t.Error(err, time.Now())
		}
	})
}

// Close leaves shared sessions to other nodes, and ends the others.
func TestClose(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n, d := departs(&session{until: in(time.Hour)})
			d.Shared = shared
			ended := false
			d.Close(func() {
				if ended = true; len(n.sessions) > 0 == shared {
					t.Errorf("shared %v: %d sessions", shared, len(n.sessions))
				}
				if d.work.State() != Stopped {
					t.Errorf("state %d", d.work.State())
				}
			})
			if !ended || d.work.State() != Closed {
				t.Errorf("ended %v, state %d", ended, d.work.State())
			}
		})
	}
}
