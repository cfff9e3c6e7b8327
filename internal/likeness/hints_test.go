package likeness

import (
	"encoding/binary"
	"testing"
	"time"
)

// A node keeps MostHints hints: older ones are forgotten, and so are hints that are too old, or that their node has taken back.
func TestManyHints(t *testing.T) {
	t.Parallel()
	key := func(i int) Digest { return DigestOf(binary.AppendUvarint(nil, uint64(i))) }
	var all Hints
	now := time.Now()
	for i := range MostHints + 10 {
		all.Add(&Hint{Key: key(i), Node: "a", Name: 1, Since: now}, time.Hour)
	}
	all.Forget(key(12), "b", 1)
	all.Forget(key(12), "a", 2)
	all.Forget(key(11), "a", 1)
	for i, want := range map[int]bool{9: false, 10: true, 11: false, 12: true, MostHints + 9: true} {
		if found := all.Find(Keys{Asked: key(i)}, time.Hour); len(found) > 0 != want {
			t.Errorf("the one number %d: %v", i, found)
		}
	}
	if len(all.by) != MostHints-1 || int(all.n.Load()) != MostHints-1 {
		t.Errorf("%d are kept, by %d keys", all.n.Load(), len(all.by))
	}
	all.Add(&Hint{Key: key(0), Node: "a", Name: 1, Since: now.Add(2 * time.Hour)}, time.Hour)
	if n := all.n.Load(); n != 1 {
		t.Errorf("%d are kept after their time", n)
	}
}
