// Package panics turns a panic of a user's code into an error of the call that it concerns.
// Holdfast calls such code on goroutines of its own, where a panic would end the process, and with
// it all other calls.
//
// It cannot catch panics of goroutines that the user's code starts itself, or errors of the Go
// runtime that are fatal, such as concurrent map writes.
package panics

import (
	"log/slog"
	"net/http"
	"runtime/debug"
)

// An Error stands for a panic of a user's code. Its text does not have the panic's value, which may
// hold secrets and is only logged.
type Error struct {
	What  string // the user's code: "the handler of tools/call"
	Value any    // the value of the panic
}

// Error implements error.
func (e *Error) Error() string { return e.What + " panicked" }

// Is reports whether target is [http.ErrAbortHandler], and the code panicked with it.
func (e *Error) Is(target error) bool {
	return target == http.ErrAbortHandler && e.Value == any(http.ErrAbortHandler)
}

// Catch recovers from a panic of the function that defers it, sets err to an [*Error], and logs it
// with its stack. A panic with an [*Error] was logged where it was caught first; one with
// [http.ErrAbortHandler] is not logged, as in net/http. what and about name the user's code: "the
// handler of", "tools/call".
func Catch(err *error, logger *slog.Logger, what, about string) {
	if p := recover(); p != nil {
		*err = caught(p, logger, what, about)
	}
}

// Raise is for code that has no error to return: the panic goes on, with the [*Error], until the
// handler or the goroutine of the call catches it.
func Raise(logger *slog.Logger, what string) {
	if p := recover(); p != nil {
		panic(caught(p, logger, what, ""))
	}
}

func caught(p any, logger *slog.Logger, what, about string) *Error {
	e, known := p.(*Error)
	if known {
		return e
	}
	e = &Error{What: what, Value: p}
	if about != "" {
		e.What += " " + about
	}
	if !e.Is(http.ErrAbortHandler) {
		logger.Error(e.Error(), "panic", p, "stack", string(debug.Stack()))
	}
	return e
}
