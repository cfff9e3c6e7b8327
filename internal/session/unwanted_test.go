package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A lossyConn is the connection of a client that may have left with bytes unread, if it has left.
type lossyConn struct{ clientConn }

func (c *lossyConn) Unsettled() bool { return c.left.Load() }

// A cancelling is a session, in a bubble, whose client makes equal requests, and cancels some.
type cancelling struct {
	*house
	s    *Session
	link *deskConn
}

// inCancelling calls do in a bubble.
func inCancelling(t *testing.T, do func(t *testing.T, c cancelling)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{AttachWithin: time.Hour}, nil)
		defer h.close()
		s := h.open("")
		link := h.desk.last()
		do(t, cancelling{h, s, link})
	})
}

// ask makes a request on a connection.
func (c cancelling) ask(id int, conn Connection) *Call {
	c.t.Helper()
	msgs := []jsonrpc.Message{mcptest.Parse(request(id))}
	call := mcptest.Must(c.s.Begin(msgs, true, Origin{Conn: conn}))(c.t)
	call.Deliver(c.t.Context(), msgs, nil)
	synctest.Wait()
	return call
}

// cancel cancels a request that waits for another.
func (c cancelling) cancel(id int) {
	c.t.Helper()
	time.Sleep(20 * time.Millisecond)
	const text = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`
	mcptest.Check(c.t, c.s.Send(c.t.Context(), mcptest.Parse(fmt.Sprintf(text, id)), nil))
	synctest.Wait()
}

// told returns what the server is told within the time that requests wait at the most: the ids of calls, and of cancelled ones after a minus.
func (c cancelling) told() string {
	time.Sleep(3 * time.Second)
	synctest.Wait()
	var told []string
	for len(c.link.in) > 0 {
		switch in := <-c.link.in; in.Method {
		case "tools/call":
			told = append(told, string(in.ID))
		case "notifications/cancelled":
			told = append(told, "-"+string(jsonrpc.Field(in.Params, "requestId")))
		}
	}
	return strings.Join(told, " ")
}

// wants checks what the server is told.
func (c cancelling) wants(want string) {
	c.t.Helper()
	if got := c.told(); got != want {
		c.t.Errorf("the server is told %q, want %q", got, want)
	}
}

// A client that makes a call again, and cancels that request while it waits for the call to be stranded, cancels the call.
func TestCancelledEarly(t *testing.T) {
	inCancelling(t, func(t *testing.T, c cancelling) {
		conn := &lossyConn{}
		first := c.ask(1, conn)
		conn.left.Store(true) // the network knows, but not yet that bytes are lost
		c.ask(2, &clientConn{})
		c.cancel(2)
		time.Sleep(time.Second)
		first.ConnectionLost()
		c.wants("1 -1")
		third := c.ask(3, &clientConn{})
		c.wants("3")
		c.link.say(third, response(3))
		if said := waitFor(t, third); !strings.Contains(said, `"id":3`) {
			t.Errorf("an equal request is answered %s", said)
		}
	})
}

// Such a cancellation counts also if the client makes an equal request meanwhile, which waits, too.
func TestCancelledEarlyThenAgain(t *testing.T) {
	inCancelling(t, func(_ *testing.T, c cancelling) {
		conn := &lossyConn{}
		first := c.ask(1, conn)
		conn.left.Store(true)
		c.ask(2, &clientConn{})
		c.cancel(2)
		time.Sleep(5 * time.Millisecond) // the third request looks at other times than the second one
		c.ask(3, &clientConn{})
		time.Sleep(time.Second)
		first.ConnectionLost()
		c.wants("1 -1 3")
	})
}

// The cancellation of a request ends no equal call of a client that is connected, or is stranded later than the request would have waited.
func TestCancelledEarlyConnected(t *testing.T) {
	inCancelling(t, func(t *testing.T, c cancelling) {
		first := c.ask(1, &clientConn{})
		c.ask(2, &clientConn{})
		c.cancel(2)
		time.Sleep(time.Second)
		first.ConnectionLost()
		c.wants("1")
		third := c.ask(3, &clientConn{})
		c.link.say(first, response(1))
		if said := waitFor(t, third); !strings.Contains(said, `"result"`) {
			t.Errorf("the call made again is answered %s", said)
		}
	})
}

// A call goes on whose client has come back on another connection.
func TestCancelledEarlyBack(t *testing.T) {
	inCancelling(t, func(t *testing.T, c cancelling) {
		conn := &lossyConn{}
		first := c.ask(1, conn)
		first.Promote()
		conn.left.Store(true)
		c.ask(2, &clientConn{})
		c.cancel(2)
		reader := attach(t, c.s, first.Number())
		first.standing.CameBack(&clientConn{})
		first.ConnectionLost()
		c.wants("1")
		c.link.say(first, response(1))
		tell(t, reader, 1)
	})
}

// Of several equal calls only the one that is stranded first is cancelled.
func TestCancelledEarlyOne(t *testing.T) {
	inCancelling(t, func(_ *testing.T, c cancelling) {
		conns := []*lossyConn{{}, {}}
		first := c.ask(1, conns[0])
		other := c.ask(2, conns[1])
		time.Sleep(time.Second) // it does not wait for the first one any more
		for _, conn := range conns {
			conn.left.Store(true)
		}
		c.ask(3, &clientConn{})
		c.cancel(3)
		other.ConnectionLost()
		time.Sleep(100 * time.Millisecond)
		first.ConnectionLost()
		c.wants("1 2 -2")
	})
}
