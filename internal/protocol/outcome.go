package protocol

import "strings"

// CodeOutcomeUnknown is the code of an error which says that nobody knows whether the
// server did what it was asked. It is Holdfast's own: revision 2026-07-28 leaves -32000
// to -32019 to implementations.
const CodeOutcomeUnknown = -32010

// TextOutcomeUnknown begins the message of such an error.
const TextOutcomeUnknown = "outcome unknown"

// OutcomeUnknown says whether an error, of this code and message, is such a one.
// Earlier builds had no code for it, and are known by what they say.
func OutcomeUnknown(code int, message string) bool {
	return code == CodeOutcomeUnknown || strings.HasPrefix(message, TextOutcomeUnknown)
}

// What the message of an error begins with that our client answers a request with which no
// server answered.
const (
	TextOutOfReach = "the server has been out of reach for "
	TextSilent     = "the server did not begin to answer within "
)

// OutOfReach says whether an error with this message is such a one: no server answered for as
// long as the request was tried, and another one would be tried for as long again.
func OutOfReach(message string) bool {
	return strings.HasPrefix(message, TextOutOfReach) || strings.HasPrefix(message, TextSilent)
}
