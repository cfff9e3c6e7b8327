package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/jsonrpc"
)

// A gone muxConn opens once, and cannot be opened again: each further try fails, or gets no answer.
type gone struct {
	nowhere int                // how many tries get no answer
	opens   chan time.Duration // gets the time that each try may take, when it begins
	ends    chan struct{}      // the end of the first connection
	tries   int                // touched only by open
	wrote   chan struct{}      // gets a value when a message was written
}

func (w *gone) open(ctx context.Context, within time.Duration) (string, bool, error) {
	select {
	case w.opens <- within:
	case <-ctx.Done():
		return "", false, context.Cause(ctx)
	}
	w.tries++
	switch {
	case w.tries == 1:
		return "", true, nil
	case w.tries > 1+w.nowhere:
		return "", false, errors.New("refused")
	}
	select {
	case <-time.After(within):
		return "", false, errSilent
	case <-ctx.Done():
		return "", false, context.Cause(ctx)
	}
}

func (w *gone) read(func(jsonrpc.Message)) error {
	<-w.ends
	return errCut
}

func (w *gone) write(context.Context, []byte) error {
	w.wrote <- struct{}{}
	return nil
}

func (w *gone) resumes() bool                 { return true }
func (w *gone) confirm(context.Context) error { return nil }
func (w *gone) close()                        {}

// A mux reconnects soon while a call waits for it, however long the server is out of reach.
// A mux that no call waits for reconnects soon when a call comes.
func TestMuxReconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New("ws://127.0.0.1/", &Options{GiveUp: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w := &gone{nowhere: 1, opens: make(chan time.Duration), ends: make(chan struct{}), wrote: make(chan struct{}, 1)}
		c.mu.Lock()
		c.mux = newMux(c, w)
		c.mu.Unlock()
		defer c.Detach()
		send := func(text string) {
			t.Helper()
			m, err := jsonrpc.Parse([]byte(text))
			if err == nil {
				err = c.Send(t.Context(), m)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if d := <-w.opens; d != c.opts.ConnectTimeout {
			t.Errorf("the first may take %v", d)
		}
		last, n := time.Now(), 0
		next := func() time.Duration {
			within := <-w.opens
			n++
			if want := min(firstBound*time.Duration(n), 2*firstBound); within != want {
				t.Errorf("try %d may take %v, want %v", n, within, want)
			}
			began := last
			last = time.Now()
			return last.Sub(began)
		}
		send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		<-w.wrote
		close(w.ends)
		next()
		if d := next(); d > firstBound+longestDelay {
			t.Errorf("it leads nowhere, and the next came after %v", d)
		}
		for range 50 {
			if d := next(); d > longestDelay {
				t.Errorf("a call waits, and the next came after %v", d)
			}
		}
		send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		time.Sleep(2 * time.Minute) // the cancellation is given up in this time
		next()
		next()
		var longest time.Duration
		for range 50 {
			longest = max(longest, next())
		}
		if longest <= longestDelay {
			t.Errorf("nobody waits, and the next came after %v at the most", longest)
		}
		time.Sleep(longestDelay)
		came := time.Now()
		send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		next()
		if d := last.Sub(came); d > 0 {
			t.Errorf("a call came, and the next %v later", d)
		}
	})
}
