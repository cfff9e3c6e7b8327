package session

import (
	"errors"
	"math"
	"strings"
	"testing"

	"holdfast/stream"
)

// bare is a session that is nothing but its id.
func nameOf(s *Session, number uint64) string { return streamName(s.id, number) }

func bare(id string) *Session {
	return &Session{identity: identity{id: id, key: KeyOf(id)}}
}

func eventID(s *Session, number, epoch, seq uint64) string {
	return string(AppendEventID(nil, nameOf(s, number), epoch, seq))
}

func TestEventID(t *testing.T) {
	t.Parallel()
	s := bare("secret")
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
				want := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}, Epoch: epoch, Seq: seq}
				if epoch == 0 && seq > 0 { // under which nothing was ever written
					if _, err := s.ParseEventID(id); !errors.Is(err, ErrBadID) {
						t.Errorf("%s: %v", id, err)
					}
					continue
				}
				for _, id := range []string{id, id + "~", id + "~1k2j", id + "~a~b"} {
					if got, err := s.ParseEventID(id); err != nil || got != want {
						t.Errorf("%s: got %+v and %v, want %+v", id, got, err, want)
					}
				}
				if len(id) > 64 || strings.ContainsAny(id, "\x00\r\n %&=?#,;\"<>") {
					t.Errorf("%q is not fit for an event, a URL and a header", id)
				}
			}
		}
	}
	// The name is the session's and the stream's, and tells neither's secret.
	if nameOf(s, 1) != nameOf(bare("secret"), 1) {
		t.Error("a stream's name changes")
	}
	for _, other := range []string{nameOf(bare("secret2"), 1), nameOf(s, 2), nameOf(bare(""), 1)} {
		if other[:markLen] == nameOf(s, 1)[:markLen] {
			t.Errorf("%s is the mark of two streams", other)
		}
	}
	if strings.Contains(nameOf(s, 1), "secret") {
		t.Error("the name tells the id")
	}
}

// An id that is not exactly one that the session gave is refused, and nothing
// that is wrong with it does harm.
func TestForeignEventID(t *testing.T) {
	t.Parallel()
	s, other := bare("secret"), bare("another")
	id := eventID(s, 7, 1, 42)
	mark, rest := id[:markLen], id[markLen:]
	bad := []string{
		"", "~", ".", "..", "0", strings.Repeat("A", markLen), strings.Repeat("A", markLen) + "~",
		eventID(other, 7, 1, 42),
		eventID(s, 8, 1, 42)[:markLen] + rest,      // the mark of another stream
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
		id[:markLen-1] + "~" + rest,
	}
	for i := range len(id) { // truncated
		if strings.Count(id[:i], ".") < 2 || strings.HasSuffix(id[:i], ".") {
			bad = append(bad, id[:i])
		}
	}
	for i := range markLen { // one character changed
		c := byte('A')
		if id[i] == c {
			c = 'B'
		}
		bad = append(bad, id[:i]+string(c)+id[i+1:])
	}
	for _, id := range bad {
		if got, err := s.ParseEventID(id); !errors.Is(err, ErrBadID) || got != (stream.Cursor{}) {
			t.Errorf("%.100q: got %+v and %v", id, got, err)
		}
	}
}

// FuzzEventID looks for texts that are taken and were not given.
func FuzzEventID(f *testing.F) {
	s := bare("secret")
	f.Add(eventID(s, 0, 1, 0))
	f.Add(eventID(s, 7, 1, 42) + "~1k")
	f.Add(eventID(bare("another"), 7, 1, 42))
	f.Add(nameOf(s, 7) + ".01.1")
	f.Add("~.~.~................")
	f.Fuzz(func(t *testing.T, id string) {
		at, err := s.ParseEventID(id)
		if err != nil {
			if !errors.Is(err, ErrBadID) || at != (stream.Cursor{}) {
				t.Fatalf("%+v and %v", at, err)
			}
			return
		}
		given := eventID(s, at.Stream.Number, at.Epoch, at.Seq)
		if plain, _, _ := strings.Cut(id, "~"); plain != given || at.Stream.Session != s.key {
			t.Fatalf("%q is taken for %q", id, given)
		}
	})
}

// FuzzCursor looks for places that do not survive being an id.
// FuzzSealed makes up texts that name a session: only what it made itself is good,
// and only for what it was made for.
func FuzzSealed(f *testing.F) {
	s := bare("secret")
	f.Add(s.token(1, []byte("1")), "1")
	f.Add(strings.Trim(string(s.appendSealed(nil, askedSeal, 36, nil)), `"`), "")
	f.Add(string(s.key)+"."+nameOf(s, 7), `"a"`)
	f.Fuzz(func(t *testing.T, text, id string) {
		name, mark, number, ok := parseSealed(text)
		if !ok {
			return
		}
		for _, purpose := range []string{tokenSeal, askedSeal} {
			made := string(s.appendSealed(nil, purpose, number, []byte(id)))
			good := name == s.Name() && s.sealed(mark, purpose, number, []byte(id))
			if good != (text == made) {
				t.Fatalf("%q for %q: %v, but %q was made", text, id, good, made)
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add("secret", uint64(1), uint64(1), uint64(1), "x")
	f.Add("", uint64(0), uint64(0), uint64(math.MaxUint64), "~.")
	f.Fuzz(func(t *testing.T, secret string, number, epoch, seq uint64, tail string) {
		s := bare(secret)
		if seq > 0 {
			epoch = max(epoch, 1)
		}
		want := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}, Epoch: epoch, Seq: seq}
		id := eventID(s, number, epoch, seq)
		// What is longer is to be sealed.
		if tail = "~" + tail; len(id)+len(tail) <= 128 && len(tail)-strings.LastIndexByte(tail, '~')-1 <= markLen {
			id += tail
		}
		if got, err := s.ParseEventID(id); err != nil || got != want {
			t.Fatalf("%q: got %+v and %v, want %+v", id, got, err, want)
		}
		if _, err := bare(secret + "x").ParseEventID(id); !errors.Is(err, ErrBadID) {
			t.Fatalf("another session takes %q: %v", id, err)
		}
	})
}
