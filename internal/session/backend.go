package session

import (
	"context"
	"net/http"

	"holdfast/jsonrpc"
)

// A Backend answers what clients ask: an official mcp.Server, a stdio process,
// a function. It is what stands behind Holdfast.
type Backend interface {
	// Open starts a conversation for one session. What the backend says in it
	// goes to sink, from any goroutine, and from before Open returns if need be.
	// Open may wait (for a process to start, say) until ctx is done.
	Open(ctx context.Context, start Start, sink Sink) (Conn, error)
}

// A Backend that starts a process for each conversation should say so with a method
// Processes() bool: by default the number of those is bounded then, and a session that
// nobody uses does not keep one.

// Start is what a backend may want to know of the session it is opened for.
type Start struct {
	// Session is the session's public name: good for logs, useless to a thief.
	Session string
	// Secret is the session's id as the client knows it; when stateless no client
	// does. It must not be logged.
	Secret string
	// HTTP is the request that began the session; when the backend is opened again,
	// a stand-in with the header of the request that it is opened for. Only its
	// method, URL, header and context values may be used, and only during Open.
	HTTP *http.Request
}

// A Conn is one session's conversation with its backend.
type Conn interface {
	// Deliver hands over one message of the client: a request (then in.Call is
	// what its answer is about; it is nil for requests of Holdfast's own), a
	// notification, or the response to a request that the backend made. It must not wait for the answer. An error means that
	// the backend did not take the message and never will have run it.
	//
	// Deliveries come from several goroutines.
	Deliver(in Inbound) error
	// Close ends the conversation and frees all it holds. It is called once, and
	// waits no longer than it takes to be sure that nothing is left behind.
	Close() error
}

// Inbound is a message from the client. The message and its bytes may be kept.
type Inbound struct {
	jsonrpc.Message
	// Call is the call that a request opened; nil for all else, and for requests of
	// Holdfast's own.
	Call *Call
	// Context carries the values of the HTTP request; it does not end with it. It
	// keeps the whole HTTP request alive: hold it no longer than needed.
	Context context.Context
	// Header is the HTTP request's; read only.
	Header http.Header
}

// Sink takes what a backend says. Its methods may be called concurrently; the
// order of calls from one goroutine is kept.
type Sink interface {
	// Emit takes one message. call is the call that it belongs to, or nil if the
	// backend cannot know: then a response finds its call by its id, a progress
	// notification by its token, and other messages by what is in flight.
	Emit(call *Call, m jsonrpc.Message)
	// EmitUnrelated takes a message that belongs to no call: it goes to the
	// session's standalone stream.
	EmitUnrelated(m jsonrpc.Message)
	// Closed says that the conversation has ended by itself: every call in it
	// fails at once with why. reopen says whether the next message may open the
	// backend again, else the session is over. Nothing may be emitted afterwards.
	Closed(why error, reopen bool)
}
