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

// A Kind is the kind of an operation.
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

// An Outcome says whether an operation is known to have happened.
type Outcome string

// The outcomes of an operation.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // it did not happen, and never will
	Unknown Outcome = "unknown" // it may have happened, or may happen later
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
	Epoch      uint64 // of the lease; for Create and Acquire, of the lease that they gave

	Records []stream.Record // Append
	Number  uint64          // Read: the stream
	After   uint64          //   the sequence before the first entry
	Entries []stream.Entry  // the entries that were read
	Ended   bool            // whether the last of them ends the stream
	Streams []shared.Stream // Acquire: the streams that were found
	Found   shared.Session  // Lookup
	Claim   shared.ClaimID  // Claim
	Value   []byte          //   the value that was offered
	Was     []byte          // the earlier value, if the claim was refused
}

func (op *Op) String() string {
	return fmt.Sprintf("%s %d of %s by %s under epoch %d (%s, from %v to %v)",
		op.Kind, op.ID, op.Key, op.Node, op.Epoch, op.Outcome, op.Start, op.End)
}

// token is the data of a record: it names the operation and the record's index in it.
func token(id, record int) string { return fmt.Sprintf("%d.%d;", id, record) }

// origin reads a token.
func origin(data []byte) (id, record int, ok bool) {
	head, _, ok := strings.Cut(string(data[:min(len(data), 40)]), ";")
	a, b, _ := strings.Cut(head, ".")
	id, err1 := strconv.Atoi(a)
	record, err2 := strconv.Atoi(b)
	return id, record, ok && err1 == nil && err2 == nil
}

// outcome returns the outcome of an operation that returned an error.
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

// A recorder keeps the operations, in the order in which they began.
type recorder struct {
	began time.Time

	opsMu sync.Mutex
	ops   []*Op
}

// begin records that an operation begins. prepare fills in the fields that depend on the
// operation's id.
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

// finish records how an operation ended.
func (r *recorder) finish(op *Op, err error, result func()) {
	r.opsMu.Lock()
	defer r.opsMu.Unlock()
	op.End = time.Since(r.began)
	op.Err, op.Outcome = err, outcome(err)
	if result != nil {
		result()
	}
}

// history returns the operations. Those that have not ended have an unknown outcome.
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
