package translate

import "sync"

// refusals are a server's refusals of initialize. The log has one line for those that say the same, however many
// modern clients come: each opens a conversation in vain.
type refusals struct {
	mu   sync.Mutex
	last string // "": it was initialized, or not asked yet
}

// note notes why the server refused initialize, nil if it did not, and returns the error that ends the conversation.
func (r *refusals) note(why error) error {
	text := ""
	if why != nil {
		text = why.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	again := text == r.last
	r.last = text
	if why != nil && again {
		return &refusedAgain{why}
	}
	return why
}

// refusedAgain is an error that the log has already.
type refusedAgain struct{ error }

// Logged tells [protocol.Logged] that the log has the error already.
func (*refusedAgain) Logged() bool { return true }

// Unwrap returns the error.
func (e *refusedAgain) Unwrap() error { return e.error }
