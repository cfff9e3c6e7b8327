package client

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"holdfast/jsonrpc"
)

// A Transport is the wire protocol between a [Conn] and its server.
type Transport int

// The transports.
const (
	// Auto tries Streamable HTTP. It falls back to HTTP+SSE if the server answers the
	// first request with 400, 404 or 405 (2025-11-25, Transports, "Backwards
	// Compatibility"). A URL that begins with ws:// or wss:// selects WebSocket.
	Auto Transport = iota
	// HTTP is Streamable HTTP, of revision 2025-03-26 and later.
	HTTP
	// SSE is HTTP+SSE of revision 2024-11-05.
	SSE
	// WebSocket carries one message in each text frame.
	WebSocket
)

// An Authorizer authorizes HTTP requests. Its methods may be called concurrently. A
// panic in one of them fails the call that it was for.
type Authorizer interface {
	// Authorization returns the value of the Authorization header, or "" for none. An error
	// fails the request that was to be sent. If the request carries a message of the host,
	// ctx has the values of the context that [Conn.Send] got with the message, each time
	// that it is sent. Over a WebSocket, messages carry no header.
	Authorization(ctx context.Context) (string, error)
	// Authorize is called when the server has refused a request with 401 or 403. It may
	// take as long as a person needs to log in. If it returns nil, the request is sent
	// once more; an error refuses the request. Authorize closes the response's body. ctx has
	// the values that it has for Authorization.
	Authorize(ctx context.Context, req *http.Request, resp *http.Response) error
}

// Options configure a [Conn]. The zero value is useful. The functions among them are called on
// goroutines of the Conn, must not block, except for Receive, and may panic: a panic is logged.
type Options struct {
	// HTTPClient sends the HTTP requests. Its Timeout and CheckRedirect are not used:
	// streams are long, and redirects are followed within one origin only. Default: a
	// client of the Conn's own.
	HTTPClient *http.Client
	// Header is added to each HTTP request.
	Header http.Header
	// Auth authorizes HTTP requests. Nil: they carry no authorization but that of Header.
	Auth Authorizer
	// Transport is the wire protocol. Default: Auto.
	Transport Transport
	// Era selects the revisions of the protocol: AnyEra, Legacy or Modern.
	Era string
	// Tasks declares the extension io.modelcontextprotocol/tasks in modern tools/call requests
	// that do not declare it. When the server makes a task of such a call, the Conn polls the
	// task until it ends, so that the call survives cuts. The host gets the response of the
	// call, and the task's input requests as ordinary requests.
	Tasks bool
	// Task is called with each new status of such a task: the id of the call, as raw JSON,
	// and the task, as tasks/get returns it. The task holds a secret, its id. May be nil.
	Task func(call, task json.RawMessage)
	// AskHost turns the input requests of a modern server into ordinary requests to the host.
	// The Conn sends the host's request again with the responses. Without AskHost the host
	// gets the InputRequiredResult.
	AskHost bool
	// NoListen keeps the Conn from opening the standalone stream, on which the server sends
	// messages that belong to no request.
	NoListen bool
	// State is the state of another Conn ([Conn.State]). This Conn continues its session and its calls.
	State *State
	// Changed is called after each change of [Conn.State], which is often. It is called for a request before
	// the request is sent: a caller that stores the State then has the call in it, whenever the process ends.
	Changed func()
	// Receive takes the messages of the server in the place of [Conn.Receive]. request is the id of
	// the request that has the message's stream, as raw JSON; nil: it is not known. Receive is called
	// concurrently for messages of different streams, and may block, which holds up the stream.
	Receive func(request []byte, m jsonrpc.Message)
	// Away is called when the server is out of reach and a call waits for it: once for each
	// call and outage. Nil: the log has a line when the server goes and one when it is back.
	Away func(error)
	// Lost is called when the server has ended the session and a new one takes its place. calls
	// are the ids of the requests that were in flight, as raw JSON. Each of them still gets a
	// response: the one that its stream brings, or an error of code [CodeOutcomeUnknown]. Lost
	// is called before [Conn.Receive] returns these errors. Nil: the loss is logged.
	Lost func(calls []string)
	// MaxMessage is the size in bytes of the largest message that is taken from the
	// server. Default: 16 MiB.
	MaxMessage int
	// Silence is how long nothing may come over a connection, not even a keep-alive, before another
	// replaces it. It counts only where the call can be continued over another connection. Default:
	// 35 seconds where the server sends a keep-alive each 15 seconds, as Holdfast does, or has
	// named a way back to the call; 1 minute elsewhere.
	Silence time.Duration
	// AnswerTimeout is how long the server may take to begin its answer to a request that
	// cannot be continued over another connection. Default: 15 minutes.
	AnswerTimeout time.Duration
	// ConnectTimeout is how long the server may take to answer initialize, to take a
	// notification or a response, and to begin a stream that continues. Default: 30
	// seconds.
	ConnectTimeout time.Duration
	// GiveUp is how long the server may be out of reach before the calls that wait for it
	// fail. Default: 30 minutes.
	GiveUp time.Duration
	// BeginWithin is how long a server that was never reached may be out of reach before the request
	// that begins the conversation fails. Default: a sixth of ConnectTimeout, as the URL may be wrong.
	BeginWithin time.Duration
	// Logger takes the events that a person may want to know of. Default: slog.Default().
	Logger *slog.Logger

	quick time.Duration // Silence where keep-alives are expected
}

// A patient is an Authorizer that says how long the server may take to begin a session, in place of ConnectTimeout. It is for
// a server in front of another one that bounds the time itself.
type patient interface{ OpensWithin() time.Duration }

// A witness is an Authorizer that hears which values of the Authorization header the server has taken.
type witness interface{ Taken(authorization string) }

// taken tells the Authorizer that the server has not refused a request for its authorization.
func (s *remote) taken(h http.Header) {
	if w, ok := s.opts.Auth.(witness); ok {
		inform(s.opts.Logger, "Authorizer.Taken", func() { w.Taken(h.Get("Authorization")) })
	}
}

// A prover is an Authorizer that adds a proof to each request (DPoP, RFC 9449).
type prover interface {
	// Prove adds the proof to a request with a body, which may be nil, if the Authorization in its header needs one.
	Prove(req *http.Request, body []byte) error
	// Answered takes the answer to a request, and does not read its body. It reports whether the request was refused for its proof,
	// and may be taken with another one.
	Answered(req *http.Request, resp *http.Response) (again bool)
}

func (o *Options) defaults() {
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	if o.quick = o.Silence; o.quick <= 0 {
		o.quick = aliveWithin
	}
	def(&o.Silence, time.Minute)
	def(&o.AnswerTimeout, 15*time.Minute)
	def(&o.ConnectTimeout, 30*time.Second)
	def(&o.GiveUp, 30*time.Minute)
	def(&o.BeginWithin, min(o.ConnectTimeout, o.GiveUp)/6)
	if o.MaxMessage <= 0 {
		o.MaxMessage = 16 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}
