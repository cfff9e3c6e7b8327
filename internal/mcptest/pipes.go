package mcptest

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// Pipes is a listener with connections in memory, for a synctest bubble: a connection of the network would keep its clock from
// going on.
type Pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewPipes returns a Pipes that listens.
func NewPipes() *Pipes {
	return &Pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements [net.Listener].
func (l *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *Pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *Pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// DialContext connects to the listener, whatever the address.
func (l *Pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ServePipes serves a handler in memory until the end of the test, and returns the client that reaches the handler.
func ServePipes(t testing.TB, h http.Handler) *http.Client {
	t.Helper()
	l := NewPipes()
	server := &http.Server{Handler: h} //nolint:gosec // nothing outside reaches it
	var work sync.WaitGroup
	work.Go(func() { _ = server.Serve(l) })
	transport := &http.Transport{DialContext: l.DialContext}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		work.Wait()
	})
	return &http.Client{Transport: transport}
}

// Duplex runs a function that serves a connection, such as the method ServeConn of a handler, on pipes in memory. The test must
// read said to its end. The end of the test closes say, and fails the test if serve returns an error.
func Duplex(t testing.TB, serve func(in io.Reader, out io.Writer) error) (say *io.PipeWriter, said *io.PipeReader) {
	in, say := io.Pipe()
	said, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- serve(in, out)
		_ = out.Close()
	}()
	t.Cleanup(func() {
		_ = say.Close()
		if err := <-served; err != nil {
			t.Errorf("serving a connection: %v", err)
		}
	})
	return say, said
}
