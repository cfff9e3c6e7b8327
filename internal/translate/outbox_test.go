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

// A fullConn takes no answers while full is positive: each attempt makes it less.
type fullConn struct {
	goOn  chan struct{} // closed when a request is taken
	full  int
	taken int // answers
}

func (c *fullConn) Deliver(in backend.Inbound) error {
	if in.Kind == jsonrpc.Request {
		<-c.goOn
		return nil
	}
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
			conn, failed := &fullConn{goOn: make(chan struct{}), full: test.full}, 0
			o := outbox{failed: func(backend.Inbound, error) { failed++ }}
			o.open(conn)
			o.later(backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)})
			mcptest.Check(t, o.Deliver(backend.Inbound{Message: mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`)}))
			close(conn.goOn)
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
