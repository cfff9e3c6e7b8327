package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows decodes requests of revision 2026-07-28 (Streamable HTTP), on the endpoint of
// the older ones: docs/decisions/0024-two-eras.md. What becomes of them is in
// modernanswer.go.

// A modern is what a request of revision 2026-07-28 says of itself.
type modern struct {
	id           []byte // the client's, as raw JSON; nil where there is none
	version      string
	client       string // clientInfo and clientCapabilities, as raw JSON
	capabilities []byte
	sum          string // of what it asks for; see sumOf. "": that is not known
	name         string // of what it is about, as its header repeats it, or ""
	task         taskID // that it is about, if that is Holdfast's
	tasks        bool   // calls become tasks here, if their clients know tasks
	alone        bool   // legacy clients are refused here
	resumes      bool   // its client can come back for it, see modernresume.go
	follows      bool   // it is Holdfast's own, see taskfollow.go
	returns      bool   // it brings a requestState, or answers
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
	return m.Method == protocol.MethodDiscover || bytes.Contains(m.Params, []byte(protocol.MetaProtocolVersion)) && metaVersion(m) != nil
}

// metaVersion returns the revision that a message names in its _meta, as raw JSON, or nil.
func metaVersion(m *jsonrpc.Message) []byte {
	return jsonrpc.Field(m.Params, "_meta", protocol.MetaProtocolVersion)
}

// isModernHeader reports whether the headers alone say that a request without a body is of
// a modern client.
func isModernHeader(r *http.Request) bool {
	v := r.Header[protocol.HeaderVersion]
	return len(v) > 0 && v[0] == protocol.V20260728
}

// decodeModern decodes a POST of revision 2026-07-28. If it is false the request was
// answered.
func (h *Handler) decodeModern(w http.ResponseWriter, x *exchange) bool {
	x.purpose, x.secret, x.last = forModern, "", ""
	x.modern = &modern{tasks: h.hasTasks(), alone: h.opts.Eras.refusesLegacy()}
	if e := h.refusesModern(x); e != nil {
		if x.msgs[0].Kind == jsonrpc.Request {
			x.modern.id = x.msgs[0].ID
		}
		h.sessions.RefusedModern(&x.msgs[0])
		h.answers.rejectModern(w, x, http.StatusBadRequest, e)
		return false
	}
	if x.batch {
		h.answers.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid, "protocol revision %s has no batches: send one message", protocol.V20260728))
		return false
	}
	m := &x.msgs[0]
	switch m.Kind {
	case jsonrpc.Notification: // closing the stream of a request is what cancels it, as a rule
		if (session.Cancels(m) || session.CancelsKeyed(m, x.r.Header)) && !h.opts.Stateless {
			return true
		}
		w.WriteHeader(http.StatusAccepted)
		return false
	case jsonrpc.Response:
		h.answers.rejectModern(w, x, http.StatusBadRequest, errf(codeInvalid,
			"protocol revision %s has no responses of clients: make the request again with inputResponses", protocol.V20260728))
		return false
	}
	x.modern.id = m.ID
	if handle := handleOf(m); handle != "" {
		x.ref = handle
	}
	status, err := x.modern.read(x.r.Header, m)
	if err != nil {
		h.answers.rejectModern(w, x, status, err)
		return false
	}
	if x.form == onlyJSON && (m.Method == protocol.MethodSubscriptions || m.Method == protocol.MethodResume) {
		h.answers.rejectModern(w, x, http.StatusNotAcceptable, errf(codeInvalid, "Accept must list text/event-stream: the answer to %s is a stream", m.Method))
		return false
	}
	x.modern.resumes = x.form != onlyJSON && bytes.Contains(x.modern.capabilities, []byte(protocol.ExtensionResume)) && h.resumes(x)
	if isTaskMethod(m.Method) {
		if id, ours := parseTaskID(x.modern.name); ours {
			x.modern.task, x.ref = id, id.text // which names the session
		}
	}
	return true
}

