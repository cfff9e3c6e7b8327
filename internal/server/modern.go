package server

import (
	"bytes"
	"cmp"
	"net/http"
	"time"

	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/jsonrpc"
)

// What follows decodes requests of revision 2026-07-28 (Streamable HTTP), on the endpoint of
// the older ones: docs/decisions/0024-two-eras.md. What becomes of them is in
// modernanswer.go.

// isModern reports whether a POST is of revision 2026-07-28 or later: its header or its _meta
// says so, or nobody else has such a request.
func isModern(x *exchange.Exchange) bool {
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 && v[0] == protocol.V20260728 {
		return true
	}
	if len(x.Msgs) != 1 {
		return false
	}
	m := &x.Msgs[0]
	return m.Method == protocol.MethodDiscover || bytes.Contains(m.Params, []byte(protocol.MetaProtocolVersion)) && modern.MetaVersion(m) != nil
}

// decodeModern decodes a POST of revision 2026-07-28. If it is false the request was
// answered.
func (h *Handler) decodeModern(w http.ResponseWriter, x *exchange.Exchange) bool {
	x.Purpose, x.Secret, x.Last = exchange.ForModern, "", ""
	x.Modern = new(modern.Request)
	x.Modern.Alone = h.opts.Eras.refusesLegacy()
	if e := h.refusesModern(x); e != nil {
		if x.Msgs[0].Kind == jsonrpc.Request {
			x.Modern.ID = x.Msgs[0].ID
		}
		meta := jsonrpc.Field(x.Msgs[0].Params, "_meta")
		h.sessions.Kinds.Refused(h.logger, time.Now(), jsonrpc.Field(meta, protocol.MetaClientInfo), jsonrpc.String(jsonrpc.Field(meta, protocol.MetaProtocolVersion)))
		h.rejectModern(w, x, http.StatusBadRequest, e)
		return false
	}
	if x.Batch {
		h.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid, "protocol revision %s has no batches: send one message", protocol.V20260728))
		return false
	}
	m := &x.Msgs[0]
	switch m.Kind {
	case jsonrpc.Notification: // closing the stream of a request is what cancels it, as a rule
		if (resume.Cancels(m) || CancelsKeyed(m, x.HTTP.Header)) && !h.opts.Stateless {
			return true
		}
		w.WriteHeader(http.StatusAccepted)
		return false
	case jsonrpc.Response:
		h.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid,
			"protocol revision %s has no responses of clients: make the request again with inputResponses", protocol.V20260728))
		return false
	}
	x.Modern.ID, x.Modern.Method, x.Modern.Principal, x.Modern.HTTP = m.ID, m.Method, x.Principal, x.HTTP
	x.Ref = cmp.Or(h.sessions.Ref(m.Method, m.Params), x.Ref)
	status, err := x.Modern.Read(x.HTTP.Header, m)
	if err != nil {
		h.rejectModern(w, x, status, err)
		return false
	}
	if x.Form == answering.OnlyJSON && (m.Method == protocol.MethodSubscriptions || m.Method == protocol.MethodResume) {
		h.rejectModern(w, x, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: the answer to %s is a stream", m.Method))
		return false
	}
	x.Modern.Resumes = x.Form != answering.OnlyJSON && bytes.Contains(x.Modern.Capabilities, []byte(protocol.ExtensionResume)) && h.resumes(x)
	for _, f := range h.features {
		if ref := f.Ref(x.Modern); ref != "" {
			x.Ref = ref
		}
	}
	return true
}

// statusOf returns the HTTP status of a response that is an error of some codes (2026-07-28,
// Streamable HTTP, "Protocol Version Header", "Server Validation"; Overview, "_meta").
func statusOf(x *exchange.Exchange, response []byte) int {
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok { // as a rule it is a result
		if rest, ok = bytes.CutPrefix(rest, x.Modern.ID); ok && bytes.HasPrefix(rest, []byte(`,"result":`)) {
			return http.StatusOK
		}
	}
	switch string(jsonrpc.Field(response, "error", "code")) {
	case "-32601":
		return http.StatusNotFound
	case "-32020", "-32021", "-32022":
		return http.StatusBadRequest
	case "-32602":
		if x.Modern.Returns { // what it has brought is not good, as with a requestState of ours
			return http.StatusBadRequest
		}
	}
	return http.StatusOK
}
