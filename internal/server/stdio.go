package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// ServeConn serves one client over a pair of pipes, such as a process's standard
// input and output: one JSON-RPC message on each line (2025-11-25, Transports,
// "stdio"). It begins a session, which outlives the connection as those of other
// transports do: calls that are cut off go on, and their client can take them up
// on another connection (SEP-975).
//
// It returns nil when r has ended and all that the client asked for has been
// written; ctx's error when ctx is done; an error that wraps [session.ErrClosing]
// when the handler is drained and no call of the connection is in flight; and
// otherwise what went wrong in reading or writing. It closes neither r nor w. A
// Read that is waiting when it returns ends with r, unless r has a read deadline;
// so does a Write that was given up after WriteTimeout.
//
// It may be called concurrently for different pipes. The values in ctx are those
// of the request that Principal and backends are shown.
func (h *Handler) ServeConn(ctx context.Context, r io.Reader, w io.Writer) (err error) {
	defer panics.Catch(&err, h.logger, "a connection", "")
	if h.opts.Stateless {
		return errors.New("a stateless handler has no sessions, and cannot serve a pair of pipes")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	if err != nil {
		return err
	}
	x := intent{purpose: forSocket, r: req, principal: h.principal(req)}
	if err := h.open(&x); err != nil {
		return err
	}
	s := x.session
	defer func() {
		if s.Revision() == "" {
			h.sessions.End(s) // nothing was done in it
		}
	}()
	m := h.newMux(req, s, s.Key(), false)
	if err := m.listen(ctx); err != nil {
		return err
	}
	err = m.serve(ctx, newLines(ctx, r, w, h.opts.MaxBody, h.opts.WriteTimeout))
	if errors.Is(err, errComeBack) {
		err = session.ErrClosing
	}
	return err
}

// lines is a pair of pipes as a [pipe]. Reading and writing each wait on a
// goroutine of their own: there may be no other way to stop waiting.
type lines struct {
	ctx     context.Context
	timeout time.Duration // for a write
	quit    chan struct{}

	r      io.Reader
	most   int // bytes of a message
	in     chan line
	inOver chan struct{} // closed when nobody reads any more

	w       io.Writer
	out     chan []byte
	wrote   chan error
	text    []byte // what is being written
	stuck   bool   // and was given up
	timer   *time.Timer
	outOver chan struct{} // closed when nobody writes any more
}

// line is what reading came to.
type line struct {
	data []byte
	err  error
}

func newLines(ctx context.Context, r io.Reader, w io.Writer, most int64, timeout time.Duration) *lines {
	p := &lines{
		ctx: ctx, timeout: timeout, quit: make(chan struct{}),
		r: r, most: int(most), in: make(chan line), inOver: make(chan struct{}),
		w: w, out: make(chan []byte), wrote: make(chan error, 1), outOver: make(chan struct{}),
		timer: time.NewTimer(timeout),
	}
	go p.reads()
	go p.writes()
	return p
}

// reads reads lines until there is none, or nobody wants one.
func (p *lines) reads() {
	defer close(p.inOver)
	r := bufio.NewReaderSize(p.r, 16<<10)
	for {
		data, err := p.next(r)
		select {
		case p.in <- line{data, err}:
		case <-p.quit:
			return
		}
		var left *jsonrpc.Error
		if err != nil && !errors.As(err, &left) {
			return
		}
	}
}

// next returns the next line that is not blank. One that is too long is not kept
// while it is skipped. What follows the last line break is a line too: only a
// whole message can be understood.
func (p *lines) next(r *bufio.Reader) ([]byte, error) {
	var data []byte
	skip := false
	for {
		part, err := r.ReadSlice('\n')
		if skip = skip || len(data)+len(bytes.TrimRight(part, "\r\n")) > p.most; skip {
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
			return nil, errf(codeInvalid, "the message is larger than %d bytes", p.most)
		case len(bytes.TrimSpace(data)) > 0:
			return data, nil
		case err != nil:
			return nil, err
		}
		data = data[:0]
	}
}

// writes writes what it is given, until nobody gives it anything.
func (p *lines) writes() {
	defer close(p.outOver)
	for {
		select {
		case text := <-p.out:
			_, err := p.w.Write(text)
			p.wrote <- err
		case <-p.quit:
			return
		}
	}
}

// read implements [pipe].
func (p *lines) read() ([]byte, error) {
	select {
	case l := <-p.in:
		return l.data, l.err
	case <-p.quit:
		return nil, net.ErrClosed
	}
}

// write implements [pipe].
func (p *lines) write(text []byte) error {
	p.text = append(p.text[:0], text...)
	p.out <- p.text
	if cap(p.text) > 2*mostText {
		p.text = nil
	}
	p.timer.Reset(p.timeout)
	defer p.timer.Stop()
	select {
	case err := <-p.wrote:
		return err
	case <-p.ctx.Done():
		p.stuck = true
		return p.ctx.Err()
	case <-p.timer.C:
		p.stuck = true
		return fmt.Errorf("the client does not read: %w", os.ErrDeadlineExceeded)
	}
}

// ping implements [pipe]: a process that has ended closes its pipes.
func (p *lines) ping() {}

// close implements [pipe].
func (p *lines) close(error, time.Duration) {
	close(p.quit)
	if r, ok := p.r.(interface{ SetReadDeadline(time.Time) error }); ok && r.SetReadDeadline(time.Unix(1, 0)) == nil {
		<-p.inOver
		_ = r.SetReadDeadline(time.Time{})
	}
	if w, ok := p.w.(interface{ SetWriteDeadline(time.Time) error }); ok && w.SetWriteDeadline(time.Unix(1, 0)) == nil {
		p.stuck = false
		defer func() { _ = w.SetWriteDeadline(time.Time{}) }()
	}
	if !p.stuck {
		<-p.outOver
	}
}
