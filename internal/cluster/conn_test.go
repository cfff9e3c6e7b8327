package cluster

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// Each event has, in each state, the result in the table of connState.
func TestConnStates(t *testing.T) {
	t.Parallel()
	for from, want := range map[connState][5]connState{
		opening: {open, ended, closing, opening, failed},
		open:    {open, ended, closing, open, failed},
		ended:   {ended, ended, closed, ended, ended},
		failed:  {failed, failed, closed, failed, failed},
		closing: {closing, closed, closing, closed, closed},
		closed:  {closed, closed, closed, closed, closed},
	} {
		for e := onAccept; e <= onFailure; e++ {
			if is := from.after(e); is != want[e] {
				t.Errorf("%v, event %d: %v, want %v", from, e, is, want[e])
			}
		}
	}
}

// Messages of the other end, failures and Close bring about each transition.
func TestConnEvents(t *testing.T) {
	t.Parallel()
	id := connID{7, true} // as at the other end
	mine := connID{7, false}
	accept := func(n *Node) { n.hears(from("a", kindAccept).conn(id).number(1000)) }
	fin := func(n *Node) { n.hears(from("a", kindFin).conn(id).number(0)) }
	confirm := func(n *Node) { n.hears(from("a", kindCredit).conn(id).number(1000).number(1)) }
	reset := func(n *Node) { n.hears(from("a", kindReset).conn(id)) }
	shut := func(n *Node) { _ = n.conn(n.peers["a"], mine).Close() }
	for name, test := range map[string]struct {
		from connState
		do   []func(*Node)
		want connState
		read error // of a later Read; errFailed: any other error
	}{
		"opening, accepted":         {opening, []func(*Node){accept}, open, nil},
		"opening, fin before it":    {opening, []func(*Node){fin}, ended, io.EOF},
		"opening, closed":           {opening, []func(*Node){shut}, closing, net.ErrClosed},
		"opening, refused":          {opening, []func(*Node){reset}, failed, errFailed},
		"open, fin":                 {open, []func(*Node){fin}, ended, io.EOF},
		"open, closed":              {open, []func(*Node){shut}, closing, net.ErrClosed},
		"open, reset":               {open, []func(*Node){reset}, failed, errFailed},
		"ended, closed":             {open, []func(*Node){fin, shut}, closed, net.ErrClosed},
		"ended, reset":              {open, []func(*Node){fin, reset}, ended, io.EOF},
		"closing, fin":              {open, []func(*Node){shut, fin}, closed, net.ErrClosed},
		"closing, all is confirmed": {open, []func(*Node){shut, confirm}, closed, net.ErrClosed},
		"closing, reset":            {open, []func(*Node){shut, reset}, closed, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // as a Node that is closed lingers for a second
				n, _ := alone(t)
				n.hears(from("a", kindBeat).bytes(0))
				p := n.use("a")
				defer n.release(p)
				c := n.newConn(p, mine, test.from)
				n.mu.Lock()
				n.list(c)
				n.mu.Unlock()
				for _, do := range test.do {
					do(n)
				}
				c.mu.Lock()
				is := c.state
				c.mu.Unlock()
				if is != test.want {
					t.Errorf("the connection is %v, want %v", is, test.want)
				}
				if known := n.conn(p, mine) != nil; known != (is == open || is == ended && len(test.do) == 1 || is == closing) {
					t.Errorf("the node knows of it: %v", known)
				}
				if test.read == nil {
					return
				}
				switch _, err := c.Read(make([]byte, 1)); {
				case errors.Is(test.read, errFailed) && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)):
					t.Errorf("reading from what has failed: %v", err)
				case !errors.Is(test.read, errFailed) && !errors.Is(err, test.read):
					t.Errorf("reading: %v, want %v", err, test.read)
				}
				c.Close()
				c.mu.Lock()
				defer c.mu.Unlock()
				if test.want == failed && c.state != closed {
					t.Errorf("after Close it is %v", c.state)
				}
			})
		})
	}
}

// errFailed stands for any error except the end of the data and a closed connection.
var errFailed = errors.New("failed")
