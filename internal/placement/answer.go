package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// An Answer is the answer to an exchange that is no HTTP request of a client: a question of our own, one of many exchanges on a
// connection, or the rest of a stream. What is no stream is kept: to write that, it is an [http.ResponseWriter].
type Answer struct {
	head   http.Header
	status int
	body   bytes.Buffer

	Events Sink                // takes the events of a stream; nil: no stream is expected, or it goes onto a response
	Onto   http.ResponseWriter // a response that has begun with a stream, which the answer goes on with; nil: there is none
	HasID  func()              // called when an event with an id goes onto that; nil: nobody is to know
	Last   string              // the id of the event up to which that was written
	Others bool                // events of other streams were written beside
	Ending Ending              // why the stream has ended
	Broken error               // why its client can't be written to
}

// A Sink takes the events of a stream as what they say, and not as their text over HTTP. It is used by one goroutine at a time.
type Sink interface {
	// Open says that the stream begins, with the header that the node gives it which has its session.
	Open(head http.Header)
	// Append appends an event to text, as Write takes it. id is empty if it has none, and data if there is nothing to tell but
	// the id.
	Append(text, id, data []byte) []byte
	// Write takes what was appended; nothing is a sign of life. After an error the client is told no more.
	Write(text []byte) error
}

// SinkOf returns what takes the events of a stream that a response becomes; nil: it takes their text.
func SinkOf(w http.ResponseWriter) Sink {
	if a, ok := w.(*Answer); ok {
		return a.Events
	}
	return nil
}

// AppendEvent appends an event to text, as a response takes it.
func AppendEvent(w http.ResponseWriter, text, id, data []byte) []byte {
	if to := SinkOf(w); to != nil {
		return to.Append(text, id, data)
	}
	return sse.AppendMessage(text, id, data)
}

// Status returns the status, 0 if there is none yet.
func (a *Answer) Status() int { return a.status }

// Text returns the body as it was written, whatever the status.
func (a *Answer) Text() []byte { return a.body.Bytes() }

// Header implements [http.ResponseWriter].
func (a *Answer) Header() http.Header {
	if a.head == nil {
		a.head = make(http.Header)
	}
	return a.head
}

// WriteHeader implements [http.ResponseWriter].
func (a *Answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Body returns the body, nil if there is none to expect.
func (a *Answer) Body() ([]byte, error) {
	switch a.status {
	case http.StatusOK:
		return a.body.Bytes(), nil
	case http.StatusAccepted, http.StatusNoContent:
		return nil, nil
	}
	var told struct{ Error *jsonrpc.Error }
	if json.Unmarshal(a.body.Bytes(), &told) == nil && told.Error != nil && a.status != http.StatusServiceUnavailable {
		return nil, told.Error
	}
	return nil, fmt.Errorf("%w: %d", ErrUnreached, a.status)
}

// Write implements [http.ResponseWriter].
func (a *Answer) Write(text []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(text)
}

// WriteTo gives the answer to a client.
func (a *Answer) WriteTo(w http.ResponseWriter) {
	head := w.Header()
	for name, values := range a.head {
		if !strings.HasPrefix(name, OwnHeaders) {
			head[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // who has gone does not hear it
}
