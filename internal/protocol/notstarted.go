package protocol

import (
	"errors"
	"fmt"
)

// NotStarted is the error of a server that cannot be started. Its text is for clients, which are not told what the
// operator has configured: who returns it has logged the reason.
type NotStarted struct {
	Server string // its name; "": there is one only
	Err    error
}

// Error implements error.
func (e *NotStarted) Error() string {
	return "the server" + named(e.Server) + " cannot be started: tell the operator, whose log says why"
}

// named returns the name of a server as it stands in a text, or "" if it has none.
func named(server string) string {
	if server == "" {
		return ""
	}
	return fmt.Sprintf(" %q", server)
}

// Logged implements what [Logged] asks.
func (*NotStarted) Logged() bool { return true }

// Logged reports whether the log has the reason of an error already: of a server that did not start.
func Logged(err error) bool {
	var known interface{ Logged() bool }
	return errors.As(err, &known) && known.Logged()
}

// Unwrap returns the reason.
func (e *NotStarted) Unwrap() error { return e.Err }
