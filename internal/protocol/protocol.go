// Package protocol has the names and rules of the Model Context Protocol: revisions, headers,
// methods, error codes. It is pure.
package protocol

import "slices"

// Revisions, oldest first. They compare as strings.
const (
	V20241105 = "2024-11-05" // HTTP+SSE
	V20250326 = "2025-03-26" // Streamable HTTP, with batches
	V20250618 = "2025-06-18" // no batches, version header
	V20251125 = "2025-11-25" // priming events and polling (SEP-1699)
	V20260728 = "2026-07-28" // no sessions: each request names its client in its _meta
)

// Supported returns the revisions served here, newest first.
func Supported() []string { return []string{V20251125, V20250618, V20250326, V20241105} }

// Modern reports whether a revision has no sessions: 2026-07-28 and later. The others are
// called legacy.
func Modern(revision string) bool { return revision >= V20260728 }

// Known reports whether a revision is served here.
func Known(revision string) bool { return slices.Contains(Supported(), revision) }

// Headers, in the canonical form of net/http.
const (
	HeaderSession     = "Mcp-Session-Id"
	HeaderVersion     = "Mcp-Protocol-Version"
	HeaderLastEventID = "Last-Event-Id"
	// From revision 2026-07-28 on these two repeat members of a request's body (Transports,
	// "Standard Headers").
	HeaderMethod = "Mcp-Method"
	HeaderName   = "Mcp-Name"
	// HeaderParam begins the names of headers that repeat arguments of a tool, as its
	// schema says (x-mcp-header; "Custom Headers from Tool Parameters").
	HeaderParam = "Mcp-Param-"
)

// Parameters of the URLs that clients are given: the stream that the URL continues (SEP-1335), and
// the session of its messages in revision 2024-11-05.
const (
	ParamStream  = "stream"
	ParamSession = "sessionId"
)

// Error codes (2026-07-28, Overview, "Error Codes").
const (
	CodeResourceNotFound   = -32002 // legacy only; modern servers say -32602
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
	// CodeRateLimited is of the next revision: a limit has refused the request, and no call was begun.
	CodeRateLimited = -32023
)

// Batches reports whether a revision has JSON-RPC batches. A missing revision is taken for
// 2025-03-26 (2025-06-18, Transports, "Protocol Version Header").
func Batches(revision string) bool { return revision == "" || revision <= V20250326 }

// Primes reports whether a stream of the revision starts with an event of empty data (SEP-1699).
// Several older clients fail on such an event.
func Primes(revision string) bool { return revision >= V20251125 }
