package translate

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

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

// A fullConn takes no answers while full is positive: each attempt makes it less.
type fullConn struct{ full, taken int }

func (c *fullConn) Deliver(backend.Inbound) error {
	if c.full--; c.full >= 0 {
		return errors.New("the pipe is full")
	}
	c.taken++
	return nil
}

func (*fullConn) Close() error { return nil }

// An answer that was put off is delivered again if the server does not take it, for a time and until the conversation ends.
func TestAnswerPutOff(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		full          int
		stops         bool // before the answer is delivered again
		taken, failed int
	}{{full: 3, taken: 1}, {full: 1000, failed: 1}, {full: 1, stops: true}} {
		synctest.Test(t, func(t *testing.T) {
			conn, failed := &fullConn{full: test.full}, 0
			o := outbox{failed: func(backend.Inbound, error) { failed++ }}
			mcptest.Check(t, o.Deliver(backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`)}))
			o.open(conn)
			synctest.Wait()
			if !test.stops {
				time.Sleep(2 * answerTakenWithin)
			}
			began := time.Now()
			o.stop()
			if took := time.Since(began); took > 0 {
				t.Errorf("stop takes %v", took)
			}
			if conn.taken != test.taken || failed != test.failed {
				t.Errorf("%+v: the server takes %d answers, and %d fail", test, conn.taken, failed)
			}
		})
	}
}
