package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

const (
	readBuffer = 16 << 10 // of stdout, per session
	maxLogLine = 8 << 10  // of stderr, in bytes; also its read buffer
	maxQuote   = 200      // bytes of a line quoted in an error or a warning
	// pipeSize is what a pipe holds at most, unless its writer took the trouble
	// to enlarge it.
	pipeSize = 64 << 10
)

// errTooLong is the error of readLine for a line that is too long.
var errTooLong = errors.New("line too long")

// An output is our end of a process's stdout or stderr.
type output struct {
	f    *os.File
	late bool // the deadline has passed; the reader's own
	left int  // bytes that may be read after it; the reader's own
}

func newOutput(f *os.File) *output { return &output{f: f, left: pipeSize} }

// endBy is called when the process has exited. Reading then ends at end of file, or at about
// t if a descendant still holds the pipe open.
func (o *output) endBy(t time.Time) {
	if o.f.SetReadDeadline(t) != nil { // not on this system
		time.AfterFunc(time.Until(t), func() { closePipes(o.f) })
	}
}

// Read reads from the pipe. After the deadline it reads what the process itself may have
// written, which is at most what a pipe holds. So a slow sink loses nothing, and a
// descendant that keeps writing does not delay the end.
func (o *output) Read(b []byte) (int, error) {
	if !o.late {
		n, err := o.f.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		o.late = true
	}
	if o.left == 0 || o.f.SetReadDeadline(time.Now().Add(drainWait)) != nil {
		return 0, io.EOF
	}
	n, err := o.f.Read(b[:min(len(b), o.left)])
	o.left -= n
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

// closePipes closes ends of pipes. Ends that are nil or closed are skipped, and errors are
// ignored.
func closePipes(ends ...*os.File) {
	for _, f := range ends {
		_ = f.Close()
	}
}

// readMessages passes what the process writes to stdout to the sink.
func (c *conn) readMessages() {
	r := bufio.NewReaderSize(c.stdout, readBuffer)
	for {
		line, err := readLine(r, c.b.opts.MaxMessage)
		if errors.Is(err, errTooLong) {
			c.faults <- fault{why: fmt.Errorf("server process wrote a message of more than %d bytes", c.b.opts.MaxMessage)}
			return
		}
		c.emit(bytes.TrimSpace(line))
		if err != nil {
			// Nothing more can be answered, whether or not the process lives on.
			c.faults <- fault{why: errors.New("server process closed its stdout"), patient: true}
			return
		}
	}
}

// readLine reads a line, with its end, into bytes of its own. It fails with
// errTooLong for one of more than limit bytes, not counting its end. The last
// line comes with io.EOF.
func readLine(r *bufio.Reader, limit int64) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if int64(len(bytes.TrimRight(line, "\r\n"))) > limit {
			return nil, errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if cap(line)-len(line) > readBuffer { // it may be kept for long
				line = bytes.Clone(line)
			}
			return line, err
		}
	}
}

// emit passes on the message or batch of a line. A line that is none is logged, and ends the request whose answer it
// is meant to be; the session continues.
func (c *conn) emit(line []byte) {
	if len(line) == 0 {
		return
	}
	msgs, err := rpc.Parse(line)
	if err != nil {
		c.log.Warn("server wrote a line on stdout that is no message", "line", quote(line), "error", err)
		c.unreadable.Take(line, err)
		return
	}
	c.unreadable.Read()
	for _, m := range msgs {
		if len(msgs) > 1 { // one that is kept must not hold all
			m, _ = jsonrpc.Parse(bytes.Clone(m.Raw))
		}
		c.sink.Emit(nil, c.answered(m))
	}
}

// answered returns a message of the process; if it is a response, with the id that its client knows.
func (c *conn) answered(m jsonrpc.Message) jsonrpc.Message {
	if m.Kind != jsonrpc.Response {
		return m
	}
	e := c.requests.End(m.ID)
	if e != nil && string(e.ID) != string(m.ID) {
		m.Raw, m.ID = m.WithID(e.ID), e.ID
	}
	return m
}

// quote returns the beginning of a line as a quoted string.
func quote(line []byte) string {
	if len(line) > maxQuote {
		return strconv.Quote(string(line[:maxQuote])) + "…"
	}
	return strconv.Quote(string(line))
}

// readLog logs what the process writes to stderr, line by line. Of a line that is too long
// the beginning is logged.
func (c *conn) readLog() {
	r := bufio.NewReaderSize(c.stderr, maxLogLine)
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			return
		}
		line := strings.ToValidUTF8(string(bytes.TrimRight(part, " \t\r")), "\uFFFD")
		if more {
			line += "…"
		}
		for more && err == nil {
			_, more, err = r.ReadLine()
		}
		if line == "" {
			continue
		}
		c.log.Info("server stderr", "stderr", line)
	}
}

// write writes the queued messages to the stdin of the process, each with one Write: some
// servers take each read for a message.
func (c *conn) write() {
	var line []byte
	for {
		raw, ok := c.queue.next()
		if !ok {
			return
		}
		line = append(append(line[:0], raw...), '\n')
		if _, err := c.stdin.Write(line); err != nil {
			if path, ok := errors.AsType[*os.PathError](err); ok {
				err = path.Err // the pipe's made-up name says nothing
			}
			c.queue.close(fmt.Errorf("the server does not read its stdin: %w", err))
			// What was queued is lost, and its calls would wait forever.
			c.faults <- fault{why: fmt.Errorf("server process stopped reading its stdin: %w", err), patient: true}
			return
		}
		if cap(line) > readBuffer {
			line = nil
		}
	}
}
