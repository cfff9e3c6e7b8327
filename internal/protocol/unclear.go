package protocol

import (
	"fmt"
	"strings"

	"holdfast/jsonrpc"
)

// CheckClear returns why a message of a client is not clear, or nil: a server could read in it
// another method, or another name of a tool, than Holdfast does, and so do what rules, limits or the
// audit have not seen. Some JSON decoders take members whose names differ in the case of letters
// for one ([encoding/json]), others the first of equal ones. Of the message's own members
// [jsonrpc.ParseBody] has seen to that. The error is a [jsonrpc.ErrInvalid].
func CheckClear(m *jsonrpc.Message) error {
	if m.Kind == jsonrpc.Notification && isRequest(m.Method) {
		return fmt.Errorf(`%w: %s has no "id"`, jsonrpc.ErrInvalid, m.Method)
	}
	field := NameField(m.Method)
	if field == "" || m.Kind == jsonrpc.Response {
		return nil
	}
	var like string
	names := 0
	jsonrpc.Each(m.Params, func(name, _ []byte) {
		switch {
		case string(name) == field:
			names++
		case strings.EqualFold(string(name), field):
			like = string(name)
		}
	})
	switch {
	case like != "":
		return fmt.Errorf("%w: params have %q: write %q", jsonrpc.ErrInvalid, like, field)
	case names > 1:
		return fmt.Errorf("%w: a member of params stands twice: %q", jsonrpc.ErrInvalid, field)
	}
	return nil
}

// isRequest reports whether the specification has a client's request of a method.
func isRequest(method string) bool {
	return method == MethodCallTool || safe[method] || unrecorded[method]
}
