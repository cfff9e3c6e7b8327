package budget

// An Account counts the bytes that are kept, and read from a server, for the client of a conversation.
type Account interface {
	// Hold counts n bytes more that the conversation keeps beside its messages, or fewer if n is negative, which
	// always succeeds. The rest is given back when the conversation ends. The error says that there is no room, and
	// names the flag.
	Hold(n int64) error
	// Arrive returns an Arrival for messages that are read from the server, one after the other. Once done is
	// closed, Grow does not wait.
	Arrive(done <-chan struct{}) *Arrival
}

// Of returns the account of the sink of a conversation, if that is Accounted, as those of Holdfast are. For other
// sinks nothing is counted.
func Of(sink any) Account {
	if a, ok := sink.(Accounted); ok {
		return a.Account()
	}
	return uncounted{}
}

// Accounted is implemented by sinks with an Account.
type Accounted interface{ Account() Account }

type uncounted struct{}

func (uncounted) Hold(int64) error { return nil }

func (uncounted) Arrive(<-chan struct{}) *Arrival { return nil }
