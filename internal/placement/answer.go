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
	Status int // 0: there is none yet
	head   http.Header
	body   bytes.Buffer
}

// Body returns the body, nil if there is none to expect.
func (a *Answer) Body() ([]byte, error) {
	switch a.Status {
	case http.StatusOK:
		return a.body.Bytes(), nil
	case http.StatusAccepted, http.StatusNoContent:
		return nil, nil
	}
	var told struct{ Error *jsonrpc.Error }
	if json.Unmarshal(a.body.Bytes(), &told) == nil && told.Error != nil && a.Status != http.StatusServiceUnavailable {
		return nil, told.Error
	}
	return nil, fmt.Errorf("%w: %d", ErrUnreached, a.Status)
}

// Header implements [http.ResponseWriter].
func (a *Answer) Header() http.Header {
	if a.head == nil {
		a.head = make(http.Header)
	}
	return a.head
}

// WriteHeader implements [http.ResponseWriter].
func (a *Answer) WriteHeader(status int) {
	if a.Status == 0 {
		a.Status = status
	}
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
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.body.Bytes()) // who has gone does not hear it
}
