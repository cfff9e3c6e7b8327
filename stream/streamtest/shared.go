package streamtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// shared returns the store as two nodes have it. It skips the test if the store is
// not shared.
func (b *box) shared() (st, other shared.Store) {
	b.Helper()
	if b.nodes == nil {
		b.Skip("the store is one node's")
	}
	return b.nodes[0], b.nodes[1]
}

func (b *box) lookup(st shared.Store, key stream.SessionKey) shared.Session {
	b.Helper()
	s, err := st.Lookup(b.Context(), key)
	if err != nil {
		b.Fatalf("Lookup: %v", err)
	}
	return s
}

// acquire takes a session over.
func (b *box) acquire(st shared.Store, key stream.SessionKey) shared.Taken {
	b.Helper()
	taken, err := st.Acquire(b.Context(), b.lookup(st, key))
	if err != nil {
		b.Fatalf("Acquire: %v", err)
	}
	return taken
}

// note returns a record that is a note.
func note(number uint64, text string) stream.Record {
	return stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: []byte(text)}}
}

// is checks a stream of an acquired session.
func (b *box) is(taken shared.Taken, want shared.Stream) {
	b.Helper()
	for _, x := range taken.Streams {
		if x.Number != want.Number {
			continue
		}
		if string(x.Note) != string(want.Note) || x.Oldest != want.Oldest || x.Next != want.Next || x.Ended != want.Ended {
			b.Fatalf("stream %d: got %+v, want %+v", want.Number, x, want)
		}
		return
	}
	b.Fatalf("stream %d is not there", want.Number)
}

func notes(b *box) {
	_, other := b.shared()
	l := b.create("a")
	b.add(l, note(1, "one"), rec(1, 1), rec(1, 2))
	b.add(l, note(2, "two"))
	b.add(l, rec(3, 1), note(3, "three"))
	b.add(l, note(3, "newer"), rec(3, 2))
	b.add(l, note(3, "newer"), rec(3, 2)) // repeated
	b.add(l, rec(4, 1))
	b.add(l, note(5, "five"), final(rec(5, 1)))
	b.add(l, note(5, "five"), final(rec(5, 1))) // repeated
	b.want("a note after the last entry", b.append(l, note(5, "late")), stream.ErrConflict)
	// Notes are no entries.
	b.has(b.st, l, 1, 1, 2, 0)
	b.has(b.st, l, 3, 1, 2, 0)
	b.gone(l, 2)
	taken := b.acquire(other, "a")
	b.is(taken, shared.Stream{Number: 1, Note: []byte("one"), Oldest: 1, Next: 3})
	b.is(taken, shared.Stream{Number: 2, Note: []byte("two"), Oldest: 1, Next: 1})
	b.is(taken, shared.Stream{Number: 3, Note: []byte("newer"), Oldest: 1, Next: 3})
	b.is(taken, shared.Stream{Number: 4, Oldest: 1, Next: 2})
	l = taken.Lease
	b.want("Append", other.Append(b.Context(), l, []stream.Record{note(1, "mine"), rec(2, 1), final(rec(3, 3))}), nil)
	b.has(other, l, 2, 1, 1, 0)
	taken = b.acquire(b.nodes[0], "a")
	b.is(taken, shared.Stream{Number: 1, Note: []byte("mine"), Oldest: 1, Next: 3})
	b.is(taken, shared.Stream{Number: 2, Note: []byte("two"), Oldest: 1, Next: 2})
}

func notesAllOrNone(b *box) {
	_, other := b.shared()
	l := b.create("a")
	b.add(l, note(1, "one"), rec(1, 1))
	b.want("with a gap", b.append(l, note(1, "x"), note(2, "x"), rec(1, 3)), stream.ErrConflict)
	old := l
	old.Epoch++
	b.want("fenced", b.append(old, note(1, "x"), note(2, "x")), stream.ErrFenced)
	taken := b.acquire(other, "a")
	b.is(taken, shared.Stream{Number: 1, Note: []byte("one"), Oldest: 1, Next: 2})
	if n := len(taken.Streams); n != 1 {
		b.Errorf("%d streams", n)
	}
}

