package client

import (
	"errors"
	"fmt"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// CodeOutcomeUnknown is the code of the error response to a request that may have run, with
// a result that can't be known. If the request is sent again, it may run twice.
const CodeOutcomeUnknown = protocol.CodeOutcomeUnknown

// An unknownOutcome is the error of a call that failed though its request may have run.
type unknownOutcome struct{ cause error }

// Error implements error.
func (e *unknownOutcome) Error() string {
	return protocol.TextOutcomeUnknown + ": " + e.cause.Error()
}

// Unwrap returns the cause.
func (e *unknownOutcome) Unwrap() error { return e.cause }

// errForgotten ends a call that the server does not know any more.
var errForgotten = errors.New("the server does not know the call any more")

// A finalError is an error after which no other attempt is made.
type finalError struct{ error }

// Unwrap returns the error.
func (e finalError) Unwrap() error { return e.error }

// final returns a finalError.
func final(format string, args ...any) error {
	return finalError{fmt.Errorf(format, args...)}
}

// isFinal reports whether no other attempt is made after err.
func isFinal(err error) bool {
	var f finalError
	return errors.As(err, &f)
}

// unusable returns a finalError for an unusable answer, which the server would send again.
func unusable(format string, args ...any) error {
	return final("the server sends what cannot be used: "+format, args...)
}

// unknownIf returns err as an unknownOutcome where the request may have run.
func unknownIf(mayHaveRun bool, err error) error {
	if mayHaveRun {
		return &unknownOutcome{cause: err}
	}
	return err
}

// failure returns the error response that the call ends with. The error of a modern server
// is returned as it is: its HTTP status says nothing more.
func (k *call) failure(err error) *jsonrpc.Error {
	var no *refusal
	var unknown *unknownOutcome
	if k.isModern() && errors.As(err, &no) && no.rpc != nil && no.certain() && !errors.As(err, &unknown) {
		return no.rpc
	}
	return failure(err, k.safe())
}

// failure returns the error response that stands for err: with the server's own code and
// data where err is its refusal. The outcome of a retry-safe request is never unknown:
// its sender may send it again.
func failure(err error, retrySafe bool) *jsonrpc.Error {
	unknown, mayHaveRun := errors.AsType[*unknownOutcome](err)
	if mayHaveRun {
		err = unknown.cause
	}
	e := jsonrpc.Errorf(jsonrpc.CodeServer, "%v", err)
	if panicked(err) {
		e.Code = jsonrpc.CodeInternal
	}
	if no, ok := errors.AsType[*refusal](err); ok && no.rpc != nil {
		e.Code, e.Data = no.rpc.Code, no.rpc.Data
	}
	if mayHaveRun && !retrySafe && !protocol.OutcomeUnknown(e.Code, e.Message) {
		e.Code, e.Message = protocol.CodeOutcomeUnknown, (&unknownOutcome{cause: e}).Error()
	}
	return e
}
