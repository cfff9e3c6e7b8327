package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/skim"
	"holdfast/jsonrpc"
)

const (
	readBuffer = 16 << 10 // of stdout, per session
	maxLogLine = 8 << 10  // of stderr, in bytes; also its read buffer
	maxQuote   = 200      // bytes of a line quoted in an error or a warning
	// pipeSize is how many bytes a pipe holds at most, unless its writer has enlarged it.
	pipeSize = 64 << 10
)

// errTooLong is the error of [lines.next] for a line that is too long.
var errTooLong = errors.New("line too long")

// An output is our end of a process's stdout or stderr.
type output struct {
	f    *os.File
	late bool // the deadline has passed; used by the reader alone
	left int  // bytes that may be read after the deadline; used by the reader alone
}

func newOutput(f *os.File) *output { return &output{f: f, left: pipeSize} }

// endBy is called when the process has exited. Reading then ends at end of file, or at about
// t if a descendant still holds the pipe open.
func (o *output) endBy(t time.Time) {
	if o.f.SetReadDeadline(t) != nil { // not on this system
		time.AfterFunc(time.Until(t), func() { closePipes(o.f) })
	}
}

// Read reads from the pipe. After the deadline it reads the bytes that the process itself
// may have written, at most as many as a pipe holds. So a slow sink loses nothing, and a
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

// readMessages passes the messages on stdout to the sink.
func (c *conn) readMessages() {
	l := &lines{r: bufio.NewReaderSize(c.stdout, readBuffer), limit: c.b.opts.MaxMessage, arrival: budget.Of(c.sink).Arrive(c.closing)}
	defer l.arrival.Done()
	for {
		line, err := l.next()
		switch {
		case errors.Is(err, errTooLong):
			c.faults <- fault{why: fmt.Errorf("server process wrote a message of more than %d bytes", c.b.opts.MaxMessage)}
			return
		case budget.Full(err):
			var known bool
			if known, err = c.skip(l, err); !known {
				return
			}
			line = nil
		}
		c.emit(bytes.TrimSpace(line)) // emit does nothing for an empty line
		l.arrival.Done()
		if err != nil {
			// No more requests can be answered, whether or not the process lives on.
			c.faults <- fault{why: errors.New("server process closed its stdout"), patient: true}
			return
		}
	}
}

// lines reads the lines that a process writes.
type lines struct {
	r       *bufio.Reader
	limit   int64
	arrival *budget.Arrival // counts the line that is read
	pieces  budget.Pieces   // of a line that is longer than the buffer
}

// next reads a line, with its end, into bytes of its own. It fails with errTooLong for a line of more than limit bytes,
// not counting its end. If there is no room for a line, it fails with the error of [budget.Arrival.Grow], and the caller
// calls skip. The last line comes with io.EOF.
func (l *lines) next() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		if int64(len(bytes.TrimRight(part, "\r\n"))) > l.limit {
			return nil, errTooLong
		}
		return bytes.Clone(part), err
	}
	for {
		l.pieces.Add(part)
		size := l.pieces.Size()
		if size > l.limit+2 { // with its end
			return nil, errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			line := l.pieces.Join()
			if int64(len(bytes.TrimRight(line, "\r\n"))) > l.limit {
				return nil, errTooLong
			}
			return line, err
		}
		if err := l.arrival.Grow(size+readBuffer, l.limit); err != nil {
			return nil, err
		}
		part, err = l.r.ReadSlice('\n')
	}
}

// skip reads the rest of a line for which there was no room, and writes all of it to w.
func (l *lines) skip(w io.Writer) error {
	_, _ = w.Write(l.pieces.Join())
	l.arrival.Done()
	for {
		part, err := l.r.ReadSlice('\n')
		_, _ = w.Write(part)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// skip handles a message for which there was no room, because of why: the request that it answers fails, and a request is refused.
// The error is that of reading the rest. If known is false, the kind of the message is not known, and the process must end.
func (c *conn) skip(l *lines, why error) (known bool, err error) {
	var found skim.Message
	err = l.skip(&found)
	if !c.spoke {
		c.started()
	}
	c.log.Warn("message of the server dropped", "error", why)
	c.unreadable.Read()
	id := found.ID()
	switch kind, ok := found.Kind(); {
	case !ok, kind == jsonrpc.Response && id == nil: // it may be the answer to any request
		c.faults <- fault{why: why}
		return false, err
	case kind == jsonrpc.Response:
		raw := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, why))
		if m, bad := jsonrpc.Parse(raw); bad == nil {
			c.sink.Emit(nil, c.answered(m))
		}
	case kind == jsonrpc.Request:
		raw := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeInternal, "the request was not read: %v", why))
		if lost := c.queue.put(raw); lost != nil {
			c.log.Warn("refusal not delivered", "error", lost)
		}
	}
	return true, err
}

// emit passes on the message or batch of a line. A line that is neither is logged, and ends the request that it is
// meant to answer; the session continues.
func (c *conn) emit(line []byte) {
	if len(line) == 0 {
		return
	}
	msgs, err := rpc.Parse(line)
	if err != nil {
		c.early.say(slog.LevelWarn, "server wrote a line on stdout that is no message", "line", quote(line), "error", err)
		c.unreadable.Take(line, err)
		c.refuse(line, err)
		return
	}
	if !c.spoke {
		c.started()
	}
	c.unreadable.Read()
	for _, m := range msgs {
		if len(msgs) > 1 { // a message that is kept must not hold the others
			m, _ = jsonrpc.Parse(bytes.Clone(m.Raw))
		}
		c.sink.Emit(nil, c.answered(m))
	}
}

// refuse answers a line that is meant as a request and is no message, if its id can be read: else the server waits.
func (c *conn) refuse(line []byte, why error) {
	if line[0] != '{' {
		return // the line may be a copy in a log
	}
	id := rpc.AskedID(line)
	if id == nil {
		return
	}
	code := jsonrpc.CodeInvalidRequest
	if errors.Is(why, jsonrpc.ErrParse) {
		code = jsonrpc.CodeParse
	}
	if lost := c.queue.put(jsonrpc.AppendError(nil, id, jsonrpc.Errorf(code, "%v", why))); lost != nil {
		c.log.Warn("refusal not delivered", "error", lost)
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

// readLog logs the stderr of the process, line by line: the beginning of a line that is too
// long, and the number of lines beyond an [allowance].
func (c *conn) readLog() {
	r := bufio.NewReaderSize(c.stderr, maxLogLine)
	var said allowance
	defer func() {
		if said.left > 0 {
			c.early.say(slog.LevelWarn, "server stderr: lines left out", "lines", said.left)
		}
	}()
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
		c.said.add(line)
		pass, left := said.take(len(line), time.Now())
		if left > 0 {
			c.early.say(slog.LevelWarn, "server stderr: lines left out", "lines", left)
		}
		if pass {
			c.early.say(slog.LevelInfo, "server stderr", "stderr", line)
		}
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
			// The queued messages are lost, and their calls would wait forever.
			c.faults <- fault{why: fmt.Errorf("server process stopped reading its stdin: %w", err), patient: true}
			return
		}
		if cap(line) > readBuffer {
			line = nil
		}
	}
}
