package ticket

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func eventID(secret string, number, epoch, seq uint64) string {
	return string(AppendEvent(nil, StreamName(secret, number), epoch, seq))
}

func TestEventID(t *testing.T) {
	t.Parallel()
	const s = "secret"
	seen := make(map[string]bool)
	numbers := []uint64{0, 1, 2, 35, 36, 1 << 32, math.MaxUint64}
	for _, number := range numbers {
		for _, epoch := range numbers {
			for _, seq := range numbers {
				id := eventID(s, number, epoch, seq)
				if seen[id] {
					t.Fatalf("%s stands for two places", id)
				}
				seen[id] = true
				want := Event{Number: number, Epoch: epoch, Seq: seq}
				if epoch == 0 && seq > 0 { // epoch 0 has no entries
					if _, err := ParseEvent(s, id); !errors.Is(err, ErrBadEvent) {
						t.Errorf("%s: %v", id, err)
					}
					continue
				}
				for _, id := range []string{id, id + "~", id + "~1k2j", id + "~a~b"} {
					if got, err := ParseEvent(s, id); err != nil || !reflect.DeepEqual(got, want) {
						t.Errorf("%s: got %+v and %v, want %+v", id, got, err, want)
					}
				}
				if len(id) > 64 || strings.ContainsAny(id, "\x00\r\n %&=?#,;\"<>") {
					t.Errorf("%q is not fit for an event, a URL and a header", id)
				}
			}
		}
	}
	// The name identifies a session and a stream, and reveals no secret.
	if StreamName(s, 1) != StreamName("secret", 1) {
		t.Error("a stream's name changes")
	}
	for _, other := range []string{StreamName("secret2", 1), StreamName(s, 2), StreamName("", 1)} {
		if other[:MarkLen] == StreamName(s, 1)[:MarkLen] {
			t.Errorf("%s is the mark of two streams", other)
		}
	}
	if strings.Contains(StreamName(s, 1), "secret") {
		t.Error("the name tells the id")
	}
}

// An id is refused unless the session has given exactly this id, and no malformed id
// does harm.
func TestForeignEventID(t *testing.T) {
	t.Parallel()
	const s, other = "secret", "another"
	id := eventID(s, 7, 1, 42)
	mark, rest := id[:MarkLen], id[MarkLen:]
	bad := []string{
		"", "~", ".", "..", "0", strings.Repeat("A", MarkLen), strings.Repeat("A", MarkLen) + "~",
		eventID(other, 7, 1, 42),
		eventID(s, 8, 1, 42)[:MarkLen] + rest,      // the mark of another stream
		mark + "8" + rest[1:],                      // another stream under the mark
		strings.ToLower(mark) + rest,               // garbled
		strings.ToUpper(id),                        //
		" " + id, id + " ", id + "\x00", id + "\n", //
		id + ".1", mark + ".1.1.1", mark + rest[1:], // more, and fewer parts
		mark + "07.1.16", mark + "7.01.16", mark + "7.1.016", // another spelling
		mark + "7.1.1G", mark + "7.+1.16", mark + "7.-1.16", mark + "7.1.", mark + "7..16", mark + ".1.16",
		mark + "7.1.zzzzzzzzzzzzz", mark + "7.1.3w5e11264sgsg", // beyond 64 bits
		mark + "७.1.16", // a digit elsewhere
		id + "~" + strings.Repeat("x", 200), strings.Repeat("x", 1<<20),
		id[:MarkLen-1] + "~" + rest,
	}
	for i := range len(id) { // truncated
		if strings.Count(id[:i], ".") < 2 || strings.HasSuffix(id[:i], ".") {
			bad = append(bad, id[:i])
		}
	}
	for i := range MarkLen { // one character changed
		c := byte('A')
		if id[i] == c {
			c = 'B'
		}
		bad = append(bad, id[:i]+string(c)+id[i+1:])
	}
	for _, id := range bad {
		if got, err := ParseEvent(s, id); !errors.Is(err, ErrBadEvent) || !reflect.DeepEqual(got, Event{}) {
			t.Errorf("%.100q: got %+v and %v", id, got, err)
		}
	}
}

// FuzzEventID looks for texts that are accepted though no session has given them.
func FuzzEventID(f *testing.F) {
	const s = "secret"
	f.Add(eventID(s, 0, 1, 0))
	f.Add(eventID(s, 7, 1, 42) + "~1k")
	f.Add(eventID("another", 7, 1, 42))
	f.Add(StreamName(s, 7) + ".01.1")
	f.Add("~.~.~................")
	f.Fuzz(func(t *testing.T, id string) {
		at, err := ParseEvent(s, id)
		if err != nil {
			if !errors.Is(err, ErrBadEvent) || !reflect.DeepEqual(at, Event{}) {
				t.Fatalf("%+v and %v", at, err)
			}
			return
		}
		given := eventID(s, at.Number, at.Epoch, at.Seq)
		if plain, _, _ := strings.Cut(id, "~"); plain != given {
			t.Fatalf("%q is taken for %q", id, given)
		}
	})
}

// FuzzCursor looks for cursors that do not survive the way through an id.
func FuzzCursor(f *testing.F) {
	f.Add("secret", uint64(1), uint64(1), uint64(1), "x")
	f.Add("", uint64(0), uint64(0), uint64(math.MaxUint64), "~.")
	f.Fuzz(func(t *testing.T, secret string, number, epoch, seq uint64, tail string) {
		s := secret
		if seq > 0 {
			epoch = max(epoch, 1)
		}
		want := Event{Number: number, Epoch: epoch, Seq: seq}
		id := eventID(s, number, epoch, seq)
		// A longer tail would have to be sealed.
		if tail = "~" + tail; len(id)+len(tail) <= 128 && len(tail)-strings.LastIndexByte(tail, '~')-1 <= MarkLen {
			id += tail
		}
		if got, err := ParseEvent(s, id); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: got %+v and %v, want %+v", id, got, err, want)
		}
		if _, err := ParseEvent(secret+"x", id); !errors.Is(err, ErrBadEvent) {
			t.Fatalf("another session takes %q: %v", id, err)
		}
	})
}
