// Package modernfront serves requests of revision 2026-07-28 on the endpoint of the older ones
// (docs/decisions/0024-two-eras.md), and on connections that carry many exchanges.
package modernfront

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/feature/resume"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/drain"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Front serves requests of revision 2026-07-28, from POSTs and from muxes. Its methods may be called concurrently.
type Front struct {
	Sessions  *session.Manager
	Answers   *answering.Writer
	Responses *streaming.Responses
	Starter   *exchange.Starter
	Life      *drain.Life
	Features  modern.Features // added to the revision
	Eras      Eras            // the eras in which clients are served
	Offers    bool            // server/discover lists the extensions of the endpoint
	Stateless bool
	Streams   bool          // requests are answered with streams, even where JSON would do
	Shares    bool          // there are other nodes
	CutGrace  time.Duration // how long a tool call goes on after a cut, for a repeated request to attach to it; 0 or less: not at all
	Logger    *slog.Logger
	// ServeOwn serves a request of this node's own, on the node of its session.
	ServeOwn func(to *placement.Answer, x *exchange.Exchange)
}

// IsModern reports whether a POST is of revision 2026-07-28 or later: by its header, by its
// _meta, or as no older revision has its method.
func IsModern(x *exchange.Exchange) bool {
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 && v[0] == protocol.V20260728 {
		return true
	}
	if len(x.Msgs) != 1 {
		return false
	}
	m := &x.Msgs[0]
	return m.Method == protocol.MethodDiscover || bytes.Contains(m.Params, []byte(protocol.MetaProtocolVersion)) && modern.MetaVersion(m) != nil
}

// Decode decodes a POST of revision 2026-07-28. If it returns false, the request was answered.
func (fr *Front) Decode(w http.ResponseWriter, x *exchange.Exchange) bool {
	x.Purpose, x.Secret, x.Last = exchange.ForModern, "", ""
	x.Modern = new(modern.Request)
	x.Modern.Alone = fr.Eras.RefusesLegacy()
	if e := fr.refuses(x); e != nil {
		if x.Msgs[0].Kind == jsonrpc.Request {
			x.Modern.ID = x.Msgs[0].ID
		}
		meta := jsonrpc.Field(x.Msgs[0].Params, "_meta")
		fr.Sessions.Kinds.Refused(fr.Logger, time.Now(), jsonrpc.Field(meta, protocol.MetaClientInfo), jsonrpc.String(jsonrpc.Field(meta, protocol.MetaProtocolVersion)))
		fr.reject(w, x, http.StatusBadRequest, e)
		return false
	}
	if x.Batch {
		fr.reject(w, x, http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "protocol revision %s has no batches: send one message", protocol.V20260728))
		return false
	}
	m := &x.Msgs[0]
	switch m.Kind {
	case jsonrpc.Notification: // as a rule a client cancels a request by closing its stream
		if (resume.Cancels(m) || cancelsKeyed(m, x.HTTP.Header)) && !fr.Stateless {
			return true
		}
		w.WriteHeader(http.StatusAccepted)
		return false
	case jsonrpc.Response:
		fr.reject(w, x, http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest,
			"protocol revision %s has no responses of clients: make the request again with inputResponses", protocol.V20260728))
		return false
	}
	x.Modern.ID, x.Modern.Method, x.Modern.Principal, x.Modern.HTTP = m.ID, m.Method, x.Principal, x.HTTP
	x.Ref = cmp.Or(fr.Sessions.Ref(m.Method, m.Params), x.Ref)
	status, err := x.Modern.Read(x.HTTP.Header, m)
	if err != nil {
		fr.reject(w, x, status, err)
		return false
	}
	if x.Form == answering.OnlyJSON && (m.Method == protocol.MethodSubscriptions || m.Method == protocol.MethodResume) {
		fr.reject(w, x, http.StatusNotAcceptable, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "Accept must list text/event-stream: the answer to %s is a stream", m.Method))
		return false
	}
	x.Modern.Resumes = x.Form != answering.OnlyJSON && bytes.Contains(x.Modern.Capabilities, []byte(protocol.ExtensionResume)) && fr.resumes(x)
	for _, f := range fr.Features {
		if ref := f.Ref(x.Modern); ref != "" {
			x.Ref = ref
		}
	}
	return true
}

// cancelsKeyed reports whether a message is a notifications/cancelled with an idempotency key.
func cancelsKeyed(msg *jsonrpc.Message, header http.Header) bool {
	return msg.Kind == jsonrpc.Notification && msg.Method == protocol.MethodCancelled &&
		(header[protocol.HeaderIdempotencyKey] != nil || jsonrpc.Field(msg.Params, "_meta", protocol.MetaIdempotencyKey) != nil)
}

// findCarrier finds the carrier of a modern request, and keeps it until [session.Session.Release]. A request to a tool of
// Holdfast's about another call goes to that call's carrier, so that its client can be asked the backend's questions. The error
// is that of [session.Manager.Carrier], or a [*session.Redirect].
func (fr *Front) findCarrier(x *exchange.Exchange) (err error) {
	if ref := fr.Sessions.Ref(x.Msgs[0].Method, x.Msgs[0].Params); ref != "" {
		s, err := fr.Sessions.FindCarrier(ref, x.Modern.Version, x.Principal)
		var away *session.Redirect
		switch {
		case errors.As(err, &away) && fr.Shares:
			return err
		case s != nil:
			x.Session = s
			return nil
		}
	}
	client := fr.Sessions.ClientOf(x.HTTP, x.Principal, x.Credential())
	var admit func() error
	if fr.Sessions.Gate.Bounds() && (x.Once.Key == "" || !fr.Sessions.BegunOnce(&client, x.Once.Key)) {
		admit = func() error { return fr.Starter.AdmitAlone(x) } // before a server is started for the request
	}
	x.Session, err = fr.Sessions.Carrier(x.HTTP, &client, x.Modern.Version, x.Modern.Client, admit)
	return err
}

// moved returns an error if a modern request at its server's old path begins a call. A request for a call that has begun is served.
func (fr *Front) moved(x *exchange.Exchange) error {
	err, m := exchange.Moved(x.HTTP.Context()), &x.Msgs[0]
	switch {
	case err == nil:
	case x.Modern.Returns, slices.ContainsFunc(fr.Features, func(f modern.Feature) bool { return f.Continues(m) }), m.Method == protocol.MethodResume:
		return nil
	case x.Once.Key != "" && fr.Sessions.BegunOnce(x.Client(fr.Sessions), x.Once.Key):
		return nil
	}
	return err
}
