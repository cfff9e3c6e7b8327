package streamtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// model has the entries that a store should hold, by session and stream.
type model map[stream.SessionKey]map[uint64][]stream.Entry

// append applies an append and returns its error.
func (m model) append(l stream.Lease, records []stream.Record) error {
	s, ok := m[l.Session]
	if !ok {
		return stream.ErrNotFound
	}
	after := make(map[uint64][]stream.Entry)
	for _, r := range records {
		log, ok := after[r.Number]
		if !ok {
			log = s[r.Number]
		}
		n := uint64(len(log))
		switch {
		case r.Seq == n+1 && (n == 0 || !log[n-1].Last):
			r.Epoch = l.Epoch
			after[r.Number] = append(log[:n:n], r.Entry)
		case r.Seq >= 1 && r.Seq <= uint64(len(s[r.Number])):
			if old := log[r.Seq-1]; old.Last != r.Last || !bytes.Equal(old.Data, r.Data) {
				return stream.ErrConflict
			}
		default:
			return stream.ErrConflict
		}
	}
	maps.Copy(s, after)
	return nil
}

// read returns the result of a Read with this room.
func (m model) read(c stream.Cursor, room int) ([]stream.Entry, error) {
	log := m[c.Stream.Session][c.Stream.Number]
	n := uint64(len(log))
	switch {
	case n == 0:
		return nil, stream.ErrNotFound
	case c.Seq > n, c.Seq > 0 && c.Epoch != 0 && c.Epoch != log[c.Seq-1].Epoch:
		return nil, stream.ErrTrimmed
	case c.Seq == n && log[n-1].Last:
		return nil, io.EOF
	}
	return log[c.Seq:min(n, c.Seq+uint64(room))], nil
}

// random makes random operations and compares the results with the model.
func random(b *box) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	b.Logf("seed %d", seed)
	m := make(model)
	leases := make(map[stream.SessionKey]stream.Lease)
	owners := make(map[stream.SessionKey]stream.Store)
	keys := []stream.SessionKey{"a", "b", "c"}
	for _, key := range keys {
		owners[key] = b.st
	}
	for step := range 2000 {
		key := keys[rng.IntN(len(keys))]
		st := owners[key]
		var got, want error
		var what string
		switch x := rng.IntN(100); {
		case x < 5:
			what = fmt.Sprintf("Create %s", key)
			if rng.IntN(2) == 1 {
				st = b.other
			}
			l, err := st.Create(b.Context(), key, nil)
			if got = err; m[key] != nil {
				want = stream.ErrExists
			} else {
				m[key] = make(map[uint64][]stream.Entry)
				leases[key], owners[key] = l, st
			}
		case x < 6:
			what = fmt.Sprintf("Delete %s", key)
			got = st.Delete(b.Context(), key)
			delete(m, key)
		case x < 9 && b.nodes != nil && m[key] != nil:
			what = fmt.Sprintf("Acquire %s", key)
			node := b.nodes[rng.IntN(len(b.nodes))]
			taken := b.acquire(node, key)
			old, was := leases[key], owners[key]
			leases[key], owners[key] = taken.Lease, node
			want = stream.ErrFenced
			got = was.Append(b.Context(), old, []stream.Record{rec(99, 1)})
			if bad := m.unlike(key, taken); bad != "" {
				b.Fatalf("step %d, seed %d: %s: %s", step, seed, what, bad)
			}
		case x < 50:
			l := leases[key]
			l.Session = key
			records := m.some(rng, key)
			what = fmt.Sprintf("Append to %s: %+v", key, records)
			got, want = st.Append(b.Context(), l, records), m.append(l, records)
		default:
			c := at(leases[key], rng.Uint64N(4), rng.Uint64N(12))
			c.Stream.Session = key
			c.Epoch = m.epoch(c)
			if rng.IntN(10) == 0 {
				c.Epoch++
			}
			room := 1 + rng.IntN(5)
			what = fmt.Sprintf("Read %+v, room for %d", c, room)
			var entries, wanted []stream.Entry
			entries, got = st.Read(b.Context(), c, make([]stream.Entry, 0, room))
			wanted, want = m.read(c, room)
			if !same(entries, wanted, got == nil && room > 1) {
				b.Fatalf("step %d, seed %d: %s: got %+v, want %+v", step, seed, what, entries, wanted)
			}
		}
		if !errors.Is(got, want) {
			b.Fatalf("step %d, seed %d: %s: got %v, want %v", step, seed, what, got, want)
		}
	}
}

