package rpc

// This file asks the sink of a conversation about the conversation itself.

// IsShared reports whether several callers share the conversation of a sink, so that no client has its own. A sink that
// wraps another sink passes the question on.
func IsShared(sink any) bool {
	s, ok := sink.(interface{ Shared() bool })
	return ok && s.Shared()
}

// TakePlace takes a place for a process, for another opening of the server of a sink's conversation, if that costs a
// process. It does not wait: ok is false if there is no place. free gives the place back. A sink that wraps another sink
// passes the question on.
func TakePlace(sink any) (free func(), ok bool) {
	s, is := sink.(interface {
		TakePlace() (free func(), ok bool)
	})
	if !is {
		return func() {}, true
	}
	return s.TakePlace()
}
