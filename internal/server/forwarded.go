package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"holdfast/internal/panics"
	"holdfast/internal/session"
)

// A visit is what the node that got a request tells the node to which it forwards the request.
// It comes over the connections between nodes only: a client's header of that name is neither
// read nor forwarded. It has six booleans, as each is a field of its own on the wire, which
// nodes of other builds read.
type visit struct {
	Principal []byte `json:"principal,omitempty"` // which need not be UTF-8
	From      string `json:"from,omitempty"`      // the client's address
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
	// Messages is, at the endpoints of revision 2024-11-05, where clients are told to
	// post; Pair says that it is those endpoints.
	Messages string `json:"messages,omitempty"`
	Pair     bool   `json:"pair,omitempty"`
	// Info is what [Options.Pack] has made of the request's context.
	Info []byte `json:"info,omitempty"`
}

// Headers between nodes. No client gets one of ours to see, or has one of its own
// heard.
const (
	ownHeaders  = "Holdfast-"
	headerVisit = "Holdfast-Visit" // a visit, in a request
	headerMoved = "Holdfast-Moved" // that the request is for another node, and maybe the name of the session that it is about, in a response
	headerAt    = "Holdfast-At"    // the event id of the place that a stream begins after, in a response
	headerTaken = "Holdfast-Taken" // that a newer connection reads the stream, in the trailer of one that ends
)

type visitKey struct{}

// visit returns what another node has told of a request, or nil for a client's.
func (h *Handler) visit(r *http.Request) *visit {
	if h.peers == nil {
		return nil // and nothing is looked for
	}
	v, _ := r.Context().Value(visitKey{}).(*visit)
	return v
}

// principal returns who makes a request, and for which server: see [session.PrincipalAt].
func (h *Handler) principal(r *http.Request) string {
	if v := h.visit(r); v != nil {
		return string(v.Principal)
	}
	server, _ := r.Context().Value(serverKey{}).(string)
	return session.PrincipalAt(server, h.asker(r))
}

// asker returns who makes a request to this node, whichever server it is for.
func (h *Handler) asker(r *http.Request) string {
	defer panics.Raise(h.logger, "Options.Principal") // it must never be taken for nobody in particular
	return h.opts.Principal(r)
}

type serverKey struct{}

// WithServer returns a context for a request to the server of a name, where the handler has
// many: a session that is begun with it belongs to that server, and can be used with such
// requests only. The name must not contain a NUL.
func WithServer(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, serverKey{}, name)
}

// NameOf returns the name that [WithServer] was given, or "".
func NameOf(ctx context.Context) string {
	name, _ := ctx.Value(serverKey{}).(string)
	return name
}

// pack returns what another node is told of a request's context.
func (h *Handler) pack(ctx context.Context) []byte {
	if h.opts.Pack == nil {
		return nil
	}
	defer panics.Raise(h.logger, "Options.Pack")
	return h.opts.Pack(ctx)
}

// unpack puts it into the request's context.
func (h *Handler) unpack(r *http.Request, info []byte) *http.Request {
	if h.opts.Unpack == nil || len(info) == 0 {
		return r
	}
	defer panics.Raise(h.logger, "Options.Unpack")
	return h.opts.Unpack(r, info)
}

// caught answers a request for which code of the user panicked before there was an
// answer. Any other panic is net/http's business.
func (h *Handler) caught(w http.ResponseWriter) {
	switch p := recover().(type) {
	case nil:
	case *panics.Error:
		h.fail(w, p)
	default:
		panic(p)
	}
}

// tenant names whom the use that a request makes is counted against. A request that
// another node sent on has its client's address; of one that a connection makes for
// its client in a session, the session knows ([session.Session.Tenant]).
func (h *Handler) tenant(r *http.Request) string {
	return session.TenantOf(h.principal(r), r.RemoteAddr)
}

// encode returns the visit as a header's value.
func (v *visit) encode() string {
	text, _ := json.Marshal(v)
	return base64.RawStdEncoding.EncodeToString(text)
}

// receive serves what other nodes send on. Origin and Host were checked where the
// client is connected, and so was the time that the body took.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request) {
	defer h.caught(w)
	if h.pageAsked(w, r) {
		return
	}
	var v visit
	text, err := base64.RawStdEncoding.DecodeString(r.Header.Get(headerVisit))
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		h.reject(w, http.StatusBadRequest, errf(codeInvalid, "no request of a node: %v", err))
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, ownHeaders) {
			delete(r.Header, name)
		}
	}
	r.RemoteAddr = v.From
	r = h.unpack(r, v.Info)
	r = r.WithContext(context.WithValue(r.Context(), visitKey{}, &v))
	if v.Pair {
		h.pair(w, r, v.Messages)
	} else {
		h.endpoint(w, r)
	}
}