func lostLease(b *box) {
	st, other := b.shared()
	old := b.create("a")
	b.add(old, rec(1, 1))
	taken := b.acquire(other, "a")
	for _, r := range []stream.Record{rec(1, 2), rec(1, 1), rec(2, 1), note(1, "x")} {
		b.want("Append", b.append(old, r), stream.ErrFenced)
	}
	b.want("Touch", st.Touch(b.Context(), old), stream.ErrFenced)
	b.want("Touch of the owner's", other.Touch(b.Context(), taken.Lease), nil)
	back := b.acquire(st, "a")
	b.want("Append", b.append(old, rec(1, 2)), stream.ErrFenced)
	b.add(back.Lease, rec(1, 2))
	b.has(st, back.Lease, 1, 1, 2, 0)
	b.want("Touch", st.Touch(b.Context(), back.Lease), nil)
}

// idleTTL is the time to live of sessions in untouched.
const idleTTL = time.Second / 3 // engines may keep whole seconds, and a session for three times as long

func untouched(b *box) {
	b.shared()
	for try := 0; !b.untouched(stream.SessionKey(fmt.Sprint("a", try)), stream.SessionKey(fmt.Sprint("b", try))); try++ {
		if try == 10 {
			b.Fatal("this machine stands still more often than it goes")
		}
	}
}

// untouched lets the session idle expire, and touches the session used. It returns
// false if this machine stood still for so long that used had to expire too.
func (b *box) untouched(idle, used stream.SessionKey) bool {
	b.Helper()
	st, other := b.shared()
	start := time.Now()
	touched := start // a lower bound
	l, m := b.create(idle), b.create(used)
	b.add(l, rec(1, 1))
	late := func(err error) bool { return errors.Is(err, stream.ErrNotFound) && time.Since(touched) >= idleTTL }
	for {
		began := time.Now()
		err := st.Touch(b.Context(), m)
		if late(err) {
			return false
		}
		b.want("Touch", err, nil)
		touched = began
		_, err = other.Lookup(b.Context(), idle)
		passed := time.Since(start)
		if errors.Is(err, stream.ErrNotFound) {
			if passed < idleTTL {
				b.Errorf("gone after %v", passed)
			}
			break
		}
		if err != nil || passed > patience {
			b.Fatalf("after %v: %v", passed, err)
		}
		time.Sleep(20 * time.Millisecond) // polling: there is no event to wait for
	}
	_, err := other.Lookup(b.Context(), used)
	if late(err) {
		return false
	}
	b.want("Lookup", err, nil)
	_, err = other.Acquire(b.Context(), shared.Session{Key: idle, Owner: st.Node(), Epoch: l.Epoch})
	b.want("Acquire", err, stream.ErrNotFound)
	if err := st.Touch(b.Context(), l); err == nil {
		b.Error("touched what is gone")
	}
	b.want("Append", b.append(m, rec(1, 1)), nil)
	again, err := other.Create(b.Context(), idle, nil)
	b.want("Create again", err, nil)
	b.want("Append", other.Append(b.Context(), again, []stream.Record{rec(1, 1), rec(1, 2)}), nil)
	b.has(other, again, 1, 1, 2, 0)
	return true
}

