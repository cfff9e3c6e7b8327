// Package modern has the parts of a request of revision 2026-07-28, independent of the transport: its _meta, its headers, and
// its input for a backend's requests.
package modern

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Request has the properties of a request of revision 2026-07-28.
type Request struct {
	ID           []byte // the client's, as raw JSON; nil: none
	Version      string
	Client       string // clientInfo and clientCapabilities, as raw JSON
	Capabilities []byte
	Name         string // of the tool, resource, prompt or task that the request is about, or ""
	Alone        bool   // legacy clients are refused here
	Returns      bool   // the request has a requestState or inputResponses

	Sum     string // see [SumOf]; "": not known
	Resumes bool   // the client can come back for the call
	Follows bool   // the request is this node's own, from [Again]

	Method    string
	Principal caller.Principal // the client's
	HTTP      *http.Request    // that carries it
}

// Values returns the request's context without its end, for work that outlives the request.
func (q *Request) Values() context.Context { return context.WithoutCancel(q.HTTP.Context()) }

// MetaVersion returns the revision that a message names in its _meta, as raw JSON, or nil.
func MetaVersion(m *jsonrpc.Message) []byte {
	return jsonrpc.Field(m.Params, "_meta", protocol.MetaProtocolVersion)
}

// IsHeader reports whether a request without a body is of a modern client, by its header.
func IsHeader(r *http.Request) bool {
	v := r.Header[protocol.HeaderVersion]
	return len(v) > 0 && v[0] == protocol.V20260728
}

// Read sets Version, Client, Capabilities, Name and Returns from a request, and checks its
// _meta and the headers that repeat its body (2026-07-28, Overview, "_meta"; Streamable
// HTTP, "Server Validation"). A status other than 0 refuses the request.
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
			if info = value; string(info) == "null" { // as some libraries write it for none
				info = nil
			}
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

// mirrors checks the headers that repeat the method and the name of a request.
func mirrors(header http.Header, method, name string) *jsonrpc.Error {
	if err := mirror(header, protocol.HeaderMethod, method, verbatim); err != nil {
		return err
	}
	if name == "" && (!protocol.HasName(method) || header[protocol.HeaderName] == nil) {
		return nil // if a name is required, the server refuses the request
	}
	return mirror(header, protocol.HeaderName, name, protocol.DecodeHeader)
}

// mirror checks a header that repeats a value. read decodes the header.
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

// verbatim decodes a header that is never encoded.
func verbatim(value string) (string, bool) { return value, true }

// noMethod returns the error for a method that this revision has removed.
func noMethod(version, method string) *jsonrpc.Error {
	return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "protocol revision %s has no method %s", version, method)
}

// Removed reports whether revision 2026-07-28 has removed a method of older ones.
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

// Missing returns the error for a request of a client that does not declare an extension.
func Missing(extension string) *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeMissingCapability, "missing required client capability: the extension %s", extension)
	e.Data = []byte(`{"requiredCapabilities":{"extensions":{"` + extension + `":{}}}}`)
	return e
}

// unsupported returns the error for q.Version, a revision that is not served.
func (q *Request) unsupported() *jsonrpc.Error {
	supported := []string{protocol.V20260728}
	if !q.Alone {
		supported = append(supported, protocol.Supported()...)
	}
	return Unsupported(q.Version, supported)
}

// Unsupported returns the error for a revision that is not served, with the supported ones.
func Unsupported(version string, supported []string) *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeUnsupportedVersion, "unsupported protocol version %.40q", version)
	e.Data, _ = json.Marshal(map[string]any{"supported": supported, "requested": fmt.Sprintf("%.40s", version)})
	return e
}
