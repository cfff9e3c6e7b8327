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

// An Answer is the [http.ResponseWriter] of an exchange that is not a client's HTTP request: a question of this node, one of
// many exchanges on a connection, or the rest of a stream. It keeps an answer that is not a stream.
type Answer struct {
	head   http.Header
	status int
	body   bytes.Buffer

	Events Sink                // takes the events of a stream; nil: no stream is expected, or it goes onto a response
	Onto   http.ResponseWriter // the response that has the stream's beginning, and gets the rest; nil: no stream has begun
	HasID  func()              // called when an event with an id is written to Onto; may be nil
	Last   string              // the id of the last event written to Onto
	Others bool                // events of other streams were written too
	Ending Ending
	Broken error // why a write to the client failed
}

// A Sink takes the events of a stream as ids and data, and not as their text over HTTP. It is used by one goroutine at a time.
type Sink interface {
	// Open says that the stream begins. head is the header from the node that has the session.
	Open(head http.Header)
	// Append appends an event to text, in the form that Write takes. An event has an id, data, or both; the other is empty.
	Append(text, id, data []byte) []byte
	// Write writes events that Append appended; no bytes are a sign of life. After an error no more is written.
	Write(text []byte) error
}

// SinkOf returns the sink for the events of a response's stream; nil: the response takes them as text.
func SinkOf(w http.ResponseWriter) Sink {
	if a, ok := w.(*Answer); ok {
		return a.Events
	}
	return nil
}

// AppendEvent appends an event to text, in the form that w takes.
func AppendEvent(w http.ResponseWriter, text, id, data []byte) []byte {
	if to := SinkOf(w); to != nil {
		return to.Append(text, id, data)
	}
	return sse.AppendMessage(text, id, data)
}

// Status returns the status, or 0 if none was written.
func (a *Answer) Status() int { return a.status }

// Text returns the body, whatever the status.
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

// Body returns the body of a 200, and nil for a 202 or 204. Any other status is an error: the [jsonrpc.Error] in the body, or ErrUnreached.
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

// WriteTo writes the answer to a client, without headers between nodes.
func (a *Answer) WriteTo(w http.ResponseWriter) {
	head := w.Header()
	for name, values := range a.head {
		if !strings.HasPrefix(name, OwnHeaders) {
			head[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may have gone
}
