package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A purpose is what a client wants.
type purpose int

const (
	// A new session: for an initialize request, or, where there are no sessions, for one
	// POST alone.
	forSession purpose = iota
	// A POST of messages for a session: requests, or notifications and responses.
	forMessages
	// A POST of notifications and responses that name their sessions themselves.
	forNamed
	// A request to Holdfast itself (SEP-975): requests/resume or requests/getStatus.
	forRequest
	// The standalone stream, or the rest of a stream, by GET with a session id.
	forRead
	// The rest of a stream, by GET at its stream URL (SEP-1335).
	forStream
	// The same, by a POST of the responses that the stream waits for.
	forAnswers
	// The end of a session.
	forEnd
	// A WebSocket, in a session that is there or in a new one.
	forSocket
	// The pair of revision 2024-11-05: its stream, in a session that is there or in a new
	// one, and a POST of messages.
	forPairStream
	forPairMessages
	// A request of revision 2026-07-28, which has no session.
	forModern
)

// An exchange is one thing that a client wants, freed of the way in which it came. Entry
// points decode to exchanges ([Handler.decode]). It is served where its session is
// ([Handler.serve]), which another node may be.
//
// It is used by one goroutine at a time, and is not kept on the heap while its session is
// on this node.
type exchange struct {
	purpose purpose
	// r has what a backend may read of the client's request (header, address, values of
	// the context), and what is forwarded of it.
	r         *http.Request
	from      *placement.Visit // what the node has told that forwards it; nil for a client of this node
	principal caller.Principal // who asks
	session   *session.Session // it is for, once that was found here; for forRequest the client's own, or nil

	// How the session is named: by secret, its secret id; by ref, which is its name and
	// the id of an event ("NAME.ID"), in a stream URL and in the ids of 2024-11-05; or not,
	// if a new one is wanted or none is needed.
	secret string
	ref    string
	last   string // id of the event that the client has last seen, or ""

	msgs  []jsonrpc.Message
	batch bool
	form  answering.Form // of the answer
	once  runOnce

	mine   stream.SessionKey // the session of the connection that the exchange came on with others
	modern *modernRequest    // what a request of revision 2026-07-28 says of itself; else nil

	endpoint string // where the client of 2024-11-05 is told to POST
	// muxed says that the connection below carries other exchanges: the client is not to
	// be sent away from it, and asks again itself for what was lost.
	muxed   bool
	muxDoor observe.Door // that of the connection
	// continues says that last is what a node has written to the client, and goes on after by
	// itself, and not what the client says that it has.
	continues bool
	// unsafe says that it does not ask again: what became of requests that may have run
	// is told.
	unsafe bool
}

// door returns the way in which a reader of the exchange's stream comes.
func (x *exchange) door() observe.Door {
	switch x.purpose {
	case forRead:
		if x.last == "" {
			return observe.DoorListen
		}
		return observe.DoorReplay
	case forStream, forAnswers:
		return observe.DoorURL
	case forRequest:
		return observe.DoorResume
	case forPairStream:
		return observe.DoorPair
	}
	return observe.DoorPost
}

// opens reports whether the exchange needs a new session.
func (x *exchange) opens() bool {
	switch x.purpose {
	case forSession:
		return true
	case forSocket:
		return x.r.Header[protocol.HeaderSession] == nil
	case forPairStream:
		return x.ref == ""
	}
	return false
}

// anywhere reports whether any node can serve the exchange, as long as none has begun to.
func (x *exchange) anywhere() bool { return x.opens() || x.purpose == forModern }

// pair reports whether the exchange is one of revision 2024-11-05.
func (x *exchange) pair() bool { return x.purpose == forPairStream || x.purpose == forPairMessages }

// begins reports whether there are requests among the messages that begin calls.
func (x *exchange) begins() bool {
	for i := range x.msgs {
		if x.msgs[i].Kind == jsonrpc.Request && !protocol.Resumes(x.msgs[i].Method) && !isBetweenNodes(x.msgs[i].Method) {
			return true
		}
	}
	return false
}

// name returns the name of the session that the exchange is for, or "".
func (x *exchange) name() stream.SessionKey {
	if x.secret != "" && x.ref == "" {
		return whereabouts.KeyOf(x.secret)
	}
	name, _, _ := strings.Cut(x.ref, ".")
	return stream.SessionKey(name)
}

// place returns the id of the event that a ref names.
func (x *exchange) place() string {
	_, id, _ := strings.Cut(x.ref, ".")
	return id
}

// endpoint serves one request at the endpoint. Its Host and Origin were checked.
func (h *Handler) endpoint(w http.ResponseWriter, r *http.Request) {
	x := exchange{r: r, from: h.callers.visit(r)}
	if h.decode(w, &x) {
		h.serve(w, &x)
	}
}

// decode decodes a request at the endpoint. If it is false the request was answered.
//
//go:noinline
func (h *Handler) decode(w http.ResponseWriter, x *exchange) bool {
	r := x.r
	switch {
	case r.Method == http.MethodGet && !h.opts.Stateless && websocket.IsUpgrade(r):
		return h.decodeGet(w, x)
	case r.Method != http.MethodPost && modern.IsHeader(r) && h.opts.Eras == ErasLegacy:
		h.answers.Reject(w, http.StatusBadRequest, modern.Unsupported(protocol.V20260728, protocol.Supported()))
		return false
	case r.Method != http.MethodPost && modern.IsHeader(r):
		w.Header().Set("Allow", "POST, OPTIONS")
		h.answers.Reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "protocol revision %s has POST only", protocol.V20260728))
		return false
	case r.Method != http.MethodPost && h.opts.Eras.refusesLegacy() && x.from == nil: // all of it is about sessions
	case r.Method == http.MethodPost && r.URL.RawQuery != "" && streamParam(r) != "":
		return h.decodeAnswers(w, x)
	case r.Method == http.MethodPost:
		return h.decodePost(w, x)
	case r.Method == http.MethodGet && !h.opts.Stateless:
		return h.decodeGet(w, x)
	case r.Method == http.MethodDelete && !h.opts.Stateless:
		x.purpose = forEnd
		return h.identify(w, x)
	}
	w.Header().Set("Allow", h.allow())
	h.answers.Reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "method %s is not allowed here", r.Method))
	return false
}

