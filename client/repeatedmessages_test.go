package client

import (
	"hash/maphash"
	"strings"
	"testing"
)

// Messages that a stream without event ids sends again are dropped, and no others.
func TestRepeats(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, says, want string }{
		// At a | the stream is asked for again, and at a > the client sends answers.
		{"from its beginning", "abc|abcd", "abcd"},
		{"from its beginning, twice", "ab|abc|abcd", "abcd"},
		{"cut while it repeats", "abc|ab|abcd", "abcd"},
		{"from what is kept", "abcd|cde", "abcde"},
		{"what is new only", "abc|def", "abcdef"},
		{"nothing new", "abc|abc", "abc"},
		{"the same again, live", "aaa", "aaa"},
		{"the same again, after its beginning", "xaa|aa", "xaaaa"}, // it cannot be known which a came again: none is dropped
		{"the same again, from the beginning", "xaa|xaaa", "xaaa"},
		{"a repetition that breaks off", "abc|abz|abzy", "abczy"},
		{"nothing before", "|ab", "ab"},
		{"another stream", "ab>cd|cde", "abcde"},
		{"another stream, cut before it spoke", "ab>|cd|cd", "abcd"},
		{"another stream that begins alike", "xab>xcd|xcde", "xabcde"}, // its beginning looks like that of the first stream
		{"the same stream", "ab>abc|abcd", "abcd"},
		{"turn by turn", "ab>cb>eb|ebf", "abcbebf"},
	} {
		var told repeats
		var got strings.Builder
		seed := maphash.MakeSeed()
		for _, c := range test.says {
			switch {
			case c == '|':
				told.again()
			case c == '>':
				told.turn()
			case !told.add(seed, []byte(string(c))):
				got.WriteRune(c)
			}
		}
		if got.String() != test.want {
			t.Errorf("%s: %s became %s, want %s", test.name, test.says, &got, test.want)
		}
	}
}

// However many messages a stream brings, the record of them is bounded.
func TestRepeatsBounded(t *testing.T) {
	t.Parallel()
	var told repeats
	seed := maphash.MakeSeed()
	for i := range mostRepeats + 100 {
		told.add(seed, []byte{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	told.again()
	told.add(seed, []byte{0, 0, 0})
	told.add(seed, []byte("new"))
	if n := len(told.sums); n != mostRepeats {
		t.Errorf("%d are remembered", n)
	}
}
