package client

import (
	"hash/maphash"
	"strconv"
	"testing"
)

// The newest ids are remembered, however many events have come.
func TestEventIDs(t *testing.T) {
	t.Parallel()
	var s eventIDs
	for i := range 3 * mostSeen {
		if !s.add(strconv.Itoa(i)) {
			t.Fatalf("%d is not new", i)
		}
		for _, back := range []int{0, 1, fewSeen, mostSeen - 1} {
			if i >= back && s.add(strconv.Itoa(i-back)) {
				t.Fatalf("%d was forgotten after %d more", i-back, back)
			}
		}
	}
	if len(s.all) != mostSeen || len(s.newest) != mostSeen {
		t.Errorf("%d and %d are remembered, want %d", len(s.all), len(s.newest), mostSeen)
	}
	if !s.add("0") {
		t.Error("the oldest is still there")
	}
}

// Where the data counts, an event with a known id and other data is new.
func TestEventIDsWithData(t *testing.T) {
	t.Parallel()
	s := eventIDs{seed: maphash.MakeSeed()}
	for _, said := range []string{"a", "b"} {
		if !s.addHash(s.hash("1", []byte(said))) {
			t.Errorf("%q is not new", said)
		}
		if s.addHash(s.hash("1", []byte(said))) {
			t.Errorf("%q is new again", said)
		}
	}
	if !s.addHash(s.hash("2", []byte("a"))) {
		t.Error("the id does not count")
	}
}
