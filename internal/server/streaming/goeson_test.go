package streaming

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"holdfast/internal/placement"
)

type failing struct {
	http.ResponseWriter
	err error
}

func (w failing) Write(b []byte) (int, error) { return len(b), w.err }

// A stream that continues in an open response writes nothing when it opens, and no keep-alive is due then. HasID is called at each event
// with an id, and Broken keeps the first error of a flush.
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
	first := errors.New("cut")
	for _, is := range []error{first, errors.New("cut again"), nil} {
		c.W = failing{w, is}
		if err := c.Flush([]byte("more"), false); !errors.Is(err, is) || !errors.Is(to.Broken, first) {
			t.Errorf("flushed: %v, want %v; the answer broke of %v", err, is, to.Broken)
		}
	}
}
