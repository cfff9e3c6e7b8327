package protocol

import (
	"errors"
	"fmt"
)

// NotStarted is the error of a server that cannot be started. Its text is for clients, which must not see the
// operator's configuration: the code that returns it has logged the reason.
type NotStarted struct {
	Server string // its name; "": there is only one server
	Err    error
}

// Error implements error.
func (e *NotStarted) Error() string {
	return "the server" + named(e.Server) + " cannot be started: tell the operator, whose log says why"
}

// named returns the name of a server as error texts have it, or "" if it has none.
func named(server string) string {
	if server == "" {
		return ""
	}
	return fmt.Sprintf(" %q", server)
}

// Logged reports that the log has the reason: see [Logged].
func (*NotStarted) Logged() bool { return true }

// Logged reports whether the log has the reason of an error already, as for a server that did not start.
func Logged(err error) bool {
	var known interface{ Logged() bool }
	return errors.As(err, &known) && known.Logged()
}

// Unwrap returns the reason.
func (e *NotStarted) Unwrap() error { return e.Err }
