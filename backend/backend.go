// Package backend is the contract between Holdfast and the servers that answer its clients.
//
// A [Backend] is an MCP server seen from below: Holdfast opens it once for each
// session ([Backend.Open]), delivers the client's messages to the [Conn] that it
// returns, and takes the server's messages through a [Sink]. Connections of clients,
// streams, resumption and storage are Holdfast's work; a backend knows nothing of them.
//
// Four backends are ready to use: holdfast/backend/sdk runs an mcp.Server of the
// official go-sdk, holdfast/backend/process a command that speaks MCP on stdio,
// holdfast/backend/remote stands in front of an HTTP server, and holdfast/backend/message
// is a Go function that answers raw JSON-RPC messages. Write
// another one where none of them fits, and give it to holdfast.NewBackendHandler.
//
// # Lifecycle
//
// Open is called when a session begins. If the Conn reports its end through [Sink.Closed] with reopen
// set, Open is called again for the next message of the same session, and Holdfast repeats the
// client's initialize request first. If a session does not need its process, its conversation may be
// closed and opened again in the same way. Close is called once for each Conn that Open returned.
//
// # Panics
//
// A panic in Open, Deliver or Close becomes an error of the call concerned and is
// logged with its stack. A panic on a goroutine that the backend started ends the
// program.
package backend

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/jsonrpc"
)

// A Backend answers the requests of MCP clients. Its method may be called concurrently.
//
// A Backend may also implement [ProcessStarter] and [EraSpeaker].
type Backend interface {
	// Open starts a conversation for one session. It may wait, for a process to
	// start for example, until ctx is done. The conversation outlives ctx.
	//
	// The backend sends its messages to sink, from any goroutine. It may do so before
	// Open returns.
	//
	// If Open returns an error the session is refused: the client gets HTTP status 400
	// for [ErrNoServer], and 502 for any other error.
	Open(ctx context.Context, start Start, sink Sink) (Conn, error)
}

// A ProcessStarter is a [Backend] that starts an operating system process for each
// conversation. Holdfast then bounds the number of conversations and closes those that
// no client uses, by default: see MaxProcesses and UnusedProcess in holdfast.Options.
type ProcessStarter interface {
	// Processes reports whether each conversation is a process.
	Processes() bool
}

// Eras says which protocol revisions the servers of a backend speak. Legacy revisions, up to
// 2025-11-25, begin with an initialize request; modern ones, from 2026-07-28 on, do not.
type Eras int

// The eras that a backend may speak.
const (
	Legacy  Eras = iota // legacy revisions only
	Both                // all revisions
	Unknown             // one era or both: the first conversation finds out
)

// An EraSpeaker is a [Backend] that says which eras its servers speak. A Backend that is no EraSpeaker
// speaks legacy revisions. Holdfast translates the revisions that a Backend does not speak.
type EraSpeaker interface {
	// Eras always returns the same value.
	Eras() Eras
}

// ErrNoServer is the error of [Backend.Open] where the backend has no server for the
// request, because of its URL for example.
var ErrNoServer = errors.New("no server for this request")

// Start describes the session that a backend is opened for.
type Start struct {
	// Session is the public name of the session. It may be logged: it gives no access to the session.
	Session string
	// Secret is the session id that the client presents with each request (Mcp-Session-Id).
	// It must not be logged. A stateless handler makes a secret that no client knows.
	Secret string
	// Server is the name of the server that the session belongs to, if a handler has many,
	// as "holdfast serve --config" has; else "".
	Server string
	// Revision is the protocol revision of a conversation without an initialize request:
	// 2026-07-28 or later, in which each request names its client in its _meta. It is "" if
	// the client's initialize request comes first. Only a [Backend] that speaks modern
	// revisions ([EraSpeaker]) is opened with a Revision.
	Revision string
	// HTTP is the request that began the session. When the backend is opened again, it
	// is a request with the headers of the message that made this necessary. Only its
	// method, URL, headers and context values may be used, and only during Open.
	HTTP *http.Request
}

// A Conn is the conversation of one session with its backend.
type Conn interface {
	// Deliver takes one message of the client: a request, a notification, or the
	// response to a request of the backend. It must not wait for the response to a
	// request. Calls come from several goroutines.
	//
	// If Deliver returns an error, the backend has not taken the message and will not
	// run it: the client may then be told to send the request again.
	Deliver(in Inbound) error
	// Close ends the conversation and releases its resources. It is called once. It returns when nothing
	// of the conversation is left, such as a process, and should not take longer than that needs.
	Close() error
}

// Inbound is a message of the client. The backend may keep the message and its bytes,
// and must not change them.
type Inbound struct {
	jsonrpc.Message
	// Call is the call that a request belongs to. It is nil for notifications, for
	// responses, and for the requests that Holdfast makes itself.
	Call Call
	// Context carries the values of the HTTP request, such as auth.TokenInfo. It is
	// not canceled when that request ends. It keeps the whole request in memory, so do
	// not hold it longer than needed.
	Context context.Context
	// Header holds the headers of the HTTP request. It must not be changed.
	Header http.Header
}

// A Call is the client's request, or batch of requests, and everything that the server
// sends about it until the response. A backend passes it to [Sink.Emit], to say which
// call a message belongs to. Holdfast makes all Calls; a backend cannot make one. Its
// methods may be called concurrently.
type Call interface {
	// Disconnect ends the connection on which the client reads the call, and tells the
	// client to reconnect after retry. A negative retry stands for the time that the client
	// was told when it connected. The call continues, and the client gets the messages that
	// it missed. Disconnect does nothing if no client is connected, or if the client could
	// not resume. (Revision 2025-11-25, Streamable HTTP; SEP-1699.)
	Disconnect(retry time.Duration)
}

// A Sink takes the messages of a backend. Its methods may be called concurrently.
// Messages from one goroutine keep their order. None of its methods waits for a client.
type Sink interface {
	// Emit takes one message: a response, a notification, or a request to the client.
	// call is the call that the message belongs to, or nil if the backend does not
	// know it. Without a call, a response is matched by its id and a progress
	// notification by its token; any other message goes to the call in flight if
	// there is exactly one, else to the session's standalone stream.
	Emit(call Call, m jsonrpc.Message)
	// EmitUnrelated takes a message that belongs to no call. It goes to the standalone
	// stream of the session. A response is matched by its id.
	EmitUnrelated(m jsonrpc.Message)
	// Closed reports that the conversation has ended by itself. The calls in flight
	// fail with the text of why. reopen reports whether the next message may open the
	// backend again; if it is false the session ends. Messages that are emitted later
	// are dropped.
	Closed(why error, reopen bool)
}

type contextKey struct{}

// NewContext returns a context that carries the call. A backend with handlers that take a
// context gives them this one, so that holdfast.Disconnect finds the call.
func NewContext(ctx context.Context, call Call) context.Context {
	return context.WithValue(ctx, contextKey{}, call)
}

// FromContext returns the call that ctx carries, or nil.
func FromContext(ctx context.Context) Call {
	call, _ := ctx.Value(contextKey{}).(Call)
	return call
}
