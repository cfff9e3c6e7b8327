package protocol

import "fmt"

// Unauthorized is the error of a server behind Holdfast that refuses a client with status 401 or 403
// (2025-11-25, Authorization). If it refuses the initialize request, the client gets this status and
// the challenge. It is also the error of requests that Holdfast itself refuses with such a status.
type Unauthorized struct {
	Status    int
	Challenge []string // the values of WWW-Authenticate
	Text      string   // Holdfast's own text; "": the server has refused the client
}

// Error implements error.
func (e *Unauthorized) Error() string {
	if e.Text != "" {
		return e.Text
	}
	if e.Status == 401 {
		return "the upstream server wants authorization (HTTP 401)"
	}
	return fmt.Sprintf("the upstream server refuses the client (HTTP %d)", e.Status)
}
