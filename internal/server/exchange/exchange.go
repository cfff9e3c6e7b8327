// Package exchange has the exchanges of clients, independent of the transport, and the one place where their calls begin.
package exchange

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A Purpose is the kind of an exchange.
type Purpose int

// The purposes.
const (
	ForSession      Purpose = iota // a new session: for an initialize request, or, where there are no sessions, for one POST alone
	ForMessages                    // a POST of messages for a session: requests, or notifications and responses
	ForNamed                       // a POST of notifications and responses that name their sessions themselves
	ForRequest                     // a request to Holdfast itself (SEP-975): requests/resume or requests/getStatus
	ForRead                        // the standalone stream, or the rest of a stream, by GET with a session id
	ForStream                      // the rest of a stream, by GET at its stream URL (SEP-1335)
	ForAnswers                     // the same, by a POST of the responses that the stream's call waits for
	ForEnd                         // the end of a session
	ForSocket                      // a WebSocket, in an existing or a new session
	ForPairStream                  // the stream of the pair of revision 2024-11-05, in an existing or a new session
	ForPairMessages                // a POST of messages to that pair
	ForModern                      // a request of revision 2026-07-28, which has no session
)

// An Exchange is one request for a [Purpose], independent of the transport. Entry points
// decode to exchanges. It is served on the node of its session.
//
// It is used by one goroutine at a time, and is not kept on the heap while its session is on this node.
type Exchange struct {
	Purpose Purpose
	// HTTP is the client's request, as it is forwarded. Backends may read its header,
	// its address and the values of its context.
	HTTP      *http.Request
	From      *placement.Visit // from the node that has forwarded it; nil for a client of this node
	Principal caller.Principal // the client's
	Session   *session.Session // that it is for, once it was found here; for ForRequest the client's own, or nil

	// The session is named by Secret, its secret id; or by Ref, its name and the id of an
	// event ("NAME.ID"), in a stream URL and in the ids of 2024-11-05; or not at all, for a
	// new session or none.
	Secret string
	Ref    string
	Last   string // id of the client's last event, or ""

	Msgs  []jsonrpc.Message
	Batch bool
	Form  answering.Form // of the answer
	Once  Once

	Mine   stream.SessionKey // the session of a connection that carries many exchanges
	Modern *modern.Request   // of a request of revision 2026-07-28; else nil

	Endpoint string // the URL to which a client of 2024-11-05 is told to POST
	// Muxed says that the connection carries other exchanges: it must not be ended for
	// this one, and its client makes lost requests again.
	Muxed   bool
	MuxDoor observe.Door // of the connection
	// Continues says that Last is the last event that a node has written, after which it
	// continues by itself, and not the last event that the client says it has.
	Continues bool
	// Unsafe says that a client of a mux does not make the requests again: if they may
	// have run, it is told so.
	Unsafe bool
}

// Door returns the door by which the reader of the exchange's stream comes.
func (x *Exchange) Door() observe.Door {
	switch x.Purpose {
	case ForRead:
		if x.Last == "" {
			return observe.DoorListen
		}
		return observe.DoorReplay
	case ForStream, ForAnswers:
		return observe.DoorURL
	case ForRequest:
		return observe.DoorResume
	case ForPairStream:
		return observe.DoorPair
	}
	return observe.DoorPost
}

// Opens reports whether the exchange needs a new session.
func (x *Exchange) Opens() bool {
	switch x.Purpose {
	case ForSession:
		return true
	case ForSocket:
		return x.HTTP.Header[protocol.HeaderSession] == nil
	case ForPairStream:
		return x.Ref == ""
	}
	return false
}

// Anywhere reports whether any node can serve the exchange, until one has begun to.
func (x *Exchange) Anywhere() bool { return x.Opens() || x.Purpose == ForModern }

// Pair reports whether the exchange is of the pair of revision 2024-11-05.
func (x *Exchange) Pair() bool {
	return x.Purpose == ForPairStream || x.Purpose == ForPairMessages
}

// Begins reports whether a request among the messages begins a call.
func (x *Exchange) Begins() bool {
	for i := range x.Msgs {
		if x.Msgs[i].Kind == jsonrpc.Request && !protocol.Resumes(x.Msgs[i].Method) && !IsBetweenNodes(x.Msgs[i].Method) {
			return true
		}
	}
	return false
}

// Name returns the name of the session that the exchange is for, or "".
func (x *Exchange) Name() stream.SessionKey {
	if x.Secret != "" && x.Ref == "" {
		return whereabouts.KeyOf(x.Secret)
	}
	name, _, _ := strings.Cut(x.Ref, ".")
	return stream.SessionKey(name)
}

// Place returns the id of the event that Ref names.
func (x *Exchange) Place() string {
	_, id, _ := strings.Cut(x.Ref, ".")
	return id
}

