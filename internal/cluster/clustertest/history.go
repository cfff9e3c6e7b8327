package clustertest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A Kind says what an operation was.
type Kind string

// The operations on a store that are recorded.
const (
	Create  Kind = "create"
	Append  Kind = "append"
	Read    Kind = "read" // from a cursor to the end
	Lookup  Kind = "lookup"
	Acquire Kind = "acquire"
	Release Kind = "release"
	Claim   Kind = "claim"
)

// An Outcome is what is known of whether an operation happened.
type Outcome string

// What can be known.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // it did not happen, and never will
	Unknown Outcome = "unknown" // it did or did not, or will yet
)

// An Op is one operation, as its caller saw it.
type Op struct {
	ID         int // counts from 1 in the order in which they began
	Node       string
	Kind       Kind
	Key        stream.SessionKey
	Start, End time.Duration // since the run began
	Outcome    Outcome
	Err        error
	Epoch      uint64 // of the lease; for Create and Acquire the one that they gave

	Records []stream.Record // Append
	Number  uint64          // Read: the stream
	After   uint64          //   the sequence before the first entry
	Entries []stream.Entry  //   what there was
	Ended   bool            //   and nothing will follow
	Streams []shared.Stream // Acquire: what was found
	Found   shared.Session  // Lookup
	Claim   shared.ClaimID  // Claim
	Value   []byte          //   the value that was offered
	Was     []byte          //   the value that there was, if it was refused
}

func (op *Op) String() string {
	return fmt.Sprintf("%s %d of %s by %s under epoch %d (%s, from %v to %v)",
		op.Kind, op.ID, op.Key, op.Node, op.Epoch, op.Outcome, op.Start, op.End)
}

// token is the data of an operation's record: it says where it comes from.
func token(id, record int) string { return fmt.Sprintf("%d.%d;", id, record) }

// origin reads a token.
func origin(data []byte) (id, record int, ok bool) {
	head, _, ok := strings.Cut(string(data[:min(len(data), 40)]), ";")
	a, b, _ := strings.Cut(head, ".")
	id, err1 := strconv.Atoi(a)
	record, err2 := strconv.Atoi(b)
	return id, record, ok && err1 == nil && err2 == nil
}

// outcome says what an error tells of an operation.
func outcome(err error) Outcome {
	if err == nil {
		return Done
	}
	for _, refusal := range []error{
		stream.ErrNotFound, stream.ErrExists, stream.ErrConflict, stream.ErrFenced,
		stream.ErrFull, stream.ErrTooLarge, stream.ErrTrimmed,
	} {
		if errors.Is(err, refusal) {
			return Refused
		}
	}
	return Unknown
}

// A recorder keeps what happens, in the order in which it began.
type recorder struct {
	began time.Time

	opsMu sync.Mutex
	ops   []*Op
}

// begin records that an operation begins. What it needs of its own id, prepare
// fills in.
func (r *recorder) begin(op Op, prepare func(op *Op)) *Op {
	r.opsMu.Lock()
	defer r.opsMu.Unlock()
	op.ID = len(r.ops) + 1
	op.Outcome = Unknown
	if prepare != nil {
		prepare(&op)
	}
	op.Start = time.Since(r.began)
	r.ops = append(r.ops, &op)
	return &op
}

// finish records how it ended.
func (r *recorder) finish(op *Op, err error, result func()) {
	r.opsMu.Lock()
	defer r.opsMu.Unlock()
	op.End = time.Since(r.began)
	op.Err, op.Outcome = err, outcome(err)
	if result != nil {
		result()
	}
}

// history returns what happened. What has not ended has an unknown outcome.
func (r *recorder) history() []*Op {
	r.opsMu.Lock()
	defer r.opsMu.Unlock()
	now := time.Since(r.began)
	for _, op := range r.ops {
		if op.End == 0 {
			op.End = now
		}
	}
	return r.ops
}
