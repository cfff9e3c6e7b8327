package modernfront

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/jsonrpc"
)

// Eras are the eras in which clients are served, by the words of holdfast.Era; "" stands for ErasBoth. See docs/decisions/0032-eras-by-name.md.
type Eras string

// The choices.
const (
	// ErasBoth serves each client in the era in which it asks.
	ErasBoth Eras = "both"
	// ErasAuto is ErasBoth with one exception: it refuses server/discover to a client with calls that
	// survive a cut in the legacy era only. A client that knows both eras goes on with initialize.
	ErasAuto Eras = "auto"
	// ErasLegacy refuses all modern requests.
	ErasLegacy Eras = "legacy"
	// ErasModern refuses all legacy requests.
	ErasModern Eras = "modern"
)

// refuses returns the error for a modern request that Eras refuses, or nil. x.Modern need not be read yet.
func (fr *Front) refuses(x *exchange.Exchange) *jsonrpc.Error {
	if x.From != nil { // the node that forwarded it has decided
		return nil
	}
	m := &x.Msgs[0]
	switch fr.Eras {
	case ErasLegacy:
		return unserved(requestedBy(x), protocol.Supported(), "begin with initialize, or start the server with --eras both (Options.Eras)")
	case ErasAuto:
		if m.Method != protocol.MethodDiscover || fr.survivesCuts(m) {
			return nil
		}
		return unserved(requestedBy(x), protocol.Supported(), "in it a call ends with its connection, and this client has no tasks: "+
			"begin with initialize, or start the server with --eras both (Options.Eras)")
	}
	return nil
}

// survivesCuts reports whether the calls of a client survive a cut in the modern era as well as in the
// legacy one, by the capabilities that its request declares.
func (fr *Front) survivesCuts(m *jsonrpc.Message) bool {
	if fr.Stateless {
		return true // they survive in no era
	}
	q := modern.Request{Method: protocol.MethodCallTool, Capabilities: jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities)}
	f, _ := fr.Features.First(&q)
	return f != nil || q.Declares("extensions", protocol.ExtensionResume)
}

// requestedBy returns the revision that a modern request asks for.
func requestedBy(x *exchange.Exchange) string {
	if v := jsonrpc.String(modern.MetaVersion(&x.Msgs[0])); v != "" {
		return v
	}
	return protocol.V20260728
}

// unserved returns the error for a revision of an era that is not served to a client. next tells the client what to do.
func unserved(version string, served []string, next string) *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeUnsupportedVersion, "unsupported protocol version %.40q: %s", version, next)
	e.Data, _ = json.Marshal(map[string]any{"supported": served, "requested": fmt.Sprintf("%.40s", version)})
	return e
}

// discovered returns the response to server/discover with the extensions of the endpoint, and without
// the revisions that it refuses.
func (fr *Front) discovered(q *modern.Request, response []byte) []byte {
	response = fr.Features.Own(q, response)
	if fr.Offers {
		response = modern.Offer(response, protocol.ExtensionResume)
	}
	var offered []string
	if !q.Alone || json.Unmarshal(jsonrpc.Field(response, "result", "supportedVersions"), &offered) != nil {
		return response
	}
	offered = slices.DeleteFunc(offered, func(version string) bool { return !protocol.Modern(version) })
	if list, err := json.Marshal(offered); err == nil {
		response, _ = jsonrpc.Set(response, list, "result", "supportedVersions")
	}
	return response
}

// RefusesLegacy reports whether legacy clients are refused.
func (e Eras) RefusesLegacy() bool { return e == ErasModern }

// RejectLegacy answers a POST of a legacy client where those are refused.
func (fr *Front) RejectLegacy(w http.ResponseWriter, x *exchange.Exchange) {
	version := protocol.V20250326
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 {
		version = v[0]
	}
	var id []byte
	if m := &x.Msgs[0]; m.Kind == jsonrpc.Request {
		id = m.ID
		if v := jsonrpc.String(jsonrpc.Field(m.Params, "protocolVersion")); m.Method == protocol.MethodInitialize && v != "" {
			version = v
		}
	}
	e := unserved(version, []string{protocol.V20260728}, "this server has no sessions: begin with server/discover, or start the server with --eras both (Options.Eras)")
	fr.Answers.TellRefused(w, http.StatusBadRequest, e)
	fr.Answers.RejectAs(w, http.StatusBadRequest, answering.Error(id, e))
}
