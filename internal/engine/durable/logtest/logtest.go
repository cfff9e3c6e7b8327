package logtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

// A Maker returns a function that opens handles on an engine, each as another
// process would. It may be the same engine every time: each case has keys of its
// own. The suite closes the handles.
type Maker func(t *testing.T) (open func() durable.Log)

// RunOptions describe an engine to the suite.
type RunOptions struct {
	// OneNode: only one handle can be open at a time.
	OneNode bool
	// Advance sets the engine's clock ahead. Nil: the suite sleeps, for seconds,
	// and for frames to expire no longer than 10 s.
	Advance func(d time.Duration)
	// Reopen: an engine that is opened again, after all its handles were closed,
	// has its data.
	Reopen bool
	// Bubble: the engine is in this process and keeps time by package time. Cases that
	// wait for time to pass then run in bubbles of testing/synctest.
	Bubble bool
}

// patience is how long the suite waits for something that must happen.
const patience = time.Minute

// Run runs the suite on the logs that mk makes.
func Run(t *testing.T, mk Maker, o RunOptions) {
	for _, c := range []struct {
		name  string
		run   func(*box)
		waits bool // for time to pass
	}{
		{"values expire", valuesExpire, true},
		{"frames expire", framesExpire, true},
		{"Put compares versions", putCompares, false},
		{"Put races", putRaces, false},
		{"Get sees every Put", getSees, false},
		{"Remove", remove, false},
		{"List", list, false},
		{"values of all sizes", valueSizes, false},
		{"Append compares places", appendCompares, false},
		{"Append races", appendRaces, false},
		{"Frames sees every Append", framesSees, false},
		{"Frames in order", framesInOrder, false},
		{"frames of all sizes", frameSizes, false},
		{"no place comes twice", noPlaceTwice, false},
		{"Trim", trim, false},
		{"keys are apart", keysApart, false},
		{"what was written outlives its handle", reopens, false},
		{"a context that is done", contextDone, false},
		{"Bus: messages arrive", busArrives, false},
		{"Bus: many messages", busMany, false},
		{"Bus: sizes", busSizes, false},
		{"Bus: nobody home", busNobody, false},
		{"Bus: names", busNames, false},
		{"Ping", ping, false},
	} {
		run := func(t *testing.T) {
			b := &box{T: t, o: o, open: mk(t), own: fmt.Sprintf("%016x", rand.Uint64()), began: time.Now()}
			b.log = b.handle()
			b.other = b.log
			if !o.OneNode {
				b.other = b.handle()
			}
			c.run(b)
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if o.Bubble && c.waits {
				synctest.Test(t, run)
			} else {
				run(t)
			}
		})
	}
}

// box has the handles of a case: a log and, unless OneNode, another handle on the
// same engine.
type box struct {
	*testing.T
	o          RunOptions
	open       func() durable.Log
	own        string // begins all keys of this case
	began      time.Time
	log, other durable.Log
}

func (b *box) handle() durable.Log {
	log := b.open()
	b.Cleanup(func() {
		if err := log.Close(); err != nil {
			b.Errorf("Close: %v", err)
		}
	})
	return log
}

// val and seq return keys of values and of sequences.
func (b *box) val(name string) string { return "s." + b.own + "-" + name }
func (b *box) seq(name string) string { return "e." + b.own + "-" + name }

