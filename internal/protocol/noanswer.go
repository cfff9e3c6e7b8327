package protocol

import (
	"fmt"
	"time"
)

// OpensWithin bounds how long a server may take to start and to answer what begins a conversation: initialize, or
// server/discover. Some are fetched by the command that starts them.
const OpensWithin = 60 * time.Second

// NoAnswer is the error of a server that hangs before it has begun. Its text is for clients; the log says what to do.
type NoAnswer struct {
	Server string // its name; "": there is one only
	Method string // what it has not answered; "": it has not even started
	Within time.Duration
}

// Error implements error.
func (e *NoAnswer) Error() string {
	return fmt.Sprintf("the server%s has not %s within %v: try again later, or tell the operator, whose log says more", named(e.Server), e.missing(), e.Within)
}

// missing says what the server has not done, for the log.
func (e *NoAnswer) missing() string {
	if e.Method == "" {
		return "started"
	}
	return "answered " + e.Method
}

// ForOperator says what has happened and what to do about it, for the log.
func (e *NoAnswer) ForOperator() string {
	return fmt.Sprintf("the server has not %s within %v, and is given up: run its command by hand and see what it waits for (of a server over HTTP: see that its URL is right and that it answers there)", e.missing(), e.Within)
}

// NothingBegan reports that the server has begun nothing that it was asked.
func (e *NoAnswer) NothingBegan() bool { return true }
