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
