package likeness

import (
	"encoding/binary"
	"iter"
)

// A Reason is the reason to take a request for one that was made again. Calls are looked for in the order of the reasons.
type Reason uint8

// The reasons.
const (
	Whole   Reason = iota // the request is the same, with its id: an HTTP client repeats a request that a broken connection has left unanswered
	Named                 // the host gives the call the same id of its own
	Asked                 // the model asks again, in the same conversation
	Reasons               // the number of reasons
)

var words = [Reasons]string{
	Whole: "the request came again as it was",
	Named: "the host's own id of the call",
	Asked: "the model asked again",
}

func (r Reason) String() string { return words[r] }

// Keys are the keys of a call, one for each reason; a zero key is none.
type Keys [Reasons]Digest

// KeysAt returns the keys of calls with a likeness: in a conversation of a client, and by the ids that its host gives.
func (l *Likeness) KeysAt(talk, client Digest) (keys Keys) {
	keys[Named], keys[Asked] = l.Named.In(client), l.Asked.In(talk)
	keys[Whole] = DigestOf(binary.LittleEndian.AppendUint64(talk[:], l.Sum))
	return keys
}

// EachKey yields the keys of a call from bytes, which may come from another node.
func EachKey(keys []byte) iter.Seq[Digest] {
	return func(yield func(Digest) bool) {
		for ; len(keys) >= len(Digest{}) && yield(Digest(keys)); keys = keys[len(Digest{}):] {
		}
	}
}
