package protocol

import (
	"fmt"
	"time"
)

// OpensWithin bounds how long a server may take to start and to answer the first request of a conversation:
// initialize, or server/discover. The command that starts a server may have to download it first.
const OpensWithin = 60 * time.Second

// NoAnswer is the error of a server that hangs before it has begun its work. Its text is for clients; the log says
// what to do.
type NoAnswer struct {
	Server string // its name; "": there is only one server
	Method string // the request that it has not answered; "": it has not even started
	Within time.Duration
}

// Error implements error.
func (e *NoAnswer) Error() string {
	return fmt.Sprintf("the server%s has not %s within %v: try again later, or tell the operator, whose log says more", named(e.Server), e.missing(), e.Within)
}

// missing names the step that the server has not taken.
func (e *NoAnswer) missing() string {
	if e.Method == "" {
		return "started"
	}
	return "answered " + e.Method
}

// ForOperator returns the text for the log: the failure, and the remedy.
func (e *NoAnswer) ForOperator() string {
	return fmt.Sprintf("the server has not %s within %v, and is given up: run its command by hand and see what it waits for (of a server over HTTP: see that its URL is right and that it answers there)", e.missing(), e.Within)
}

// NothingBegan reports that the server has begun none of its requests.
func (e *NoAnswer) NothingBegan() bool { return true }
