package idempotency

import (
	"encoding/base64"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A Record is what is known of a call that began under an idempotency key, or under
// the name that another node gave its POST.
type Record struct {
	id      ID
	sum     Sum  // of what it began with
	forward bool // the key is a node's name for a POST
	// twin is that of [TwinID], zero for a client that needs none: it is claimed with the key, so that no other
	// credential begins the same request.
	twin    ID
	twinned bool // this node has claimed the twin, and settles it with the key
}

// Key returns the record of a client's key. The twin is that of [TwinID], or zero.
func Key(scope Scope, key string, sum Sum, twin ID) *Record {
	return &Record{id: KeyID(scope, key), sum: sum, twin: twin}
}

// Forward returns the record of a POST to a session that another node sends on under a name, again if it
// can't know whether that arrived.
func Forward(session stream.SessionKey, name string, sum Sum) *Record {
	return &Record{id: ForwardID(session, name), sum: sum, forward: true}
}

func (r *Record) hasTwin() bool { return r.twin != ID{} }

// IsClients reports whether a call was begun under a client's key, by which the client can find it again. r may be nil.
func (r *Record) IsClients() bool { return r != nil && !r.forward }

// A Note is what the note of a call says of its key, as JSON.
type Note struct {
	Key       []byte `json:"key"` // the idempotency key that it began under, hashed
	Sum       []byte `json:"sum"` // of its body
	Twin      []byte `json:"twin"`
	Forwarded bool   `json:"once"`
}

// Record returns what the call began under, or nil.
func (n *Note) Record() *Record {
	r := &Record{forward: n.Forwarded}
	if len(n.Key) != len(r.id) || len(n.Sum) != len(r.sum) {
		return nil
	}
	r.id, r.sum = ID(n.Key), Sum(n.Sum)
	if len(n.Twin) == len(r.twin) {
		r.twin = ID(n.Twin)
	}
	return r
}

// AppendNote appends the members of the note. r may be nil: there are none.
func (r *Record) AppendNote(dst []byte) []byte {
	if r == nil {
		return dst
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, `,"key":"`...), r.id[:])
	dst = base64.StdEncoding.AppendEncode(append(dst, `","sum":"`...), r.sum[:])
	dst = append(dst, '"')
	if r.hasTwin() {
		dst = append(dst, `,"twin":"`...)
		dst = append(base64.StdEncoding.AppendEncode(dst, r.twin[:]), '"')
	}
	if r.forward {
		dst = append(dst, `,"once":true`...)
	}
	return dst
}

// experimental is how a server says that it honours idempotency keys.
var experimental = []byte(`{"header":"` + protocol.HeaderIdempotencyKey + `"}`)

// Advertise adds to the response to initialize or server/discover that idempotency keys are honoured.
func Advertise(response []byte) []byte {
	response, _ = jsonrpc.Set(response, experimental, "result", "capabilities", "experimental", protocol.MetaIdempotencyKey)
	return response
}
