package budget

// An Account counts what is kept, and what is read from a server, for the client of a conversation.
type Account interface {
	// Hold counts n bytes more that the conversation keeps beside its messages, or fewer if n is negative, which
	// always succeeds. What is left is given back when the conversation ends. The error says that there is no room,
	// and names the flag.
	Hold(n int64) error
	// Arrive begins to count one message after the other that is read from the server. None waits for its turn when
	// done is closed.
	Arrive(done <-chan struct{}) *Arrival
}

// Of returns the account of the sink of a conversation, which is Accounted if it is one of Holdfast's. For others
// nothing is counted.
func Of(sink any) Account {
	if a, ok := sink.(Accounted); ok {
		return a.Account()
	}
	return uncounted{}
}

// Accounted is what has an Account.
type Accounted interface{ Account() Account }

type uncounted struct{}

func (uncounted) Hold(int64) error { return nil }

func (uncounted) Arrive(<-chan struct{}) *Arrival { return nil }
