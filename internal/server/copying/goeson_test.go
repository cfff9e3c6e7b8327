package copying

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"holdfast/internal/placement"
)

// A stream that continues in an open response writes nothing when it opens, and no keep-alive is due then. HasID is called at each event
// with an id, and Broken keeps its error at a later flush.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	w, ids := httptest.NewRecorder(), 0
	to := &placement.Answer{Onto: w, HasID: func() { ids++ }}
	c := &Events{of: &Responses{}, W: w, c: http.NewResponseController(w), to: to}
	if err := c.Open([]byte("first"), false); err != nil || w.Body.Len() > 0 || c.written.IsZero() {
		t.Errorf("opened: %v, %q, written %v", err, w.Body, c.written)
	}
	if c.Append(nil, nil, []byte(`{}`)); ids != 0 {
		t.Errorf("an event without an id is %d ids", ids)
	}
	if c.Append(nil, []byte("1"), []byte(`{}`)); ids != 1 {
		t.Errorf("an event with an id is %d ids", ids)
	}
	to.Broken = errors.New("cut")
	if err := c.Flush([]byte("more"), false); err != nil || to.Broken == nil {
		t.Errorf("written after it broke: %v, %v", err, to.Broken)
	}
}