func (b *box) want(what string, got, want error) {
	b.Helper()
	if !errors.Is(got, want) {
		b.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// put puts a value, which must succeed.
func (b *box) put(log durable.Log, key string, was uint64, value string, ttl time.Duration) uint64 {
	b.Helper()
	v, err := b.tryPut(log, key, was, value, ttl)
	if err != nil {
		b.Fatalf("Put %s: %v", key, err)
	}
	if v == 0 {
		b.Fatalf("Put %s: version 0", key)
	}
	return v
}

// aged checks an age: it is at most the time since the case began. Clocks may
// differ by a second.
func (b *box) aged(what string, age time.Duration) {
	b.Helper()
	if b.o.Advance == nil && age > time.Since(b.began)+time.Second || age < -time.Second || age > time.Hour {
		b.Errorf("%s: age %v", what, age)
	}
}

// tryPut puts a value that no other Put has. On a busy machine a cluster may change its
// leader at any time, and then the outcome is unknown: tryPut finds it out as a store
// does, by another attempt.
func (b *box) tryPut(log durable.Log, key string, was uint64, value string, ttl time.Duration) (uint64, error) {
	b.Helper()
	for unknown := false; ; unknown = true {
		v, err := log.Put(b.Context(), key, was, []byte(value), ttl)
		switch {
		case errors.Is(err, stream.ErrUnavailable) && time.Since(b.began) < 3*patience:
			b.Logf("Put %s: %v", key, err)
			continue
		case errors.Is(err, stream.ErrConflict) && unknown:
			if got, is, _, err := b.get(log, key); err == nil && string(got) == value && is != was {
				return is, nil
			}
		}
		return v, err
	}
}

// tryAppend is the same for frames.
func (b *box) tryAppend(log durable.Log, key string, last uint64, frame string) (uint64, error) {
	b.Helper()
	for unknown := false; ; unknown = true {
		at, err := log.Append(b.Context(), key, last, []byte(frame))
		switch {
		case errors.Is(err, stream.ErrUnavailable) && time.Since(b.began) < 3*patience:
			b.Logf("Append to %s after %d: %v", key, last, err)
			continue
		case errors.Is(err, stream.ErrConflict) && unknown:
			if got := b.frames(log, key, last); len(got) > 0 && string(got[0].data) == frame {
				return got[0].at, nil
			}
		}
		return at, err
	}
}

// get reads a value. While a cluster changes its leader there is no answer, so get asks
// again, as a store does.
func (b *box) get(log durable.Log, key string) ([]byte, uint64, time.Duration, error) {
	b.Helper()
	for {
		value, version, age, err := log.Get(b.Context(), key)
		if !errors.Is(err, stream.ErrUnavailable) || time.Since(b.began) >= 3*patience {
			return value, version, age, err
		}
		b.Logf("Get %s: %v", key, err)
	}
}

// has checks a key's value, as every handle sees it.
func (b *box) has(key string, value string, version uint64) {
	b.Helper()
	for _, log := range []durable.Log{b.log, b.other} {
		got, v, age, err := b.get(log, key)
		if err != nil || string(got) != value || v != version {
			b.Fatalf("Get %s: got %.40q, %d and %v, want %.40q and %d", key, got, v, err, value, version)
		}
		b.aged("what "+key+" has", age)
	}
}

// none checks that a key has no value.
func (b *box) none(key string) {
	b.Helper()
	for _, log := range []durable.Log{b.log, b.other} {
		got, v, _, err := b.get(log, key)
		if !errors.Is(err, stream.ErrNotFound) {
			b.Fatalf("Get %s: got %.40q, %d and %v", key, got, v, err)
		}
	}
}

// add appends a frame, which must succeed.
func (b *box) add(log durable.Log, key string, last uint64, frame string) uint64 {
	b.Helper()
	at, err := b.tryAppend(log, key, last, frame)
	if err != nil {
		b.Fatalf("Append to %s after %d: %v", key, last, err)
	}
	if at <= last {
		b.Fatalf("Append to %s after %d: at %d", key, last, at)
	}
	return at
}

type kept struct {
	at   uint64
	data []byte
}

func (f kept) String() string { return fmt.Sprintf("%.60q at %d", f.data, f.at) }

// frames returns the frames after a place. The servers of a cluster trim one after
// the other: a read at that moment may fail, and is repeated.
func (b *box) frames(log durable.Log, key string, after uint64) []kept {
	b.Helper()
	for {
		var all []kept
		err := log.Frames(b.Context(), key, after, func(at uint64, age time.Duration, frame []byte) bool {
			b.aged(fmt.Sprintf("frame %d of %s", at, key), age)
			all = append(all, kept{at, frame})
			return true
		})
		switch {
		case errors.Is(err, stream.ErrUnavailable) && time.Since(b.began) < 3*patience:
			b.Logf("Frames of %s: %v", key, err)
		case err != nil:
			b.Fatalf("Frames of %s: %v", key, err)
		default:
			return all
		}
	}
}

// sees checks the frames after a place, as every handle sees them.
func (b *box) sees(key string, after uint64, want ...kept) {
	b.Helper()
	for _, log := range []durable.Log{b.log, b.other} {
		got := b.frames(log, key, after)
		ok := len(got) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = got[i].at == want[i].at && bytes.Equal(got[i].data, want[i].data)
		}
		if !ok {
			b.Fatalf("Frames of %s after %d: got %v, want %v", key, after, got, want)
		}
	}
}

// wait lets time pass.
func (b *box) wait(d time.Duration) {
	if b.o.Advance != nil {
		b.o.Advance(d)
		return
	}
	time.Sleep(d) // the engine's clock is the real one
}

// until polls until f is true.
func (b *box) until(what string, f func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !f(); {
		if time.Now().After(end) {
			b.Fatalf("%s: not after %v", what, patience)
		}
		time.Sleep(5 * time.Millisecond) // polling: there is no event to wait for
	}
}
