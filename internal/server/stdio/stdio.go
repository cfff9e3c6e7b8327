// Package stdio carries MCP's messages over a pair of pipes, such as a process's standard
// input and output: one JSON-RPC message on each line (2025-11-25, Transports, "stdio").
package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"holdfast/jsonrpc"
)

// A Conn is a pair of pipes. Reading and writing each have a goroutine of their own, as
// there may be no other way to stop waiting for them. Read may run beside the other
// methods, which run one after the other.
type Conn struct {
	ctx     context.Context
	timeout time.Duration // for a write
	quit    chan struct{}

	r      io.Reader
	most   int // bytes of a message
	in     chan line
	inOver chan struct{} // closed when reads has ended

	w       io.Writer
	out     chan []byte
	wrote   chan error
	text    []byte // the text being written
	stuck   bool   // the write of text was given up
	timer   *time.Timer
	outOver chan struct{} // closed when writes has ended
}

// line is a result of reading.
type line struct {
	data []byte
	err  error
}

// New returns a connection. A message has at most that many bytes, and a write takes
// at most timeout, and ends with ctx. The connection must be closed.
func New(ctx context.Context, r io.Reader, w io.Writer, most int64, timeout time.Duration) *Conn {
	c := &Conn{
		ctx: ctx, timeout: timeout, quit: make(chan struct{}),
		r: r, most: int(most), in: make(chan line), inOver: make(chan struct{}),
		w: w, out: make(chan []byte), wrote: make(chan error, 1), outOver: make(chan struct{}),
		timer: time.NewTimer(timeout),
	}
	go c.reads()
	go c.writes()
	return c
}

// reads passes lines to Read, until r ends or Close is called.
func (c *Conn) reads() {
	defer close(c.inOver)
	r := bufio.NewReaderSize(c.r, 16<<10)
	for {
		data, err := c.next(r)
		select {
		case c.in <- line{data, err}:
		case <-c.quit:
			return
		}
		var left *jsonrpc.Error
		if err != nil && !errors.As(err, &left) {
			return
		}
	}
}

// next returns the next line that is not blank. It skips a line that is too long
// without keeping it in memory. Text after the last line break is a line too:
// only a whole message will parse.
func (c *Conn) next(r *bufio.Reader) ([]byte, error) {
	var data []byte
	skip := false
	for {
		part, err := r.ReadSlice('\n')
		if skip = skip || len(data)+len(bytes.TrimRight(part, "\r\n")) > c.most; skip {
			data = nil
		} else {
			data = append(data, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case skip:
			return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", c.most)
		case len(bytes.TrimSpace(data)) > 0:
			return data, nil
		case err != nil:
			return nil, err
		}
		data = data[:0]
	}
}

// writes writes the texts of Write, until Close is called.
func (c *Conn) writes() {
	defer close(c.outOver)
	for {
		select {
		case text := <-c.out:
			_, err := c.w.Write(text)
			c.wrote <- err
		case <-c.quit:
			return
		}
	}
}

// Read returns the next message, which the caller may keep. A *jsonrpc.Error says why a
// message was left out; io.EOF says that the client sends no more, though it may still
// read. After any other error the connection is unusable.
func (c *Conn) Read() ([]byte, error) {
	select {
	case l := <-c.in:
		return l.data, l.err
	case <-c.quit:
		return nil, net.ErrClosed
	}
}

// mostKept is the largest capacity of a buffer that is kept for the next write.
const mostKept = 128 << 10

// Write writes messages, each of which ends in a line feed. After an error it must not be
// called again.
func (c *Conn) Write(text []byte) error {
	c.text = append(c.text[:0], text...)
	c.out <- c.text
	if cap(c.text) > mostKept {
		c.text = nil
	}
	c.timer.Reset(c.timeout)
	defer c.timer.Stop()
	select {
	case err := <-c.wrote:
		return err
	case <-c.ctx.Done():
		c.stuck = true
		return c.ctx.Err()
	case <-c.timer.C:
		c.stuck = true
		return fmt.Errorf("the client does not read: %w", os.ErrDeadlineExceeded)
	}
}

// Ping does nothing: a process that has ended closes its pipes.
func (c *Conn) Ping() {}

// Close ends the connection, and with it Read, whatever the reason.
func (c *Conn) Close(error, time.Duration) {
	close(c.quit)
	if r, ok := c.r.(interface{ SetReadDeadline(time.Time) error }); ok && r.SetReadDeadline(time.Unix(1, 0)) == nil {
		<-c.inOver
		_ = r.SetReadDeadline(time.Time{})
	}
	if w, ok := c.w.(interface{ SetWriteDeadline(time.Time) error }); ok && w.SetWriteDeadline(time.Unix(1, 0)) == nil {
		c.stuck = false
		defer func() { _ = w.SetWriteDeadline(time.Time{}) }()
	}
	if !c.stuck {
		<-c.outOver
	}
}