// epoch returns the epoch of the entry at a cursor, or 0.
func (m model) epoch(c stream.Cursor) uint64 {
	log := m[c.Stream.Session][c.Stream.Number]
	if c.Seq == 0 || c.Seq > uint64(len(log)) {
		return 0
	}
	return log[c.Seq-1].Epoch
}

// unlike returns the difference between a session that was acquired and the model, or "".
func (m model) unlike(key stream.SessionKey, taken shared.Taken) string {
	found := make(map[uint64]bool)
	for _, x := range taken.Streams {
		log := m[key][x.Number]
		n := uint64(len(log))
		if n == 0 || x.Oldest != 1 || x.Next != n+1 || x.Ended != log[n-1].Last {
			return fmt.Sprintf("got %+v, want %d entries", x, n)
		}
		found[x.Number] = true
	}
	for number, log := range m[key] {
		if len(log) > 0 && !found[number] {
			return fmt.Sprintf("stream %d is missing", number)
		}
	}
	return ""
}

// same reports whether got are the entries of want. With fewer, got may lack some
// at the end, but must have one.
func same(got, want []stream.Entry, fewer bool) bool {
	if fewer && len(got) > 0 && len(got) < len(want) {
		want = want[:len(got)]
	}
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i].Seq != want[i].Seq || got[i].Epoch != want[i].Epoch || got[i].Last != want[i].Last || !bytes.Equal(got[i].Data, want[i].Data) {
			return false
		}
	}
	return true
}

// some returns records for an append that the rules often allow.
func (m model) some(rng *rand.Rand, key stream.SessionKey) []stream.Record {
	var records []stream.Record
	ahead := make(map[uint64]uint64)
	for range 1 + rng.IntN(4) {
		number := rng.Uint64N(4)
		seq := uint64(len(m[key][number])) + ahead[number] + 1
		switch rng.IntN(10) {
		case 0:
			seq = rng.Uint64N(seq + 2)
		default:
			ahead[number]++
		}
		r := rec(number, seq)
		r.Last = seq%9 == 0
		if rng.IntN(20) == 0 {
			r.Data = append(r.Data, '!')
		}
		records = append(records, r)
	}
	return records
}

// crowd writes, reads and deletes many sessions concurrently.
func crowd(b *box) {
	var wg sync.WaitGroup
	for i := range 16 {
		key := stream.SessionKey(fmt.Sprintf("s%d", i))
		st := b.st
		wg.Go(func() {
			for round := range 3 {
				l, err := st.Create(b.Context(), key, nil)
				if err != nil {
					b.Errorf("Create: %v", err)
					return
				}
				ready := make(chan struct{}, 1)
				stop, err := st.Watch(at(l, 1, 0).Stream, ready)
				if err != nil {
					b.Errorf("Watch: %v", err)
					return
				}
				var tail sync.WaitGroup
				tail.Go(func() {
					seq := uint64(0)
					err := follow(b.Context(), st, at(l, 1, 0), ready, func(e stream.Entry) error {
						if seq++; e.Seq != seq {
							return fmt.Errorf("got %d, want %d", e.Seq, seq)
						}
						return nil
					})
					if err != nil || seq != 30 {
						b.Errorf("round %d of %s: %v, after %d", round, key, err, seq)
					}
				})
				for seq := uint64(1); seq <= 30; seq++ {
					r := rec(1, seq)
					r.Last = seq == 30
					if err := st.Append(b.Context(), l, []stream.Record{r, rec(2, seq)}); err != nil {
						b.Errorf("Append: %v", err)
					}
				}
				tail.Wait()
				stop()
				if err := st.Delete(b.Context(), key); err != nil {
					b.Errorf("Delete: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
