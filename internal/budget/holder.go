package budget

// A Holder counts what is kept for a client beside its messages. The sinks that Holdfast gives to its own backends
// are Holders, for their conversations: what is left is given back when the conversation ends.
type Holder interface {
	// Hold counts n bytes more, or fewer if n is negative, which always succeeds. The error says that there is no
	// room, and names the flag.
	Hold(n int64) error
}

// Hold counts n bytes more, or fewer, by a sink. One that is no Holder counts nothing.
func Hold(sink any, n int64) error {
	if h, ok := sink.(Holder); ok && n != 0 {
		return h.Hold(n)
	}
	return nil
}