// identify finds out who makes a request, and which session its header names. It checks
// the MCP-Protocol-Version header, which may be absent. If it is false the request was
// answered.
func (h *Handler) identify(w http.ResponseWriter, x *exchange) bool {
	if v := x.r.Header[protocol.HeaderVersion]; len(v) > 0 && !protocol.Known(v[0]) && (x.purpose != forSocket || !protocol.Modern(v[0]) || h.opts.Eras == ErasLegacy) {
		h.answers.Reject(w, http.StatusBadRequest, modern.Unsupported(v[0], protocol.Supported()))
		return false
	}
	if id := x.r.Header[protocol.HeaderSession]; len(id) > 0 {
		x.secret = id[0]
	}
	x.last = lastEventID(x.r)
	x.principal = h.callers.principal(x.r)
	if x.from != nil {
		x.once.name, x.once.again = x.from.Once, x.from.Again
		x.continues = x.from.Continues
	}
	return true
}

// serve serves an exchange: here, if its session is here, which costs nothing more; else
// where placement finds the session.
func (h *Handler) serve(w http.ResponseWriter, x *exchange) {
	err := x.movedOn()
	if err != nil {
		h.answers.FailMessages(w, err, x.msgs, x.batch)
		return
	}
	if x.purpose == forModern {
		err = h.serveModern(w, x)
	} else if x.opens() {
		err = h.serveNew(w, x)
		for moves := 0; x.purpose == forSession && errors.Is(err, session.ErrMoved) && moves < placement.MostMoves; moves++ {
			err = h.serveNew(w, x) // no client knows the session that has left: another one begins, or is begun elsewhere
		}
	} else if err = h.find(x); err == nil {
		err = h.serveIn(w, x)
		for moves := 0; errors.Is(err, session.ErrMoved) && !h.sessions.Shared() && x.names() && moves < placement.MostMoves; moves++ {
			if err = h.find(x); err == nil { // it has fallen asleep just now, and wakes
				err = h.serveIn(w, x)
			}
		}
	}
	if err != nil {
		h.place(w, x, err)
	}
}

// errUnnamed says that a request has to name its session.
var errUnnamed = errf(codeInvalid,
	"missing Mcp-Session-Id header: start with an initialize request and send the id that its response carries")

// find finds the session of an exchange on this node. The error is placement.ErrNotHere where it may
// be on another.
//
//go:noinline
func (h *Handler) find(x *exchange) (err error) {
	switch {
	case x.purpose == forNamed:
		return nil
	case x.purpose == forRequest:
		if x.secret != "" && !isBetweenNodes(x.msgs[0].Method) {
			x.session, _ = h.sessions.Find(x.secret, x.principal) // one that is gone has no requests
		}
		return nil
	case x.ref != "":
		x.session, err = h.sessions.FindName(string(x.name()), x.principal)
	case x.secret != "" && x.purpose == forRead && x.last != "":
		x.session, err = h.sessions.FindToRead(x.secret, x.principal)
	case x.secret != "":
		x.session, err = h.sessions.Find(x.secret, x.principal)
	case x.session == nil:
		return errUnnamed
	}
	if errors.Is(err, session.ErrEnded) {
		return err
	}
	if err != nil && !h.sessions.Shared() && x.names() {
		x.session, err = h.revive(x)
		if err != nil && !errors.Is(err, session.ErrNotFound) {
			return err
		}
	}
	if err != nil {
		return placement.ErrNotHere
	}
	if x.ref == "" && x.session.Streams().Unconfirmed() && !x.pair() && h.watched.At(x.r) != nil {
		x.session.Streams().ConfirmArrival(x.r.RemoteAddr)
	}
	return nil
}

// names reports whether the exchange names its session by its secret id.
func (x *exchange) names() bool {
	return x.secret != "" && (x.ref == "" || whereabouts.KeyOf(x.secret) == x.name())
}

// revive begins the exchange's session again that no node has any more.
func (h *Handler) revive(x *exchange) (*session.Session, error) {
	return h.sessions.Revive(x.values(), x.secret, x.principal, x.r.RemoteAddr, versionOf(x.r))
}

// versionOf returns the protocol revision that a request's header has, or "".
func versionOf(r *http.Request) string {
	if v := r.Header[protocol.HeaderVersion]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// open begins a session for an exchange. The error is ErrClosing while the node is drained, and
// on a door.
func (h *Handler) open(x *exchange) (err error) {
	if h.life.TakesNothing() && !h.opts.Stateless {
		return h.life.NotHere()
	}
	if x.purpose == forSession {
		var params []byte // of the initialize, if it is one
		if !h.opts.Stateless && len(x.msgs) == 1 {
			params = x.msgs[0].Params
		}
		x.session, err = h.sessions.New(x.r, x.principal, false, params)
		return err
	}
	x.session, err = h.sessions.Reserve(x.r, x.principal, x.pair()) // its backend is opened for its initialize request
	return err
}

// values returns the values of the request's context for what outlives the request.
func (x *exchange) values() context.Context { return context.WithoutCancel(x.r.Context()) }
