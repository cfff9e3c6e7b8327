package client

import (
	"errors"
	"testing"

	"holdfast/internal/panics"
	"holdfast/jsonrpc"
)

// The error response of a failed call has the server's own message and code, and says
// whether the call may have run.
func TestFailure(t *testing.T) {
	t.Parallel()
	away := errors.New("out of reach")
	own := &refusal{status: 400, rpc: &jsonrpc.Error{Code: -7, Message: "no", Data: []byte(`1`)}}
	earlier := &refusal{status: 502, rpc: &jsonrpc.Error{Code: -32000, Message: "outcome unknown: of an earlier build"}}
	for _, test := range []struct {
		err       error
		retrySafe bool
		code      int
		message   string
	}{
		{away, false, jsonrpc.CodeServer, "out of reach"},
		{&unknownOutcome{away}, false, CodeOutcomeUnknown, "outcome unknown: out of reach"},
		{&unknownOutcome{away}, true, jsonrpc.CodeServer, "out of reach"},
		{own, false, -7, "no (HTTP 400)"},
		{&unknownOutcome{own}, false, CodeOutcomeUnknown, "outcome unknown: no (HTTP 400)"},
		{&unknownOutcome{earlier}, false, -32000, "outcome unknown: of an earlier build (HTTP 502)"},
		{&panics.Error{}, false, jsonrpc.CodeInternal, (&panics.Error{}).Error()},
	} {
		e := failure(test.err, test.retrySafe)
		if e.Code != test.code || e.Message != test.message {
			t.Errorf("%v: got %d %q, want %d %q", test.err, e.Code, e.Message, test.code, test.message)
		}
	}
	if !errors.Is(&unknownOutcome{away}, away) {
		t.Error("the cause is lost")
	}
}
