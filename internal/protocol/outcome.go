package protocol

import "strings"

// CodeOutcomeUnknown is the code of the error of a request that the server may have carried out or
// not. It is Holdfast's own: revision 2026-07-28 leaves -32000 to -32019 to implementations.
const CodeOutcomeUnknown = -32010

// TextOutcomeUnknown begins the message of an error with [CodeOutcomeUnknown].
const TextOutcomeUnknown = "outcome unknown"

// OutcomeUnknown reports whether an error with this code and message says that the outcome of a
// request is unknown. Errors of earlier builds have no code for it, and are known by their message.
func OutcomeUnknown(code int, message string) bool {
	return code == CodeOutcomeUnknown || strings.HasPrefix(message, TextOutcomeUnknown)
}

// The beginnings of the messages of errors with which our client answers a request that no server
// answered.
const (
	TextOutOfReach = "the server has been out of reach for "
	TextSilent     = "the server did not begin to answer within "
)

// OutOfReach reports whether an error with this message says that no server answered for as long as
// the request was tried. Another request would be tried for as long again.
func OutOfReach(message string) bool {
	return strings.HasPrefix(message, TextOutOfReach) || strings.HasPrefix(message, TextSilent)
}
