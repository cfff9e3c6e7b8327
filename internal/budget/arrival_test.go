package budget

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// flightOf returns a Flight in which arriving messages of servers may take 768 KiB in large places, and 256 KiB in others.
func flightOf(share float64) *Flight { return NewFlight(4<<20, 1, share) }

func TestArrivalTakesPlaces(t *testing.T) {
	t.Parallel()
	f := flightOf(1)
	a := f.Arrive("a", nil)
	for _, c := range []struct {
		size, most, used int64
		err              error
	}{
		{Uncounted, 64 << 20, 0, nil},
		{Uncounted + 1, 64 << 20, 128 << 10, nil},
		{100 << 10, 64 << 20, 128 << 10, nil}, // no new place
		{129 << 10, 64 << 20, 256 << 10, nil},
		{257 << 10, 64 << 20, 768 << 10, nil},
		{768 << 10, 64 << 20, 768 << 10, nil},
		{768<<10 + 1, 64 << 20, 768 << 10, ErrTooLarge},
	} {
		err := a.Grow(c.size, c.most)
		if used := f.Arriving(); !errors.Is(err, c.err) || used != c.used {
			t.Errorf("%d bytes: %v, and %d are taken, want %d", c.size, err, used, c.used)
		}
		if err != nil && (!strings.Contains(err.Error(), "--memory") || !Full(err)) {
			t.Errorf("%d bytes: %v", c.size, err)
		}
	}
	a.Done()
	a.Done()
	if err := a.Grow(100<<10, 100<<10); err != nil || f.Arriving() != 100<<10 {
		t.Errorf("of a known size: %v, %d bytes are taken", err, f.Arriving())
	}
	a.Done()
	if used := f.Arriving(); used != 0 {
		t.Errorf("%d bytes are taken by nothing", used)
	}
	var none *Arrival
	if err := none.Grow(1<<40, 1<<40); err != nil {
		t.Error(err)
	}
	none.Done()
}

// Messages wait for their turn, in order, for a bounded time. The waiting message of a client that has used its share does
// not block the messages of others.
func TestArrivalWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := flightOf(0.5)
		const large = 300 << 10 // the size is not known, so one fits at a time
		grow := func(tenant string, done chan struct{}) (a *Arrival, got chan error) {
			a, got = f.Arrive(tenant, done), make(chan error, 1)
			go func() { got <- a.Grow(large, 64<<20) }()
			synctest.Wait()
			return a, got
		}
		first, got := grow("a", nil)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		second, gotSecond := grow("b", nil)
		third, gotThird := grow("a", nil)
		gone := make(chan struct{})
		_, gotGone := grow("c", gone)
		close(gone)
		if err := <-gotGone; !Full(err) {
			t.Errorf("who has gone: %v", err)
		}
		first.Done()
		if err := <-gotSecond; err != nil {
			t.Errorf("the second: %v", err)
		}
		synctest.Wait()
		select {
		case err := <-gotThird:
			t.Errorf("the third did not wait: %v", err)
		default:
		}
		second.Done()
		if err := <-gotThird; err != nil {
			t.Errorf("the third: %v", err)
		}
		_, gotLate := grow("b", nil)
		began := time.Now()
		if err := <-gotLate; !errors.Is(err, ErrNoRoom) || time.Since(began) != arrivalWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		third.Done()

		// With known sizes several messages fit, but one client gets its share only.
		var held []*Arrival
		take := func(tenant string, size int64) chan error {
			a, got := f.Arrive(tenant, nil), make(chan error, 1)
			held = append(held, a)
			go func() { got <- a.Grow(size, size) }()
			synctest.Wait()
			return got
		}
		one, over, other := take("a", large), take("a", large), take("b", large)
		if err := errors.Join(<-one, <-other); err != nil {
			t.Errorf("of two clients: %v", err)
		}
		held[0].Done()
		if err := <-over; err != nil {
			t.Errorf("over its share: %v", err)
		}
		for _, a := range held {
			a.Done()
		}
		if used := f.Arriving(); used != 0 {
			t.Errorf("%d bytes are taken by nothing", used)
		}
	})
}

// A message that needs a larger place waits for it in its present place. Messages in larger places never wait for
// smaller ones, so there is no deadlock.
func TestArrivalsDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	f := flightOf(1)
	const messages = 64
	done := make(chan error, messages)
	for range messages {
		go func() {
			a := f.Arrive("", nil)
			defer a.Done()
			for size := int64(8 << 10); size < 700<<10; size += 8 << 10 {
				if err := a.Grow(size, 64<<20); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range messages {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if used := f.Arriving(); used != 0 {
		t.Errorf("%d bytes are taken by nothing", used)
	}
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("0123456789"), 60<<10) // 600 KiB
	for _, c := range []struct {
		what       string
		size, most int64
		want       []byte
		err        error
	}{
		{"known", int64(len(text)), 64 << 20, text, nil},
		{"not known", -1, 64 << 20, text, nil},
		{"more than is read", -1, 100, text[:100], nil},
		{"shorter than it should be", int64(len(text)) + 1, 64 << 20, nil, io.ErrUnexpectedEOF},
	} {
		for _, count := range []bool{true, false} {
			var a *Arrival
			if count {
				a = flightOf(1).Arrive("", nil)
			}
			got, err := a.ReadAll(iotest.HalfReader(bytes.NewReader(text)), c.size, c.most)
			if c.err != nil && !count {
				continue // without an Arrival the size is not checked
			}
			if !errors.Is(err, c.err) || c.err == nil && !bytes.Equal(got, c.want) {
				t.Errorf("%s: %d bytes, %v", c.what, len(got), err)
			}
			if len(got) > 0 && c.err == nil && cap(got)-len(got) > 64+len(got)/4 {
				t.Errorf("%s: %d bytes hold %d", c.what, len(got), cap(got))
			}
		}
	}
	large := bytes.Repeat(text, 2) // more than there is room for
	got, err := flightOf(1).Arrive("", nil).ReadAll(bytes.NewReader(large), -1, 64<<20)
	if !errors.Is(err, ErrTooLarge) || !bytes.HasPrefix(large, got) || len(got) < 100<<10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := flightOf(1).Arrive("", nil).ReadAll(iotest.ErrReader(io.ErrClosedPipe), -1, 100); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}
