package protocol

import "fmt"

// NotStarted is the error of a server that cannot be started. Its text is for clients, which are not told what the
// operator has configured: who returns it has logged the reason.
type NotStarted struct {
	Server string // its name; "": there is one only
	Err    error
}

// Error implements error.
func (e *NotStarted) Error() string {
	name := "the server"
	if e.Server != "" {
		name = fmt.Sprintf("the server %q", e.Server)
	}
	return name + " cannot be started: tell the operator, whose log says why"
}

// Unwrap returns the reason.
func (e *NotStarted) Unwrap() error { return e.Err }
