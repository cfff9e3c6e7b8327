package server

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// SSE returns the pair of endpoints of revision 2024-11-05: GET opens the session's one stream, and POST, at the URL that the
// stream's first event gives, takes messages. messages is that URL, relative to the GET's. If it is a path beside the GET's,
// clients are told only its last part, which is right even behind proxies that remove a prefix from paths.
//
// Unlike in other implementations the stream can be resumed: event ids name the session.
func (h *Handler) SSE(messages string) http.Handler {
	allow := "GET, POST, OPTIONS"
	if h.hasNoSessions() {
		allow = "OPTIONS" // the pair needs sessions
	}
	pair := h.authenticated(func(w http.ResponseWriter, r *http.Request) { h.pair(w, r, messages) })
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.hasNoSessions() || r.Method != http.MethodGet && r.Method != http.MethodPost {
			w.Header().Set("Allow", allow)
			h.answers.Reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "method %s is not allowed here", r.Method))
			return
		}
		pair.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.enter(w, r, allow, serve) })
}

// pair serves a request of the pair. Its Host and Origin were checked.
func (h *Handler) pair(w http.ResponseWriter, r *http.Request, endpoint string) {
	x := exchange.Exchange{HTTP: r, From: h.callers.visit(r), Endpoint: endpointFor(r, endpoint)}
	if h.decodePair(w, &x) {
		h.serve(w, &x)
	}
}

// endpointFor returns the reference that the client of a GET gets for the path to which to POST. Most clients resolve it
// against the URL of their GET (RFC 3986). Clients on the HTTP clients of Java and of Reactor, which the Java SDK uses,
// append it to a server URL without a path: a reference that does not begin with a slash would become part of the host.
func endpointFor(r *http.Request, endpoint string) string {
	agent := r.Header.Get("User-Agent")
	if strings.HasPrefix(agent, "Java-http-client/") || strings.HasPrefix(agent, "ReactorNetty/") {
		return endpoint
	}
	at, _, _ := strings.Cut(r.RequestURI, "?") // unchanged by a handler in front
	dir := at[:strings.LastIndexByte(at, '/')+1]
	if last, ok := lastPart(endpoint, dir); ok {
		return last
	}
	if above := strings.TrimSuffix(dir, "/"); above != "" && dir == at {
		if last, ok := lastPart(endpoint, above[:strings.LastIndexByte(above, '/')+1]); ok {
			return "../" + last
		}
	}
	return endpoint
}

// lastPart returns the part of a path after a directory, if that is a single part.
func lastPart(path, dir string) (string, bool) {
	last, ok := strings.CutPrefix(path, dir)
	return last, ok && strings.HasPrefix(dir, "/") && last != "" && !strings.ContainsAny(last, "/:?#")
}

// decodePair decodes a request of the pair. If it returns false, the request was answered.
//
//go:noinline
func (h *Handler) decodePair(w http.ResponseWriter, x *exchange.Exchange) bool {
	x.Principal = h.callers.principal(x.HTTP)
	if x.From != nil {
		x.Once.Name, x.Once.Again = x.From.Once, x.From.Again
	}
	if x.HTTP.Method == http.MethodPost {
		return h.decodePairMessages(w, x)
	}
	if !accepts(x.HTTP.Header["Accept"], sse.ContentType) {
		h.answers.Reject(w, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: what a GET gets is a stream"))
		return false
	}
	// The session is a new one, or the one that the last event id names.
	x.Purpose, x.Ref = exchange.ForPairStream, exchange.LastEventID(x.HTTP)
	return true
}

// decodePairMessages decodes a POST of messages. Their answers go to the stream. If ok is false, the request was answered.
func (h *Handler) decodePairMessages(w http.ResponseWriter, x *exchange.Exchange) (ok bool) {
	x.Purpose, x.Secret = exchange.ForPairMessages, x.HTTP.URL.Query().Get(protocol.ParamSession)
	if x.Secret == "" {
		h.answers.Reject(w, http.StatusBadRequest, errf(codeInvalid,
			"missing %s: POST to the URL that the stream's endpoint event gives", protocol.ParamSession))
		return false
	}
	s, err := h.sessions.Find(x.Secret, x.Principal)
	if err == nil && !s.SingleStream() || err != nil && h.nodes == nil { // before the body is read
		h.answers.Fail(w, session.ErrNotFound)
		return false
	}
	x.Msgs, x.Batch, ok = h.bodies.readMessages(w, x.HTTP)
	return ok && h.bodies.admits(w, x, false)
}

// readPair makes c read a session's one stream, and returns the first event to write.
func (h *Handler) readPair(x *exchange.Exchange, o *outcome, c *streaming.Events) (first []byte, err error) {
	s := x.Session
	c.Primes = false
	if err := c.Read(x.HTTP.Context(), o.at); err != nil {
		return nil, err
	}
	c.NameSession()
	// The endpoint event carries the first id, so that the stream can be resumed before its first message.
	first = append([]byte("id: "), c.EventID()...)
	first = append(first, '\n')
	return sse.AppendEvent(first, "endpoint", x.Endpoint+"?"+protocol.ParamSession+"="+url.QueryEscape(s.ID())), nil
}

// leftPair is called when the connection that read a session's one stream has ended. If the client left before it initialized the
// session, the session ends: the client has no reason to come back.
func (h *Handler) leftPair(x *exchange.Exchange, err error) {
	if !errors.Is(err, streaming.ErrComeBack) && !errors.Is(err, streaming.ErrSuperseded) && !x.Session.Moved() {
		h.sessions.Abandon(x.Session)
	}
}

// startPairMessages begins to serve messages that were POSTed to the pair.
func (h *Handler) startPairMessages(x *exchange.Exchange, o *outcome) (err error) {
	s := x.Session
	if err := exchange.Check(x.Msgs, x.Batch, exchange.StageOf(s), s.Revision()); err != nil {
		return h.refuseOnStream(x, o, err)
	}
	var calls []jsonrpc.Message
	for i := range x.Msgs {
		if x.Msgs[i].Kind == jsonrpc.Request {
			calls = append(calls, x.Msgs[i])
			continue
		}
		err := h.handOver(x, &x.Msgs[i])
		if errors.Is(err, session.ErrMoved) {
			return err
		}
		h.notHandedOver(s, x.Msgs[i].Method, err)
	}
	o.kind = outcomeAccepted
	if len(calls) == 0 {
		return nil
	}
	if o.Begun, err = h.starter.Start(x, calls, true); err == nil {
		x.Msgs = calls // Send has taken the others
	}
	return err
}

// refuseOnStream answers a single refused request on the stream, as all answers of 2024-11-05 are: clients end the connection at
// a POST that fails, even if they only ask for another era (2026-07-28, server/discover). If it can't, it returns err.
func (h *Handler) refuseOnStream(x *exchange.Exchange, o *outcome, err error) error {
	var why *jsonrpc.Error
	if errors.Is(err, session.ErrInitialize) || !errors.As(err, &why) || len(x.Msgs) != 1 || x.Batch || x.Msgs[0].Kind != jsonrpc.Request || !x.Session.Refuse(x.Msgs[0].ID, why) {
		return err
	}
	o.kind = outcomeAccepted
	return nil
}