// Names reports whether the exchange names its session by its secret id.
func (x *Exchange) Names() bool {
	return x.Secret != "" && (x.Ref == "" || whereabouts.KeyOf(x.Secret) == x.Name())
}

// Values returns the request's context without its end, for work that outlives the request.
func (x *Exchange) Values() context.Context { return context.WithoutCancel(x.HTTP.Context()) }

// Client returns the client of a request without a session.
func (x *Exchange) Client(sessions *session.Manager) *session.Client {
	c := sessions.ClientOf(x.HTTP, x.Principal, x.Credential())
	return &c
}

// Credential returns the credential of the client: from the visit of another node, or from the header.
func (x *Exchange) Credential() caller.Credential {
	if x.From != nil && len(x.From.Credential) == len(caller.Credential{}) {
		return caller.Credential(x.From.Credential)
	}
	return caller.CredentialOf(x.HTTP.Header)
}

// Apart returns the credential of an anonymous client, which tells it apart from others; for other clients none.
func (x *Exchange) Apart() (credential caller.Credential) {
	if x.Principal.IsAnonymous() {
		credential = x.Credential()
	}
	return credential
}

// MayBeGuest reports whether the exchange may be for another session than its client's.
func (x *Exchange) MayBeGuest(sessions *session.Manager) bool {
	return x.Purpose == ForMessages && len(x.Msgs) == 1 && session.MayGoAbroad(sessions, &x.Msgs[0])
}

// OwnSession returns the session of the client of an exchange that may be a guest, or "".
func (x *Exchange) OwnSession() stream.SessionKey {
	switch {
	case x.From != nil:
		return stream.SessionKey(x.From.Own)
	case x.Mine != "":
		return x.Mine
	}
	return x.Name()
}

// Guest returns OwnSession if the exchange is served in another session, else "".
func (x *Exchange) Guest(sessions *session.Manager) stream.SessionKey {
	if !x.MayBeGuest(sessions) {
		return ""
	}
	if own := x.OwnSession(); own != stream.SessionKey(x.Session.Name()) {
		return own
	}
	return ""
}

// IsListen reports whether the request is a subscriptions/listen.
func (x *Exchange) IsListen() bool { return x.Method() == protocol.MethodSubscriptions }

// Method returns the method of a modern request, which its header repeats.
func (x *Exchange) Method() string {
	if m := x.HTTP.Header[protocol.HeaderMethod]; len(m) > 0 {
		return m[0]
	}
	return ""
}

// KeyOf returns the idempotency key of a POST, "" if it has none: the header's, else its single message's.
func KeyOf(r *http.Request, msgs []jsonrpc.Message) (string, error) {
	switch header := r.Header[protocol.HeaderIdempotencyKey]; {
	case len(header) > 1:
		return "", fmt.Errorf("%s stands there twice", protocol.HeaderIdempotencyKey)
	case len(header) == 1:
		return protocol.IdempotencyKey(header[0])
	case len(msgs) > 1:
		return "", nil
	}
	return MessageKey(&msgs[0])
}

// MessageKey returns the idempotency key that a message itself carries, or "".
func MessageKey(m *jsonrpc.Message) (string, error) {
	if !bytes.Contains(m.Params, []byte("idempotencyKey")) { // the usual case
		return "", nil
	}
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key := jsonrpc.String(raw)
	return key, protocol.CheckKey(key)
}

// LastEventID returns the Last-Event-ID of a request, or "".
func LastEventID(r *http.Request) string {
	if v := r.Header[protocol.HeaderLastEventID]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// IsBetweenNodes reports whether a method is for requests from one node to another only.
func IsBetweenNodes(method string) bool {
	return method == handofftext.MethodAsk || method == MethodList
}

// MethodList is the method by which a node asks others for all tasks of a principal in their sessions.
const MethodList = "holdfast/tasks"

// OwnPost returns a POST of this node's own, with the client and the context of r.
func OwnPost(r *http.Request) *http.Request {
	to := r.Clone(placement.WithVisit(r.Context(), nil))
	to.Method, to.Body, to.ContentLength = http.MethodPost, http.NoBody, 0
	to.URL.RawQuery = ""
	for _, name := range []string{protocol.HeaderLastEventID, protocol.HeaderIdempotencyKey, "Upgrade", "Connection"} {
		to.Header.Del(name)
	}
	to.Header["Accept"] = []string{"application/json, " + sse.ContentType}
	to.Header["Content-Type"] = []string{"application/json"}
	return to
}

type movedKey struct{}

// WithMoved returns a context for a request that came to an old path of its server, which has moved to another.
func WithMoved(ctx context.Context, to string) context.Context {
	return context.WithValue(ctx, movedKey{}, to)
}

// Moved returns an error if a request came to an old path of its server.
func Moved(ctx context.Context) error {
	if to, ok := ctx.Value(movedKey{}).(string); ok {
		return &answering.Moved{To: to}
	}
	return nil
}
