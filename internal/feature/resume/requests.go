// Package resume has requests that can be resumed over any transport (SEP-975), for clients that have the capability resumableRequests. The
// first message of a stored call is its policy, with a token that is enough to resume the call from another connection, session or process
// of the same principal. docs/decisions/0008-resuming-everything.md says how a client finds all its calls.
package resume

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// ErrBadToken says that a resume token is wrong, or belongs to another request or principal, or that the request is no longer kept. Clients are
// not told which.
var ErrBadToken = errors.New("there is no such request to resume")

// seal is the purpose that is sealed into resume tokens.
const seal = "holdfast resume token"

// Options are the same for all sessions.
type Options struct {
	MinWait time.Duration // how long clients are told to wait before they come back
	MaxWait time.Duration // how long a client may stay away from a call before it is cancelled; negative: for ever
	TTL     time.Duration // how long an idle session lives
	Keep    time.Duration // how long the store keeps a call that has ended; 0: not known
}

// promisedWait is how long clients are told that they may stay away from a call: an ended call must still be kept then. 0: no bound.
func (o *Options) promisedWait() time.Duration {
	if o.MaxWait < 0 {
		return 0
	}
	d := min(o.MaxWait, o.TTL)
	if o.Keep > 0 {
		d = min(d, o.Keep)
	}
	return d
}

// InputWait is how long a call of a modern client waits for its input: no longer than an hour.
func (o *Options) InputWait() time.Duration {
	if o.MaxWait > 0 {
		return min(o.MaxWait, time.Hour)
	}
	return time.Hour
}

// Sessions are the sessions of a node, as far as requests that are resumed need to know them. A session has a [Session] for them, or nil.
type Sessions[S interface{ Resumes() *Session }] interface {
	// Sealed returns the session that has made a ticket, for a purpose and bound to some bytes, if it is the principal's, and has reports
	// that it has the call that the ticket names. That counts as a sign of its client. The error is [ErrBadToken] for any reason, names the
	// node that has the session, or is the store's.
	Sealed(t ticket.Ticket, purpose string, bound []byte, of caller.Principal, has func(S) bool) (S, error)
	// List returns the sessions of a named principal that are in a range, in the order of their names, or, for an anonymous principal, the
	// session that asks, if any. That counts as a sign of their clients.
	List(of caller.Principal, own S, in shared.Range) []S
	// Withdraw cancels a request of a stream's call, at its client's wish.
	Withdraw(in S, number uint64, id []byte, reason string, header http.Header)
}

// Requests finds the requests of all sessions of a node that clients ask for by resume tokens.
type Requests[S interface{ Resumes() *Session }] struct {
	Options
	Sessions Sessions[S]
}

// Find returns the session of a request, and the number of its stream, which may have ended, to resume it. id is the request's, as raw JSON.
// That counts as a sign of its client. The error is that of [Sessions.Sealed].
func (r *Requests[S]) Find(token string, id []byte, of caller.Principal) (s S, number uint64, err error) {
	t, ok := ticket.Parse(token)
	if !ok {
		return s, 0, ErrBadToken
	}
	var c *Call
	s, err = r.Sessions.Sealed(t, seal, id, of, func(s S) bool {
		c = s.Resumes().call(t.Number)
		return c != nil && c.owner.IsKept()
	})
	if err != nil {
		return s, 0, err
	}
	c.see()
	return s, t.Number, nil
}

// Status returns the result of requests/getStatus, or of requests/getStatus/all, for a principal in the session own, or, if
// that is nil, without a session. more are the requests on other nodes, in the same range of sessions. The error is that of
// [Requests.Find].
func (r *Requests[S]) Status(m *jsonrpc.Message, of caller.Principal, own S, more []Listed, in shared.Range) ([]byte, error) {
	if m.Method == protocol.MethodStatusAll {
		all := map[string]any{"requests": append(r.All(of, own, in), more...)}
		if in.Until != "" {
			all["nextCursor"] = in.Until
		}
		return json.Marshal(all)
	}
	id := jsonrpc.Field(m.Params, "requestId")
	s, number, err := r.Find(jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken")), id, of)
	if err != nil {
		return nil, err
	}
	status, err := s.Resumes().Status(number, id)
	if err != nil {
		return nil, err
	}
	return json.Marshal(status)
}

// All returns the requests that can be resumed in the sessions of [Sessions.List]: within a session in the order in which their calls
// were stored. That counts as a sign of their clients.
func (r *Requests[S]) All(of caller.Principal, own S, in shared.Range) []Listed {
	all := []Listed{}
	for _, s := range r.Sessions.List(of, own, in) {
		for _, c := range s.Resumes().kept() {
			c.see()
			all = c.list(all)
		}
	}
	return all
}

// Cancels reports whether a message is a notifications/cancelled that has a resume token.
func Cancels(m *jsonrpc.Message) bool {
	return m.Kind == jsonrpc.Notification && m.Method == protocol.MethodCancelled && jsonrpc.Field(m.Params, "_meta", protocol.MetaResumeToken) != nil
}

// Cancel takes a notifications/cancelled with the resume token of the request in its _meta (holdfast/resumeToken), from any connection of the
// principal. taken reports that the message is one. If the token is wrong, no request is cancelled. The other errors are those of [Requests.Find].
func (r *Requests[S]) Cancel(of caller.Principal, m *jsonrpc.Message, header http.Header) (taken bool, err error) {
	if !Cancels(m) {
		return false, nil
	}
	id := jsonrpc.Field(m.Params, "requestId")
	s, number, err := r.Find(jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaResumeToken)), id, of)
	switch {
	case errors.Is(err, ErrBadToken):
		return true, nil
	case err == nil:
		r.Sessions.Withdraw(s, number, id, jsonrpc.String(jsonrpc.Field(m.Params, "reason")), header)
	}
	return true, err
}
