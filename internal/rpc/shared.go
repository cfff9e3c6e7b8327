package rpc

// What follows is about the sink of a conversation: what it says of it beside its messages.

// IsShared reports whether several callers share the conversation of a sink: no client has one of its own. A sink that is
// between the server and the one that knows says what the next one says.
func IsShared(sink any) bool {
	s, ok := sink.(interface{ Shared() bool })
	return ok && s.Shared()
}

// TakePlace takes one of the places that there are for processes, for another opening of the server of a sink's
// conversation, if that costs one. It waits for none. free gives it back. A sink that is between asks the next one.
func TakePlace(sink any) (free func(), ok bool) {
	s, is := sink.(interface {
		TakePlace() (free func(), ok bool)
	})
	if !is {
		return func() {}, true
	}
	return s.TakePlace()
}
