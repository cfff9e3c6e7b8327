package streamtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"holdfast/stream"
)

// model is what a store should hold, told from the rules: by session, then by
// stream.
type model map[stream.SessionKey]map[uint64][]stream.Entry

// append says what an append comes to, and does it.
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
			after[r.Number] = append(log[:n:n], r.Entry)
		case r.Seq >= 1 && r.Seq <= uint64(len(s[r.Number])):
			if old := log[r.Seq-1]; old.Last != r.Last || !bytes.Equal(old.Data, r.Data) {
				return stream.ErrConflict
			}
		default:
			return stream.ErrConflict
		}
	}
	for number, log := range after {
		s[number] = log
	}
	return nil
}

// read says what a read comes to.
func (m model) read(c stream.Cursor, epoch uint64, room int) ([]stream.Entry, error) {
	log := m[c.Stream.Session][c.Stream.Number]
	n := uint64(len(log))
	switch {
	case n == 0:
		return nil, stream.ErrNotFound
	case c.Seq > n, c.Seq > 0 && c.Epoch != epoch:
		return nil, stream.ErrTrimmed
	case c.Seq == n && log[n-1].Last:
		return nil, io.EOF
	}
	return log[c.Seq:min(n, c.Seq+uint64(room))], nil
}

// random does whatever comes and compares with the model.
func random(b *box) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	b.Logf("seed %d", seed)
	m := make(model)
	leases := make(map[stream.SessionKey]stream.Lease)
	keys := []stream.SessionKey{"a", "b", "c"}
	for step := range 2000 {
		st := b.st
		if rng.IntN(2) == 1 {
			st = b.other
		}
		key := keys[rng.IntN(len(keys))]
		var got, want error
		var what string
		switch x := rng.IntN(100); {
		case x < 5:
			what = fmt.Sprintf("Create %s", key)
			l, err := st.Create(b.Context(), key, nil)
			if got = err; m[key] != nil {
				want = stream.ErrExists
			} else {
				m[key] = make(map[uint64][]stream.Entry)
				leases[key] = l
			}
		case x < 6:
			what = fmt.Sprintf("Delete %s", key)
			got = st.Delete(b.Context(), key)
			delete(m, key)
		case x < 50:
			l := leases[key]
			l.Session = key
			records := m.some(rng, key)
			what = fmt.Sprintf("Append to %s: %+v", key, records)
			got, want = b.st.Append(b.Context(), l, records), m.append(l, records)
		default:
			c := at(leases[key], rng.Uint64N(4), rng.Uint64N(12))
			c.Stream.Session = key
			room := 1 + rng.IntN(5)
			what = fmt.Sprintf("Read %+v, room for %d", c, room)
			var entries, wanted []stream.Entry
			entries, got = st.Read(b.Context(), c, make([]stream.Entry, 0, room))
			wanted, want = m.read(c, leases[key].Epoch, room)
			if !same(entries, wanted, got == nil && room > 1) {
				b.Fatalf("step %d, seed %d: %s: got %+v, want %+v", step, seed, what, entries, wanted)
			}
		}
		if !errors.Is(got, want) {
			b.Fatalf("step %d, seed %d: %s: got %v, want %v", step, seed, what, got, want)
		}
	}
}

// same says whether entries are those wanted. A store may return fewer than
// there is room for, but not none.
func same(got, want []stream.Entry, fewer bool) bool {
	if fewer && len(got) > 0 && len(got) < len(want) {
		want = want[:len(got)]
	}
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i].Seq != want[i].Seq || got[i].Last != want[i].Last || !bytes.Equal(got[i].Data, want[i].Data) {
			return false
		}
	}
	return true
}

// some makes an append that is often right.
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

// crowd has many sessions written, read, and deleted at a time.
func crowd(b *box) {
	var wg sync.WaitGroup
	for i := range 16 {
		key := stream.SessionKey(fmt.Sprintf("s%d", i))
		st, readers := b.st, b.other
		wg.Go(func() {
			for round := range 3 {
				l, err := st.Create(b.Context(), key, nil)
				if err != nil {
					b.Errorf("Create: %v", err)
					return
				}
				ready := make(chan struct{}, 1)
				stop, err := readers.Watch(at(l, 1, 0).Stream, ready)
				if err != nil {
					b.Errorf("Watch: %v", err)
					return
				}
				var tail sync.WaitGroup
				tail.Go(func() {
					seq := uint64(0)
					err := follow(b.Context(), readers, at(l, 1, 0), ready, func(e stream.Entry) error {
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
