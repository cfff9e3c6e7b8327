package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A torn muxConn's first connection fails to write a message that may have arrived, and ends
// while the call waits for the response.
type torn struct {
	up     int
	failed chan struct{}
	ends   chan struct{} // the end of the second connection
	wrote  chan jsonrpc.Message
}

func (w *torn) open(context.Context, time.Duration) (string, bool, error) {
	w.up++
	return "", w.up == 1, nil
}

func (w *torn) read(func(jsonrpc.Message)) error {
	if w.up == 1 {
		<-w.failed
	} else {
		<-w.ends
	}
	return errCut
}

func (w *torn) write(_ context.Context, raw []byte) error {
	select {
	case <-w.failed:
	default:
		close(w.failed)
		return errors.New("no answer")
	}
	m, err := jsonrpc.Parse(raw)
	if err == nil {
		w.wrote <- m
	}
	return err
}

func (w *torn) resumes() bool                 { return false }
func (w *torn) confirm(context.Context) error { return nil }
func (w *torn) close()                        {}

// A request may have arrived although its sending failed. It is sent once over the next
// connection, and not once more when the wait for its response ends.
func TestUnsureWriteIsSentOnce(t *testing.T) {
	t.Parallel()
	c := mcptest.Must(New("http://127.0.0.1/", &Options{Transport: SSE, Silence: 300 * time.Millisecond}))(t)
	w := &torn{failed: make(chan struct{}), ends: make(chan struct{}), wrote: make(chan jsonrpc.Message, 10)}
	c.mu.Lock()
	c.mux = newMux(c, w)
	c.mu.Unlock()
	t.Cleanup(func() {
		c.stop()
		close(w.ends)
		c.Detach()
	})
	m := mcptest.Must(jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)))(t)
	mcptest.Check(t, c.Send(t.Context(), m))
	first := <-w.wrote
	select {
	case m := <-w.wrote:
		t.Errorf("sent again, first as %s, then as %s", first.ID, m.ID)
	case <-time.After(time.Second):
	}
}
