// Package modern is what a request of revision 2026-07-28 says of itself, without the way in which it came: what its _meta and
// its headers say, and the input that it brings for what a backend has asked.
package modern

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"holdfast/internal/caller"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Request is what a request of revision 2026-07-28 says of itself.
type Request struct {
	ID           []byte // the client's, as raw JSON; nil where there is none
	Version      string
	Client       string // clientInfo and clientCapabilities, as raw JSON
	Capabilities []byte
	Name         string // of what it is about, as its header repeats it, or ""
	Alone        bool   // legacy clients are refused here
	Returns      bool   // it brings a requestState, or answers

	Sum     string // of what it asks for; see [SumOf]. "": that is not known
	Resumes bool   // its client can come back for it
	Follows bool   // it is Holdfast's own, as [Again] makes it

	Method    string
	Principal caller.Principal // who makes it
	HTTP      *http.Request    // with which it came
}

// Values returns the values of the request's context for what outlives the request.
func (q *Request) Values() context.Context { return context.WithoutCancel(q.HTTP.Context()) }

// MetaVersion returns the revision that a message names in its _meta, as raw JSON, or nil.
func MetaVersion(m *jsonrpc.Message) []byte {
	return jsonrpc.Field(m.Params, "_meta", protocol.MetaProtocolVersion)
}

// IsHeader reports whether the headers alone say that a request without a body is of
// a modern client.
func IsHeader(r *http.Request) bool {
	v := r.Header[protocol.HeaderVersion]
	return len(v) > 0 && v[0] == protocol.V20260728
}

// Read checks what a request says of its client, and the headers that repeat what its body
// says (2026-07-28, Overview, "_meta"; Streamable HTTP, "Server Validation").
func (q *Request) Read(header http.Header, m *jsonrpc.Message) (status int, _ *jsonrpc.Error) {
	var meta, about, raw, info, state []byte
	field := protocol.NameField(m.Method)
	jsonrpc.Each(m.Params, func(name, value []byte) {
		switch {
		case string(name) == "_meta":
			meta = value
		case string(name) == "requestState":
			state, q.Returns = value, true
		case string(name) == "inputResponses":
			q.Returns = true
		case field != "" && string(name) == field:
			about = value
		}
	})
	jsonrpc.Each(meta, func(name, value []byte) {
		switch string(name) {
		case protocol.MetaProtocolVersion:
			raw = value
		case protocol.MetaClientCapabilities:
			q.Capabilities = value
		case protocol.MetaClientInfo:
			info = value
		}
	})
	if q.Version = protocol.V20260728; string(raw) != `"`+protocol.V20260728+`"` {
		q.Version = jsonrpc.String(raw)
	}
	named := header[protocol.HeaderVersion]
	switch {
	case raw == nil || q.Version == "":
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "params._meta must have %q", protocol.MetaProtocolVersion)
	case len(named) != 1:
		return http.StatusBadRequest, jsonrpc.Errorf(protocol.CodeHeaderMismatch, "the header MCP-Protocol-Version is missing")
	case named[0] != q.Version:
		return http.StatusBadRequest, jsonrpc.Errorf(protocol.CodeHeaderMismatch,
			"the header MCP-Protocol-Version says %.40q, and params._meta %.40q", named[0], q.Version)
	case q.Version != protocol.V20260728:
		return http.StatusBadRequest, q.unsupported()
	}
	switch {
	case len(q.Capabilities) == 0 || q.Capabilities[0] != '{':
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "params._meta must have %q, an object", protocol.MetaClientCapabilities)
	case info != nil && info[0] != '{':
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%q in params._meta must be an object", protocol.MetaClientInfo)
	}
	if len(info)+len(q.Capabilities) > session.MaxInitialize {
		return http.StatusRequestEntityTooLarge, session.ErrClient
	}
	if state != nil && state[0] != '"' && string(state) != "null" {
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "requestState must be a string, as the server gave it; make the request again without it")
	}
	q.Client = string(info) + "," + string(q.Capabilities)
	q.Name = jsonrpc.String(about)
	if err := mirrors(header, m.Method, q.Name); err != nil {
		return http.StatusBadRequest, err
	}
	if Removed(m.Method) {
		return http.StatusNotFound, noMethod(q.Version, m.Method)
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
		return jsonrpc.Errorf(protocol.CodeHeaderMismatch, "the header %s is missing: it must be %.100q, as in the body", name, value)
	}
	if said, ok := read(got[0]); !ok || said != value {
		return jsonrpc.Errorf(protocol.CodeHeaderMismatch, "the header %s says %.100q, and the body %.100q", name, got[0], value)
	}
	return nil
}

// verbatim reads a header that is never coded.
func verbatim(value string) (string, bool) { return value, true }

// noMethod is the error of a request of a method that older revisions have and this one has not.
func noMethod(version, method string) *jsonrpc.Error {
	return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "protocol revision %s has no method %s", version, method)
}

// Removed reports whether older revisions have a method and 2026-07-28 has not.
func Removed(method string) bool {
	switch method {
	case protocol.MethodInitialize, protocol.MethodPing, protocol.MethodSetLevel, protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		return true
	}
	return false
}

// Declares reports whether the client has a capability, by the path of its name.
func (q *Request) Declares(path ...string) bool {
	raw := jsonrpc.Field(q.Capabilities, path...)
	return len(raw) > 0 && raw[0] == '{'
}

// Offer adds an extension to the result of server/discover.
func Offer(response []byte, extension string) []byte {
	if jsonrpc.Field(response, "result") == nil {
		return response
	}
	response, _ = jsonrpc.Set(response, []byte(`{}`), "result", "capabilities", "extensions", extension)
	return response
}

// Missing refuses a request of a client that does not declare an extension.
func Missing(extension string) *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeMissingCapability, "missing required client capability: the extension %s", extension)
	e.Data = []byte(`{"requiredCapabilities":{"extensions":{"` + extension + `":{}}}}`)
	return e
}

// SumOf returns what makes two requests the same, whatever their ids and their _meta: the
// method and its params. A retry with the client's input is the same request.
func SumOf(m *jsonrpc.Message) string {
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

// unsupported is the error for a revision that is not served, of a client that knows
// server/discover.
func (q *Request) unsupported() *jsonrpc.Error {
	supported := []string{protocol.V20260728}
	if !q.Alone {
		supported = append(supported, protocol.Supported()...)
	}
	return Unsupported(q.Version, supported)
}

// Unsupported is the error for a revision that is not served where others are.
func Unsupported(version string, supported []string) *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeUnsupportedVersion, "unsupported protocol version %.40q", version)
	e.Data, _ = json.Marshal(map[string]any{"supported": supported, "requested": fmt.Sprintf("%.40s", version)})
	return e
}
