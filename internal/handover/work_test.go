package handover

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A node's state changes along the table of steps alone.
func TestSteps(t *testing.T) {
	t.Parallel()
	for from := Serving; from <= Closed; from++ {
		for to := Serving; to <= Closed; to++ {
			w := NewWork()
			w.now.Store(uint32(from))
			want := slices.Contains(steps[from], to)
			is := from
			if want {
				is = to
			}
			if ok := w.become(to); ok != want || w.State() != is {
				t.Errorf("from %d to %d: %v, is %d", from, to, ok, w.State())
			}
		}
	}
}

// Work that must begin before a state is refused from that state on. Close waits for work that has begun.
func TestWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWork()
		no := errors.New("no")
		if err := w.StartBefore(Stopped, no); !errors.Is(err, no) {
			t.Errorf("not to be begun: %v", err)
		}
		ended := false
		if err := w.StartBefore(Stopped, nil); err != nil {
			t.Fatal(err)
		}
		if !w.Go(func() {
			<-w.Quit()
			time.Sleep(time.Second)
			ended = w.Context().Err() == nil
		}) {
			t.Error("nothing is begun")
		}
		d := New(&w, Options{Sessions: func() []Session { return nil }})
		d.Stop()
		if err := w.StartBefore(Stopped, no); !errors.Is(err, ErrClosing) {
			t.Errorf("when stopped: %v", err)
		}
		if !w.Go(w.Done) { // the work from StartBefore
			t.Error("nothing ends after Stop")
		}
		ran := 0
		for _, wait := range []time.Duration{time.Second, time.Minute} { // one fires before Close begins to wait, one later
			w.After(wait, func() { ran++ })
		}
		time.Sleep(2 * time.Second)
		d.Close(func() {})
		time.Sleep(time.Hour)
		if ran != 1 {
			t.Errorf("after a time %d ran, want 1", ran)
		}
		if !ended || w.Start() || w.Context().Err() == nil {
			t.Errorf("closed: ended %v, and more is begun, or %v", ended, w.Context().Err())
		}
	})
}

// WaitFor ends when its condition is true, when its time is over, and when the node ends.
func TestWaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWork()
		began := time.Now()
		w.WaitFor(time.Minute, func() bool { return time.Since(began) > time.Second })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it was waited for %v", took)
		}
		began = time.Now()
		w.WaitFor(time.Second, func() bool { return false })
		if took := time.Since(began); took < time.Second || took > 2*time.Second {
			t.Errorf("a second took %v", took)
		}
		began = time.Now()
		w.stop()
		w.WaitFor(time.Minute, func() bool { return false })
		if took := time.Since(began); took > time.Second {
			t.Errorf("after the end it was waited for %v", took)
		}
	})
}
