package server

import (
	"bytes"
	"cmp"
	"net/http"
	"time"

	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/jsonrpc"
)

// What follows decodes requests of revision 2026-07-28 (Streamable HTTP), on the endpoint of
// the older ones: docs/decisions/0024-two-eras.md. What becomes of them is in
// modernanswer.go.

// A modernRequest is a request of revision 2026-07-28, and what is known of it here.
type modernRequest struct {
	modern.Request
	sum      string // of what it asks for; see [modern.SumOf]. "": that is not known
	features features
	offers   bool // see [Options.Offers]
	resumes  bool // its client can come back for it, see modernresume.go
	follows  bool // it is Holdfast's own, see [Handler.again]
}

// isModern reports whether a POST is of revision 2026-07-28 or later: its header or its _meta
// says so, or nobody else has such a request.
func isModern(x *exchange) bool {
	if v := x.r.Header[protocol.HeaderVersion]; len(v) > 0 && v[0] == protocol.V20260728 {
		return true
	}
	if len(x.msgs) != 1 {
		return false
	}
	m := &x.msgs[0]
	return m.Method == protocol.MethodDiscover || bytes.Contains(m.Params, []byte(protocol.MetaProtocolVersion)) && modern.MetaVersion(m) != nil
}

// decodeModern decodes a POST of revision 2026-07-28. If it is false the request was
// answered.
func (h *Handler) decodeModern(w http.ResponseWriter, x *exchange) bool {
	x.purpose, x.secret, x.last = forModern, "", ""
	x.modern = &modernRequest{features: h.features, offers: h.opts.Offers}
	x.modern.Alone = h.opts.Eras.refusesLegacy()
	if e := h.refusesModern(x); e != nil {
		if x.msgs[0].Kind == jsonrpc.Request {
			x.modern.ID = x.msgs[0].ID
		}
		meta := jsonrpc.Field(x.msgs[0].Params, "_meta")
		h.sessions.Kinds.Refused(h.logger, time.Now(), jsonrpc.Field(meta, protocol.MetaClientInfo), jsonrpc.String(jsonrpc.Field(meta, protocol.MetaProtocolVersion)))
		h.rejectModern(w, x, http.StatusBadRequest, e)
		return false
	}
	if x.batch {
		h.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid, "protocol revision %s has no batches: send one message", protocol.V20260728))
		return false
	}
	m := &x.msgs[0]
	switch m.Kind {
	case jsonrpc.Notification: // closing the stream of a request is what cancels it, as a rule
		if (resume.Cancels(m) || cancelsKeyed(m, x.r.Header)) && !h.opts.Stateless {
			return true
		}
		w.WriteHeader(http.StatusAccepted)
		return false
	case jsonrpc.Response:
		h.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid,
			"protocol revision %s has no responses of clients: make the request again with inputResponses", protocol.V20260728))
		return false
	}
	x.modern.ID, x.modern.Method, x.modern.Principal, x.modern.HTTP = m.ID, m.Method, x.principal, x.r
	x.ref = cmp.Or(h.sessions.Ref(m.Method, m.Params), x.ref)
	status, err := x.modern.Read(x.r.Header, m)
	if err != nil {
		h.rejectModern(w, x, status, err)
		return false
	}
	if x.form == answering.OnlyJSON && (m.Method == protocol.MethodSubscriptions || m.Method == protocol.MethodResume) {
		h.rejectModern(w, x, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: the answer to %s is a stream", m.Method))
		return false
	}
	x.modern.resumes = x.form != answering.OnlyJSON && bytes.Contains(x.modern.Capabilities, []byte(protocol.ExtensionResume)) && h.resumes(x)
	for _, f := range h.features {
		if ref := f.Ref(&x.modern.Request); ref != "" {
			x.ref = ref
		}
	}
	return true
}

// statusOf returns the HTTP status of a response that is an error of some codes (2026-07-28,
// Streamable HTTP, "Protocol Version Header", "Server Validation"; Overview, "_meta").
func (x *exchange) statusOf(response []byte) int {
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok { // as a rule it is a result
		if rest, ok = bytes.CutPrefix(rest, x.modern.ID); ok && bytes.HasPrefix(rest, []byte(`,"result":`)) {
			return http.StatusOK
		}
	}
	switch string(jsonrpc.Field(response, "error", "code")) {
	case "-32601":
		return http.StatusNotFound
	case "-32020", "-32021", "-32022":
		return http.StatusBadRequest
	case "-32602":
		if x.modern.Returns { // what it has brought is not good, as with a requestState of ours
			return http.StatusBadRequest
		}
	}
	return http.StatusOK
}
