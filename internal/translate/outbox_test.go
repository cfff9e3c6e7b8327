package translate

import (
	"errors"
	"testing"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A slowServer takes no message before goes is closed, but refuses responses at once.
type slowServer struct {
	backend.Conn
	got  chan backend.Inbound
	goes chan struct{}
}

var errRefused = errors.New("refused")

func (s *slowServer) Deliver(in backend.Inbound) error {
	if in.Kind == jsonrpc.Response {
		return errRefused
	}
	s.got <- in
	<-s.goes
	return nil
}

// A client whose response is not taken learns that, also while another message is on its way: its call would wait for the response for ever.
func TestOutboxResponse(t *testing.T) {
	t.Parallel()
	s := &slowServer{got: make(chan backend.Inbound, 2), goes: make(chan struct{})}
	o := &outbox{failed: func(in backend.Inbound, err error) { t.Errorf("%s: %v", in.Raw, err) }}
	response := backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`)}
	note := backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/x"}`)}
	o.open(s)
	o.later(note)
	<-s.got
	if err := o.Deliver(note); err != nil {
		t.Error(err)
	}
	if err := o.Deliver(response); !errors.Is(err, errRefused) {
		t.Errorf("the response: %v", err)
	}
	close(s.goes)
	<-s.got
	o.stop()
	if err := o.Deliver(response); !errors.Is(err, errOver) {
		t.Errorf("after the end: %v", err)
	}
}