func claims(b *box) {
	b.shared()
	for round := range byte(5) {
		id := shared.ClaimID{0: round, 31: 255}
		var mu sync.Mutex
		var first []byte
		others := make(map[string]int)
		var wg sync.WaitGroup
		for i := range 6 {
			st, mine := b.nodes[i%2], fmt.Appendf(nil, "value %d", i)
			wg.Go(func() {
				was, age, err := st.Claim(b.Context(), id, mine)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil || age < -time.Second || age > patience:
					b.Errorf("Claim: %v, %v ago", err, age)
				case was == nil && first != nil:
					b.Errorf("%q and %q are both the first", first, mine)
				case was == nil:
					first = mine
				default:
					others[string(was)]++
				}
			})
		}
		wg.Wait()
		if others[string(first)] != 5 {
			b.Fatalf("%q was first, and others got %v", first, others)
		}
		// Unclaim with another value does not remove the claim.
		b.want("Unclaim", b.nodes[0].Unclaim(b.Context(), id, []byte("other")), nil)
		was, _, err := b.nodes[1].Claim(b.Context(), id, first)
		if err != nil || !bytes.Equal(was, first) {
			b.Fatalf("Claim again: %q and %v", was, err)
		}
		b.want("Unclaim", b.nodes[1].Unclaim(b.Context(), id, first), nil)
		b.want("Unclaim again", b.nodes[1].Unclaim(b.Context(), id, first), nil)
		was, _, err = b.nodes[0].Claim(b.Context(), id, []byte("new"))
		if err != nil || was != nil {
			b.Fatalf("Claim anew: %q and %v", was, err)
		}
	}
}

func sessionsFound(b *box) {
	st, other := b.shared()
	want := make(map[stream.SessionKey]shared.Session)
	for i := range 20 {
		key := stream.SessionKey(fmt.Sprint("s", i))
		l, err := b.nodes[i%2].Create(b.Context(), key, []byte(key))
		b.want("Create", err, nil)
		switch i % 5 {
		case 0:
			b.want("Delete", b.nodes[i%2].Delete(b.Context(), key), nil)
			continue
		case 1:
			b.want("Release", b.nodes[i%2].Release(b.Context(), l, true), nil)
		case 2:
			b.acquire(b.nodes[(i+1)%2], key)
		}
		want[key] = b.lookup(st, key)
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) { // polling: there is no event to wait for
		calls, last := 0, make(map[stream.SessionKey]shared.Session)
		err := other.Sessions(b.Context(), func(s shared.Session) bool {
			calls++
			last[s.Key] = s
			return true
		})
		if err != nil {
			b.Fatalf("Sessions: %v", err)
		}
		for key, w := range want {
			if s := last[key]; w.Key != s.Key || w.Owner != s.Owner || w.Open != s.Open || w.Epoch != s.Epoch || string(s.About) != string(s.Key) {
				b.Errorf("got %+v last, want %+v", s, w)
			}
		}
		if calls == len(want) && len(last) == calls {
			break
		}
		if time.Since(start) > patience {
			b.Fatalf("%d sessions of %d are listed, %d times", len(last), len(want), calls)
		}
	}
	found := 0
	err := other.Sessions(b.Context(), func(shared.Session) bool {
		found++
		return false
	})
	if err != nil || found != 1 {
		b.Errorf("ended after %d: %v", found, err)
	}
	_, err = st.Lookup(b.Context(), "s0")
	b.want("Lookup of what was deleted", err, stream.ErrNotFound)
}

func deletedElsewhere(b *box) {
	st, other := b.shared()
	l := b.create("a")
	b.add(l, rec(1, 1))
	b.want("Delete", other.Delete(b.Context(), "a"), nil)
	_, err := st.Lookup(b.Context(), "a")
	b.want("Lookup", err, stream.ErrNotFound)
	if err := b.append(l, rec(1, 2)); !errors.Is(err, stream.ErrFenced) && !errors.Is(err, stream.ErrNotFound) {
		b.Errorf("Append: %v", err)
	}
	again, err := other.Create(b.Context(), "a", nil)
	b.want("Create again", err, nil)
	b.want("Append", other.Append(b.Context(), again, []stream.Record{rec(2, 1)}), nil)
	taken := b.acquire(st, "a")
	if len(taken.Streams) != 1 || taken.Streams[0].Number != 2 {
		b.Errorf("streams are %+v", taken.Streams)
	}
}