// read checks what a request says of its client, and the headers that repeat what its body
// says (2026-07-28, Overview, "_meta"; Streamable HTTP, "Server Validation").
func (q *modern) read(header http.Header, m *jsonrpc.Message) (status int, _ *jsonrpc.Error) {
	var meta, about, raw, info, state []byte
	field := protocol.NameField(m.Method)
	jsonrpc.Each(m.Params, func(name, value []byte) {
		switch {
		case string(name) == "_meta":
			meta = value
		case string(name) == "requestState":
			state, q.returns = value, true
		case string(name) == "inputResponses":
			q.returns = true
		case field != "" && string(name) == field:
			about = value
		}
	})
	jsonrpc.Each(meta, func(name, value []byte) {
		switch string(name) {
		case protocol.MetaProtocolVersion:
			raw = value
		case protocol.MetaClientCapabilities:
			q.capabilities = value
		case protocol.MetaClientInfo:
			info = value
		}
	})
	if q.version = protocol.V20260728; string(raw) != `"`+protocol.V20260728+`"` {
		q.version = jsonrpc.String(raw)
	}
	named := header[protocol.HeaderVersion]
	switch {
	case raw == nil || q.version == "":
		return http.StatusBadRequest, errf(jsonrpc.CodeInvalidParams, "params._meta must have %q", protocol.MetaProtocolVersion)
	case len(named) != 1:
		return http.StatusBadRequest, errf(protocol.CodeHeaderMismatch, "the header MCP-Protocol-Version is missing")
	case named[0] != q.version:
		return http.StatusBadRequest, errf(protocol.CodeHeaderMismatch,
			"the header MCP-Protocol-Version says %.40q, and params._meta %.40q", named[0], q.version)
	case q.version != protocol.V20260728:
		return http.StatusBadRequest, q.unsupported()
	}
	switch {
	case len(q.capabilities) == 0 || q.capabilities[0] != '{':
		return http.StatusBadRequest, errf(jsonrpc.CodeInvalidParams, "params._meta must have %q, an object", protocol.MetaClientCapabilities)
	case info != nil && info[0] != '{':
		return http.StatusBadRequest, errf(jsonrpc.CodeInvalidParams, "%q in params._meta must be an object", protocol.MetaClientInfo)
	}
	if len(info)+len(q.capabilities) > session.MaxInitialize {
		return http.StatusRequestEntityTooLarge, session.ErrClient
	}
	if state != nil && state[0] != '"' && string(state) != "null" {
		return http.StatusBadRequest, errf(jsonrpc.CodeInvalidParams, "requestState must be a string, as the server gave it; make the request again without it")
	}
	q.client = string(info) + "," + string(q.capabilities)
	q.name = jsonrpc.String(about)
	if err := mirrors(header, m.Method, q.name); err != nil {
		return http.StatusBadRequest, err
	}
	if removed(m.Method) {
		return http.StatusNotFound, noMethod(q.version, m.Method)
	}
	return 0, nil
}

// mirrors checks the headers that repeat the method of a request and what it is about.
func mirrors(header http.Header, method, name string) *jsonrpc.Error {
	if err := mirror(header, protocol.HeaderMethod, method, verbatim); err != nil {
		return err
	}
	if name == "" && (!protocol.HasName(method) || header[protocol.HeaderName] == nil) {
		return nil // if there is to be one, the server says what is missing
	}
	return mirror(header, protocol.HeaderName, name, protocol.DecodeHeader)
}

// mirror checks a header that repeats a value. read returns what the header says.
func mirror(header http.Header, name, value string, read func(string) (string, bool)) *jsonrpc.Error {
	got := header[name]
	if len(got) != 1 {
		return errf(protocol.CodeHeaderMismatch, "the header %s is missing: it must be %.100q, as in the body", name, value)
	}
	if said, ok := read(got[0]); !ok || said != value {
		return errf(protocol.CodeHeaderMismatch, "the header %s says %.100q, and the body %.100q", name, got[0], value)
	}
	return nil
}

// verbatim reads a header that is never coded.
func verbatim(value string) (string, bool) { return value, true }

// noMethod is the error of a request of a method that older revisions have and this one has not.
func noMethod(version, method string) *jsonrpc.Error {
	return errf(jsonrpc.CodeMethodNotFound, "protocol revision %s has no method %s", version, method)
}

// removed reports whether older revisions have a method and 2026-07-28 has not.
func removed(method string) bool {
	switch method {
	case protocol.MethodInitialize, protocol.MethodPing, protocol.MethodSetLevel, protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		return true
	}
	return false
}

// declares reports whether the client has a capability, by the path of its name.
func (q *modern) declares(path ...string) bool {
	raw := jsonrpc.Field(q.capabilities, path...)
	return len(raw) > 0 && raw[0] == '{'
}

// sum returns what makes two requests the same, whatever their ids and their _meta: the
// method and its params. A retry with the client's input is the same request.
func sumOf(m *jsonrpc.Message) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", m.Method)
	type member struct{ name, value []byte }
	var all []member
	jsonrpc.Each(m.Params, func(name, value []byte) {
		switch string(name) {
		case "_meta", "inputResponses", "requestState":
		default:
			all = append(all, member{slices.Clone(name), value})
		}
	})
	slices.SortFunc(all, func(a, b member) int { return slices.Compare(a.name, b.name) })
	for _, p := range all {
		fmt.Fprintf(h, ",%q:%d:%s", p.name, len(p.value), p.value)
	}
	return string(h.Sum(nil))
}

// statusOf returns the HTTP status of a response that is an error of some codes (2026-07-28,
// Streamable HTTP, "Protocol Version Header", "Server Validation"; Overview, "_meta").
func (x *exchange) statusOf(response []byte) int {
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok { // as a rule it is a result
		if rest, ok = bytes.CutPrefix(rest, x.modern.id); ok && bytes.HasPrefix(rest, []byte(`,"result":`)) {
			return http.StatusOK
		}
	}
	switch string(jsonrpc.Field(response, "error", "code")) {
	case "-32601":
		return http.StatusNotFound
	case "-32020", "-32021", "-32022":
		return http.StatusBadRequest
	case "-32602":
		if x.modern.returns { // what it has brought is not good, as with a requestState of ours
			return http.StatusBadRequest
		}
	}
	return http.StatusOK
}

// unsupported is the error for a revision that is not served, of a client that knows
// server/discover.
func (q *modern) unsupported() *jsonrpc.Error {
	supported := []string{protocol.V20260728}
	if !q.alone {
		supported = append(supported, protocol.Supported()...)
	}
	e := unsupported(q.version)
	e.Data, _ = json.Marshal(map[string]any{"supported": supported, "requested": fmt.Sprintf("%.40s", q.version)})
	return e
}
