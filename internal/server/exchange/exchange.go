// Package exchange is what clients want, freed of the way in which it came, and the one place where their calls begin.
package exchange

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handoff"
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

// A Purpose is what a client wants.
type Purpose int

// The purposes.
const (
	ForSession      Purpose = iota // a new session: for an initialize request, or, where there are no sessions, for one POST alone
	ForMessages                    // a POST of messages for a session: requests, or notifications and responses
	ForNamed                       // a POST of notifications and responses that name their sessions themselves
	ForRequest                     // a request to Holdfast itself (SEP-975): requests/resume or requests/getStatus
	ForRead                        // the standalone stream, or the rest of a stream, by GET with a session id
	ForStream                      // the rest of a stream, by GET at its stream URL (SEP-1335)
	ForAnswers                     // the same, by a POST of the responses that the stream waits for
	ForEnd                         // the end of a session
	ForSocket                      // a WebSocket, in a session that is there or in a new one
	ForPairStream                  // of the pair of revision 2024-11-05 its stream, in a session that is there or in a new one
	ForPairMessages                // and a POST of messages to it
	ForModern                      // a request of revision 2026-07-28, which has no session
)

// An Exchange is one thing that a client wants, freed of the way in which it came. Entry
// points decode to exchanges. It is served where its session is, which another node may be.
//
// It is used by one goroutine at a time, and is not kept on the heap while its session is on this node.
type Exchange struct {
	Purpose Purpose
	// HTTP has what a backend may read of the client's request (header, address, values of
	// the context), and what is forwarded of it.
	HTTP      *http.Request
	From      *placement.Visit // what the node has told that forwards it; nil for a client of this node
	Principal caller.Principal // who asks
	Session   *session.Session // it is for, once that was found here; for ForRequest the client's own, or nil

	// How the session is named: by secret, its secret id; by ref, which is its name and
	// the id of an event ("NAME.ID"), in a stream URL and in the ids of 2024-11-05; or not,
	// if a new one is wanted or none is needed.
	Secret string
	Ref    string
	Last   string // id of the event that the client has last seen, or ""

	Msgs  []jsonrpc.Message
	Batch bool
	Form  answering.Form // of the answer
	Once  Once

	Mine   stream.SessionKey // the session of the connection that the exchange came on with others
	Modern *modern.Request   // what a request of revision 2026-07-28 says of itself; else nil

	Endpoint string // where the client of 2024-11-05 is told to POST
	// Muxed says that the connection below carries other exchanges: the client is not to
	// be sent away from it, and asks again itself for what was lost.
	Muxed   bool
	MuxDoor observe.Door // that of the connection
	// Continues says that last is what a node has written to the client, and goes on after by
	// itself, and not what the client says that it has.
	Continues bool
	// Unsafe says that it does not ask again: what became of requests that may have run
	// is told.
	Unsafe bool
}

// Door returns the way in which a reader of the exchange's stream comes.
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

// Anywhere reports whether any node can serve the exchange, as long as none has begun to.
func (x *Exchange) Anywhere() bool { return x.Opens() || x.Purpose == ForModern }

// Pair reports whether the exchange is one of revision 2024-11-05.
func (x *Exchange) Pair() bool {
	return x.Purpose == ForPairStream || x.Purpose == ForPairMessages
}

// Begins reports whether there are requests among the messages that begin calls.
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

// Place returns the id of the event that a ref names.
func (x *Exchange) Place() string {
	_, id, _ := strings.Cut(x.Ref, ".")
	return id
}

// Names reports whether the exchange names its session by its secret id.
func (x *Exchange) Names() bool {
	return x.Secret != "" && (x.Ref == "" || whereabouts.KeyOf(x.Secret) == x.Name())
}

// Values returns the values of the request's context for what outlives the request.
func (x *Exchange) Values() context.Context { return context.WithoutCancel(x.HTTP.Context()) }

// Client returns who makes a request that belongs to no session.
func (x *Exchange) Client(sessions *session.Manager) *session.Client {
	c := sessions.ClientOf(x.HTTP, x.Principal, x.Credential())
	return &c
}

// Credential returns that of an exchange's client: as another node has seen it, or in its header.
func (x *Exchange) Credential() caller.Credential {
	if x.From != nil && len(x.From.Credential) == len(caller.Credential{}) {
		return caller.Credential(x.From.Credential)
	}
	return caller.CredentialOf(x.HTTP.Header)
}

// Apart returns the credential that tells an exchange's client apart, if it is nobody in particular; else none.
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

// Guest returns that session if the exchange is for another one, in which it is served.
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

// KeyOf returns the idempotency key of a POST, "" if it has none: the header's, else that of its one message.
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
	if !bytes.Contains(m.Params, []byte("idempotencyKey")) { // as nearly always
		return "", nil
	}
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key := jsonrpc.String(raw)
	return key, protocol.CheckKey(key)
}

// LastEventID returns the id of the event that the client has last seen, or "".
func LastEventID(r *http.Request) string {
	if v := r.Header[protocol.HeaderLastEventID]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// IsBetweenNodes reports whether only nodes make requests of a method, and of each other.
func IsBetweenNodes(method string) bool {
	return method == handoff.MethodAsk || method == MethodList
}

// MethodList is the method by which a node asks others what their sessions know of all that a principal has begun.
const MethodList = "holdfast/tasks"

// OwnPost returns a POST of our own in the place of a request, or on its connection.
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

// WithMoved returns a context for a request that came at a path where its server is no more: it is at another.
func WithMoved(ctx context.Context, to string) context.Context {
	return context.WithValue(ctx, movedKey{}, to)
}

// Moved returns an error if a request came at a path where its server is no more.
func Moved(ctx context.Context) error {
	if to, ok := ctx.Value(movedKey{}).(string); ok {
		return &answering.Moved{To: to}
	}
	return nil
}
