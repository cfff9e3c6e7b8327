package idempotency

import (
	"encoding/base64"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A Record is the key of a call, and its request: an idempotency key, or the name that another node
// gave the POST.
type Record struct {
	id      ID
	sum     Sum  // of the request that began the call
	forward bool // the key is a node's name for a POST
	// twin is the [TwinID], zero for a client that needs none. It is claimed with the key, so that no other
	// credential begins the same request.
	twin    ID
	twinned bool // this node has claimed the twin, and settles it with the key
}

// Key returns the record of a client's key. The twin is the [TwinID], or zero.
func Key(scope Scope, key string, sum Sum, twin ID) *Record {
	return &Record{id: KeyID(scope, key), sum: sum, twin: twin}
}

// Forward returns the record of a POST to a session that another node forwards under a name. The node
// sends the POST again if it can't know whether it arrived.
func Forward(session stream.SessionKey, name string, sum Sum) *Record {
	return &Record{id: ForwardID(session, name), sum: sum, forward: true}
}

func (r *Record) hasTwin() bool { return r.twin != ID{} }

// IsClients reports whether a call was begun under a client's key, by which the client can find it again. r may be nil.
func (r *Record) IsClients() bool { return r != nil && !r.forward }

// A Note has the members about the key in the note of a call, as JSON.
type Note struct {
	Key       []byte `json:"key"` // the key that the call began under, hashed
	Sum       []byte `json:"sum"` // of the request's body
	Twin      []byte `json:"twin"`
	Forwarded bool   `json:"once"`
}

// Record returns the record of the note's call, or nil.
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

// AppendNote appends the record's members of a note. r may be nil: then there are none.
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

// experimental is the capability of a server that honours idempotency keys.
var experimental = []byte(`{"header":"` + protocol.HeaderIdempotencyKey + `"}`)

// Advertise adds the capability for idempotency keys to the response to initialize or server/discover.
func Advertise(response []byte) []byte {
	response, _ = jsonrpc.Set(response, experimental, "result", "capabilities", "experimental", protocol.MetaIdempotencyKey)
	return response
}
