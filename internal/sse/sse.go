// Package sse writes and reads server-sent events (WHATWG HTML, section 9.2). It knows nothing of
// HTTP or of MCP. Only a [Reader] does I/O.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// ContentType is the media type of an event stream.
const ContentType = "text/event-stream"

// Comment is a comment that keeps a connection alive.
const Comment = ": keep-alive\n\n"

// An Event is one event of a stream.
type Event struct {
	ID    string        // "" if the event has none
	Name  string        // the event field; "" means "message"
	Data  []byte        // the lines of the data field, joined by line feeds
	Retry time.Duration // how long to wait before connecting again; negative if absent
	// HasData tells an event with empty data from an event without data, which a browser would not
	// dispatch.
	HasData bool
}

// AppendMessage appends a message event. data must contain no line break; id
// may be empty.
func AppendMessage(dst []byte, id []byte, data []byte) []byte {
	dst = append(dst, "event: message\n"...)
	if len(id) > 0 {
		dst = append(dst, "id: "...)
		dst = append(dst, id...)
		dst = append(dst, '\n')
	}
	dst = append(dst, "data: "...)
	dst = append(dst, data...)
	return append(dst, "\n\n"...)
}

// AppendPriming appends an event that carries an id, empty data, and how long to wait before
// connecting again (SEP-1699). retry is sent in whole milliseconds, and left out if it is negative.
func AppendPriming(dst []byte, id []byte, retry time.Duration) []byte {
	dst = append(dst, "id: "...)
	dst = append(dst, id...)
	dst = append(dst, '\n')
	if retry >= 0 {
		dst = appendRetryLine(dst, retry)
	}
	return append(dst, "data: \n\n"...)
}

// AppendRetry appends an event that only says how long to wait before
// connecting again. No client dispatches it.
func AppendRetry(dst []byte, retry time.Duration) []byte {
	return append(appendRetryLine(dst, retry), '\n')
}

func appendRetryLine(dst []byte, retry time.Duration) []byte {
	dst = append(dst, "retry: "...)
	dst = strconv.AppendInt(dst, retry.Milliseconds(), 10)
	return append(dst, '\n')
}

// AppendEvent appends a named event, such as the endpoint event of revision 2024-11-05.
func AppendEvent(dst []byte, name, data string) []byte {
	dst = append(dst, "event: "...)
	dst = append(dst, name...)
	dst = append(dst, "\ndata: "...)
	dst = append(dst, data...)
	return append(dst, "\n\n"...)
}

// ErrTooLong is returned by [Reader.Next] for an event over the limit. After it only [Reader.Skip]
// can find the next event.
var ErrTooLong = errors.New("server-sent event is too long")

// A Reader reads events from a stream. It must not be used concurrently.
type Reader struct {
	r     *bufio.Reader
	max   int
	buf   []byte // of the last line
	first bool
	skipN bool // the last line ended in CR: an LF after it belongs to it

	// Room, if set, is called as an event grows beyond 4 KiB, with its size so far, in bytes. Next returns its error.
	Room func(size int) error
	left []byte // the data of an event that was not read to its end
}

// mostKept is the largest buffer for lines that a reader keeps, in bytes.
const mostKept = 64 << 10

// NewReader returns a reader of events of at most max bytes each, without comments and the ends of
// lines. Each comment may have max bytes, too.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 4096), max: max, first: true}
}

