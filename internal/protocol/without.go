package protocol

import (
	"slices"

	"holdfast/jsonrpc"
)

// Without returns an object without some of its members. nil is an object without members; another value is returned unchanged.
func Without(object []byte, names ...string) []byte {
	rest := append(make([]byte, 0, len(object)), '{')
	if !jsonrpc.Each(object, func(name, value []byte) {
		if !slices.Contains(names, string(name)) {
			rest = AppendMember(rest, string(name), value)
		}
	}) && object != nil {
		return object
	}
	return append(rest, '}')
}

// AppendMember appends a member to an object without its closing brace.
func AppendMember(dst []byte, name string, value []byte) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return append(append(append(dst, jsonrpc.Quote(name)...), ':'), value...)
}
