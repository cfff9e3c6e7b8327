package likeness

import (
	"encoding/binary"
	"iter"
)

// A Reason is why a request is taken for one that was made again. In their order they are looked for.
type Reason uint8

// The reasons.
const (
	Whole   Reason = iota // it is the same, with its id: an HTTP client repeats what a broken connection has left unanswered
	Named                 // the host gives it the same id of its own
	Asked                 // the model asks again, in the same conversation
	Reasons               // how many there are
)

var words = [Reasons]string{
	Whole: "the request came again as it was",
	Named: "the host's own id of the call",
	Asked: "the model asked again",
}

func (r Reason) String() string { return words[r] }

// Keys are what a call is found by, each for its reason, if at all.
type Keys [Reasons]Digest

// KeysAt returns what calls like one are found by: in a conversation of a client, and by the ids that its host gives.
func (l *Likeness) KeysAt(talk, client Digest) (keys Keys) {
	keys[Named], keys[Asked] = l.Named.In(client), l.Asked.In(talk)
	keys[Whole] = DigestOf(binary.LittleEndian.AppendUint64(talk[:], l.Sum))
	return keys
}

// EachKey yields the keys of a call, which another node may have told.
func EachKey(keys []byte) iter.Seq[Digest] {
	return func(yield func(Digest) bool) {
		for ; len(keys) >= len(Digest{}) && yield(Digest(keys)); keys = keys[len(Digest{}):] {
		}
	}
}