// Next returns the next event with a known field, and io.EOF at the end of the stream. An event
// that the end cuts off is dropped, as the standard requires. The caller may keep the event's Data.
func (r *Reader) Next() (Event, error) {
	ev := Event{Retry: -1}
	var seen bool
	size := 0
	for {
		line, err := r.line(r.max-size, size)
		if err != nil {
			r.left = ev.Data
			return Event{}, err
		}
		if len(line) == 0 {
			if seen {
				return ev, nil
			}
			size = 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if len(name) == 0 {
			continue // a comment; any number is allowed
		}
		size += len(line)
		value = bytes.TrimPrefix(value, []byte(" "))
		seen = ev.set(string(name), value) || seen
	}
}

// set sets one field, and reports whether the field is known and valid.
func (ev *Event) set(name string, value []byte) bool {
	switch name {
	case "data":
		switch {
		case ev.HasData:
			ev.Data = append(append(ev.Data, '\n'), value...)
		case len(value) > mostKept: // the buffer of such a line is not used again
			ev.Data = value
		default:
			ev.Data = append(ev.Data, value...)
		}
		ev.HasData = true
	case "id":
		if bytes.IndexByte(value, 0) >= 0 {
			return false
		}
		ev.ID = string(value)
	case "event":
		ev.Name = "message"
		if string(value) != ev.Name { // the common name is not copied for each event
			ev.Name = string(value)
		}
	case "retry":
		// ParseUint takes no sign, as the standard requires. A number that is too large for a
		// Duration is ignored.
		ms, err := strconv.ParseUint(string(value), 10, 40)
		if err != nil {
			return false
		}
		ev.Retry = time.Duration(ms) * time.Millisecond
	default:
		return false
	}
	return true
}

// line returns the next line without its end, which is LF, CR or CRLF. A line has at most max
// bytes, and a comment r.max. The bytes are valid until the next call.
func (r *Reader) line(max, before int) ([]byte, error) {
	if cap(r.buf) > mostKept {
		r.buf = nil
	}
	line := r.buf[:0]
	for {
		if _, err := r.r.Peek(1); err != nil {
			return nil, err
		}
		part, _ := r.r.Peek(r.r.Buffered())
		if r.skipN {
			r.skipN = false
			if part[0] == '\n' {
				_, _ = r.r.Discard(1)
				continue
			}
		}
		n := end(part)
		if len(line) == 0 && part[0] == ':' {
			max = r.max
		}
		if len(line)+n > max {
			r.buf = line
			return nil, ErrTooLong
		}
		if size := before + len(line) + n; r.Room != nil && size > roomless {
			if err := r.Room(size); err != nil {
				r.buf = line
				return nil, err
			}
		}
		line = append(line, part[:n]...)
		r.buf = line
		if n == len(part) {
			_, _ = r.r.Discard(n)
			continue
		}
		// line does not wait for the byte after a CR, which may come late.
		r.skipN = part[n] == '\r'
		_, _ = r.r.Discard(n + 1)
		if r.first {
			r.first = false
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		return line, nil
	}
}

// end returns how many bytes come before the first end of a line.
func end(part []byte) int {
	if n := bytes.IndexByte(part, '\n'); n >= 0 {
		part = part[:n]
	}
	if n := bytes.IndexByte(part, '\r'); n >= 0 {
		part = part[:n]
	}
	return len(part)
}

// roomless is the size up to which an event grows without a call of [Reader.Room], in bytes.
const roomless = 4 << 10

// Skip reads the rest of an event that Next has not read to its end, because it was too long or there was no room. It
// writes the event's data, from the beginning, to w, and ignores w's errors. Then Next goes on with the next event.
func (r *Reader) Skip(w io.Writer) error {
	s := skipper{w: w}
	_, _ = w.Write(r.left)
	s.write(r.buf)
	r.left, r.buf = nil, nil
	for {
		if _, err := r.r.Peek(1); err != nil {
			return err
		}
		part, _ := r.r.Peek(r.r.Buffered())
		if r.skipN {
			if r.skipN = false; part[0] == '\n' {
				_, _ = r.r.Discard(1)
				continue
			}
		}
		n := end(part)
		s.write(part[:n])
		if n == len(part) {
			_, _ = r.r.Discard(n)
			continue
		}
		r.skipN = part[n] == '\r'
		_, _ = r.r.Discard(n + 1)
		if s.line() {
			return nil
		}
	}
}

// A skipper writes the values of data lines.
type skipper struct {
	w     io.Writer
	begin []byte // of the line, at most as long as "data: "
	known bool
	data  bool
}

// write takes a part of a line.
func (s *skipper) write(b []byte) {
	const most = len("data: ")
	if !s.known {
		n := min(most-len(s.begin), len(b))
		s.begin = append(s.begin, b[:n]...)
		if b = b[n:]; len(s.begin) < most {
			return
		}
		s.look()
	}
	if s.data {
		_, _ = s.w.Write(b)
	}
}

// look finds out whether the line is a data line.
func (s *skipper) look() {
	var value []byte
	if value, s.data = bytes.CutPrefix(s.begin, []byte("data:")); s.data {
		_, _ = s.w.Write(bytes.TrimPrefix(value, []byte(" ")))
	}
	s.known = true
}

// line ends a line, and reports whether that ends the event.
func (s *skipper) line() (blank bool) {
	if !s.known {
		s.look()
	}
	blank = len(s.begin) == 0
	s.begin, s.known, s.data = s.begin[:0], false, false
	return blank
}
