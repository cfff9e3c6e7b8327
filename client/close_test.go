package client

import (
	"errors"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A Conn goes from open to closed once, and accepts nothing after that.
func TestConnState(t *testing.T) {
	t.Parallel()
	c := mcptest.Must(New("http://127.0.0.1/", nil))(t)
	if c.state != connOpen {
		t.Errorf("new: state %d", c.state)
	}
	if !c.end() || c.state != connClosing {
		t.Errorf("ending: state %d", c.state)
	}
	if c.end() {
		t.Error("it ended twice")
	}
	if c.spawn(func() {}) {
		t.Error("work began while it closed")
	}
	c.finish()
	if c.state != connClosed {
		t.Errorf("finished: state %d", c.state)
	}
	c.Detach()
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	m := mcptest.Must(jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)))(t)
	if err := c.Send(t.Context(), m); !errors.Is(err, ErrClosed) {
		t.Errorf("sent after the end: %v", err)
	}
}

// The end of a Conn waits for all cancellations.
func TestCancelling(t *testing.T) {
	t.Parallel()
	var s cancelling
	if !isClosed(s.done()) {
		t.Error("there are none, and it waits")
	}
	s.add(1)
	s.add(1)
	done := s.done()
	s.add(-1)
	if isClosed(done) {
		t.Error("there is one, and it does not wait")
	}
	s.add(-1)
	if !isClosed(done) {
		t.Error("there are none any more, and it waits")
	}
}

// The end of a Conn does not wait for a notification that comes after the end has begun.
func TestNotifiedAtTheEnd(t *testing.T) {
	t.Parallel()
	c := mcptest.Must(New("http://127.0.0.1/", nil))(t)
	c.end()
	if err := c.notify(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)); !errors.Is(err, ErrClosed) {
		t.Errorf("notified: %v", err)
	}
	c.out.wait(t.Context()) // this wait would last as long as the test
	c.finish()
}
