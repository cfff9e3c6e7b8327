package durable

import (
	"bytes"
	"io"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/stream"
)

func FuzzRecord(f *testing.F) {
	r := record{owner: "node-1", epoch: 1 << 40, born: 7, stamp: 1 << 63, open: true, about: []byte("about")}
	f.Add(r.encode())
	f.Add((&record{}).encode())
	f.Add([]byte{recordVersion + 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		again, err := parseRecord(r.encode())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("%+v became %+v: %v", r, again, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	entry := func(number, seq uint64, last bool, data string) stream.Record {
		return stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Epoch: 5, Last: last, Data: []byte(data)}}
	}
	note := stream.Record{Number: 3, Note: true, Entry: stream.Entry{Data: []byte("note")}}
	h := head{kind: frameItems, born: 7, prev: 9, epoch: 5, items: 3}
	one, two := entry(1, 1, false, "one"), entry(1<<63, 1<<50, true, "")
	b := h.append(nil)
	b = appendItem(b, &one, 0)
	b = appendItem(b, &note, itemRepeated)
	b = appendItem(b, &two, itemRepeated|itemFirst|itemWhole)
	f.Add(b)
	f.Add((&head{kind: frameTaken, born: 1, prev: 2, epoch: 3, stamp: 4}).append(nil))
	f.Add((&head{items: 1 << 60}).append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var items []item
		h, err := parseFrame(b, func(x item) { items = append(items, x) })
		if err != nil {
			if len(items) > 0 {
				t.Errorf("%d items of a frame that is not well formed: %v", len(items), err)
			}
			return
		}
		if uint64(len(items)) != h.items {
			t.Fatalf("%d items of %d", len(items), h.items)
		}
		again := h.append(nil)
		for i := range items {
			again = appendItem(again, &items[i].Record, items[i].flags&^(itemNote|itemLast))
		}
		follow(again, h.prev)
		n := 0
		got, err := parseFrame(again, func(x item) {
			if n < len(items) && !sameItem(x, items[n]) {
				t.Errorf("%+v became %+v", items[n], x)
			}
			n++
		})
		if err != nil || n != len(items) || got != h {
			t.Errorf("%+v became %+v, %d items, %v", h, got, n, err)
		}
	})
}

func sameItem(x, y item) bool {
	return x.flags == y.flags && x.Number == y.Number && x.Note == y.Note && x.Seq == y.Seq &&
		x.Epoch == y.Epoch && x.Last == y.Last && bytes.Equal(x.Data, y.Data)
}

// FuzzHistory reads any bytes as a session's frames. The byte before a frame is its
// length.
func FuzzHistory(f *testing.F) {
	var all []byte
	frame := func(h head, flags byte, records ...stream.Record) {
		h.items = uint64(len(records))
		b := h.append(nil)
		for i := range records {
			b = appendItem(b, &records[i], flags)
		}
		all = append(append(all, byte(len(b))), b...)
	}
	entry := func(seq uint64) stream.Record {
		return stream.Record{Number: 1, Entry: stream.Entry{Seq: seq, Data: []byte("x"), Last: seq == 5}}
	}
	frame(head{epoch: 1}, 0, entry(1), entry(2))
	frame(head{epoch: 1, prev: 1}, itemRepeated|itemFirst, entry(1))
	frame(head{epoch: 1, prev: 2}, itemRepeated|itemWhole, entry(2))
	frame(head{epoch: 2, prev: 3, kind: frameTaken}, 0)
	frame(head{epoch: 2, prev: 4}, 0, entry(4), entry(5), stream.Record{Number: 2, Note: true})
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		st := &Store{o: Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}.withDefaults()}
		st.front = memory.New(memory.Options{})
		defer st.front.Close()
		h := st.newHistory("a", 0)
		for at := uint64(1); len(b) > 0; at++ {
			n := min(int(b[0]), len(b)-1)
			h.frame(at, time.Duration(at)*time.Second, b[1:1+n])
			b = b[1+n:]
		}
		s := &session{lease: stream.Lease{Session: "a", Epoch: 1}}
		st.front.Load(s.lease, h.found(s))
		for _, x := range st.kept(s, h) {
			id := stream.ID{Session: "a", Number: x.Number}
			seq := x.Oldest - 1
			for seq+1 < x.Next {
				got, err := st.Read(t.Context(), stream.Cursor{Stream: id, Seq: seq}, make([]stream.Entry, 0, 8))
				if err != nil || len(got) == 0 {
					t.Fatalf("%+v: after %d: %v", x, seq, err)
				}
				for _, e := range got {
					if seq++; e.Seq != seq {
						t.Fatalf("%+v: %d after %d", x, e.Seq, seq-1)
					}
				}
			}
		}
	})
}
