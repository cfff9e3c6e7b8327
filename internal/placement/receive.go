package placement

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Visit describes a request to the node to which the client's node forwards it. It comes
// over the connections between nodes only: a client's header of that name is neither read nor
// forwarded. Each boolean is a field of its own on the wire, as nodes of other builds read it.
type Visit struct {
	Principal []byte `json:"principal,omitempty"` // as text, which need not be UTF-8
	// Credential is the [caller.Credential] of a request without a session. The header that it came
	// in may not be forwarded.
	Credential []byte `json:"credential,omitempty"`
	From       string `json:"from,omitempty"` // the client's address
	// Node is the sender, if it can be asked for the state of the client.
	Node string `json:"node,omitempty"`
	// Watched says that the sender sends a notice if the client leaves with bytes unread.
	Watched bool `json:"watched,omitempty"`
	// Once is the name of the POST, the same each time that it is sent: its requests run once.
	Once  string `json:"once,omitempty"`
	Again bool   `json:"again,omitempty"` // the request may have been sent before
	// Continues says that the sender has written the stream up to the event id, and asks for the
	// rest by itself: the client may not have received that event.
	Continues bool `json:"continues,omitempty"`
	// Take asks the receiver to take the session over, if it has no owner, or to begin one.
	Take bool `json:"take,omitempty"`
	// Stays says that the client's connection carries other exchanges too, and must
	// not be ended for this one.
	Stays bool `json:"stays,omitempty"`
	// Local asks for the receiver's own sessions alone, in a range.
	Local *session.Range `json:"local,omitempty"`
	// Revision is the revision that the client speaks, if it is known. The request
	// may go to another session than the client's.
	Revision string `json:"revision,omitempty"`
	// Own is the name of the client's own session, if the request may be about a task of another.
	Own string `json:"own,omitempty"`
	// Messages is the URL to which clients of revision 2024-11-05 are told to post.
	// Pair says that the request came to the endpoints of that revision.
	Messages string `json:"messages,omitempty"`
	Pair     bool   `json:"pair,omitempty"`
	// Info is the application's data from the request's context, which it packed on the sender and
	// unpacks on the receiver.
	Info []byte `json:"info,omitempty"`
}

// Headers between nodes. They are never passed on to a client, and never read from one.
const (
	OwnHeaders  = "Holdfast-"
	headerVisit = "Holdfast-Visit" // a visit, in a request
	headerMoved = "Holdfast-Moved" // in a response: the request is for another node; the value may be the name of the session that it is about
	HeaderAt    = "Holdfast-At"    // in a response: the event id after which the stream begins
	// HeaderRefused is, in a response, why a request was refused before a call began.
	HeaderRefused = "Holdfast-Refused"
	// HeaderDoor is, in a response, the [observe.Door] of a stream's reader.
	HeaderDoor = "Holdfast-Door"
	// HeaderReturns says, in a response, that the client can come back for the rest of the stream.
	HeaderReturns = "Holdfast-Returns"
	HeaderAway    = "Holdfast-Away"  // in the trailer of a stream: the client must come back for its rest
	HeaderTaken   = "Holdfast-Taken" // in the trailer of a stream: a newer connection reads it
)

type visitKey struct{}

// VisitOf returns the visit of a request that another node has forwarded, or nil for a client's.
func VisitOf(r *http.Request) *Visit {
	v, _ := r.Context().Value(visitKey{}).(*Visit)
	return v
}

// WithVisit returns a context for a request with the visit v. nil is for a request of this node's own.
func WithVisit(ctx context.Context, v *Visit) context.Context {
	return context.WithValue(ctx, visitKey{}, v)
}

// encode returns the visit as a header's value.
func (v *Visit) encode() string {
	text, _ := json.Marshal(v)
	return base64.RawStdEncoding.EncodeToString(text)
}

// receive serves requests from other nodes. The client's node has checked Origin
// and Host, and bounded the time that the body takes.
func (n *Nodes) receive(w http.ResponseWriter, r *http.Request) {
	if n.pageAsked(w, r) || n.lends(w, r) || n.tellsOfClient(w, r) {
		return
	}
	v := new(Visit)
	text, err := base64.RawStdEncoding.DecodeString(r.Header.Get(headerVisit))
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		n.opts.Host.Reject(w, http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "no request of a node: %v", err))
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, OwnHeaders) {
			delete(r.Header, name)
		}
	}
	r.RemoteAddr = v.From
	w.Header()[HeaderRefused] = nil // nothing, until a reason is known
	n.opts.Host.Receive(w, r, v)
}
