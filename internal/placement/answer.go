package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"holdfast/jsonrpc"
)

// An Answer is an answer that stays on this node: an [http.ResponseWriter].
type Answer struct {
	recorded
	body bytes.Buffer
}

// Status returns the status, 0 if there is none yet.
func (a *Answer) Status() int { return a.status }

// Text returns the body as it was written, whatever the status.
func (a *Answer) Text() []byte { return a.body.Bytes() }

// recorded is the beginning of an answer that stays on this node.
type recorded struct {
	head   http.Header
	status int
}

// Header implements [http.ResponseWriter].
func (r *recorded) Header() http.Header {
	if r.head == nil {
		r.head = make(http.Header)
	}
	return r.head
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorded) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
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

// SetWriteDeadline is there for [http.ResponseController].
func (a *Answer) SetWriteDeadline(time.Time) error { return nil }

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
