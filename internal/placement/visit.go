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

// A Visit is what the node that got a request tells the node to which it forwards the request.
// It comes over the connections between nodes only: a client's header of that name is neither
// read nor forwarded. It has six booleans, as each is a field of its own on the wire, which
// nodes of other builds read.
type Visit struct {
	Principal []byte `json:"principal,omitempty"` // its text, which need not be UTF-8
	// Credential is the [caller.Credential] of a request that belongs to no session: its header may
	// not be forwarded.
	Credential []byte `json:"credential,omitempty"`
	From       string `json:"from,omitempty"` // the client's address
	// Node is the sender, if that can be asked for the client.
	Node string `json:"node,omitempty"`
	// Watched says that the sender will tell if the client leaves with bytes unread.
	Watched bool `json:"watched,omitempty"`
	// Once names the POST, however often it is sent: its requests run once.
	Once  string `json:"once,omitempty"`
	Again bool   `json:"again,omitempty"` // it may have been sent before
	// Continues says that the event id is of what the sender has written to the client, and goes
	// on with by itself: the client may not have it.
	Continues bool `json:"continues,omitempty"`
	// Take says that the session is nobody's, and to be taken over.
	Take bool `json:"take,omitempty"`
	// Stays says that the client hears more than this on its connection, and is not
	// to be sent away from it.
	Stays bool `json:"stays,omitempty"`
	// Local asks for what this node knows by itself, of sessions in a range.
	Local *session.Range `json:"local,omitempty"`
	// Revision is the one that the client speaks, if it is known; its session need
	// not be the one that the request goes to.
	Revision string `json:"revision,omitempty"`
	// Own is the name of the client's own session, if the request may be about a task of another.
	Own string `json:"own,omitempty"`
	// Messages is, at the endpoints of revision 2024-11-05, where clients are told to
	// post; Pair says that it is those endpoints.
	Messages string `json:"messages,omitempty"`
	Pair     bool   `json:"pair,omitempty"`
	// Info is what the sender's user has made of the request's context, to be unpacked by its own.
	Info []byte `json:"info,omitempty"`
}

// Headers between nodes. No client gets one of ours to see, or has one of its own
// heard.
const (
	OwnHeaders  = "Holdfast-"
	headerVisit = "Holdfast-Visit" // a visit, in a request
	headerMoved = "Holdfast-Moved" // that the request is for another node, and maybe the name of the session that it is about, in a response
	HeaderAt    = "Holdfast-At"    // the event id of the place that a stream begins after, in a response
	// HeaderRefused is why a request was refused before there was a call, in a response.
	HeaderRefused = "Holdfast-Refused"
	// HeaderDoor is the way in which the reader of a stream has come, in a response: [observe.Door].
	HeaderDoor = "Holdfast-Door"
	// HeaderReturns says that the client can come back for the rest of a stream, in a response.
	HeaderReturns = "Holdfast-Returns"
	HeaderAway    = "Holdfast-Away"  // that the client is to come back for the rest of a stream, in the trailer of one that ends
	HeaderTaken   = "Holdfast-Taken" // that a newer connection reads the stream, in the trailer of one that ends
)

type visitKey struct{}

// VisitOf returns what another node has told of a request, or nil for a client's.
func VisitOf(r *http.Request) *Visit {
	v, _ := r.Context().Value(visitKey{}).(*Visit)
	return v
}

// WithVisit returns a context for a request of which another node has told v; nil: for one of
// our own.
func WithVisit(ctx context.Context, v *Visit) context.Context {
	return context.WithValue(ctx, visitKey{}, v)
}

// encode returns the visit as a header's value.
func (v *Visit) encode() string {
	text, _ := json.Marshal(v)
	return base64.RawStdEncoding.EncodeToString(text)
}

// receive serves what other nodes send on. Origin and Host were checked where the
// client is connected, and so was the time that the body took.
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
