package durable

import (
	"bytes"
	"reflect"
	"testing"

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
