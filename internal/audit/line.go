package audit

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"
	"unicode/utf8"

	"holdfast/internal/observe"
)

// Messages of lines.
const (
	messageCall    = "call"
	messageRefused = "refused"
)

// A line is about a call that has ended, a request that was refused, or the number of refused
// requests without a line.
type line struct {
	at          time.Time
	call        *observe.Call // nil: the line is about refused requests
	end         observe.End
	connections int
	bytesOut    int64
	arguments   []byte // raw JSON, or nil
	refused     *observe.Refused
	leftOut     int
}

// size returns about how many bytes of memory the line takes while it waits. A client may choose long texts.
func (x *line) size() int {
	const alone = 640 // a line, and its call
	n := alone + len(x.arguments)
	if x.call != nil {
		n += len(x.call.Principal) + len(x.call.Method) + len(x.call.Tool) + len(x.call.ID) + len(x.call.Trace.State)
	}
	return n
}

// message returns the line's message.
func (x *line) message() string {
	if x.call == nil {
		return messageRefused
	}
	return messageCall
}

// A form takes the attributes of a line. Names are plain words.
type form interface {
	text(name, value string)
	integer(name string, n int64)
	seconds(name string, d time.Duration)
	yes(name string)
	raw(name string, text json.RawMessage) // valid JSON
}

// write writes the attributes of the line.
func (x *line) write(to form) {
	text := func(name, value string) {
		if value != "" {
			to.text(name, value)
		}
	}
	switch {
	case x.call != nil:
		x.writeCall(to, text)
	case x.refused != nil:
		d := x.refused.Denied
		text("server", d.Server)
		text("principal", d.Principal)
		text("http_method", d.HTTP)
		text("method", d.Method)
		text("tool", d.Tool)
		text("reason", x.refused.Reason)
		to.integer("status", int64(x.refused.Status))
		text("remote", d.Remote)
	default:
		to.integer("left_out", int64(x.leftOut))
	}
}

// writeCall writes the attributes of a call's line. text leaves empty texts out.
func (x *line) writeCall(to form, text func(name, value string)) {
	c := x.call
	text("server", c.Server)
	text("principal", c.Principal)
	text("session", c.Session)
	text("method", c.Method)
	text("tool", c.Tool)
	text("outcome", x.end.Outcome.String())
	if x.end.Code != 0 {
		to.integer("code", int64(x.end.Code))
	}
	to.seconds("seconds", max(x.end.At.Sub(c.Began), 0))
	to.integer("connections", int64(x.connections))
	to.integer("bytes_in", int64(c.BytesIn))
	to.integer("bytes_out", x.bytesOut)
	if number := c.Number(); number != 0 {
		to.integer("stream", int64(number)) //nolint:gosec // streams are counted from 1
	}
	text("revision", c.Revision)
	if c.Again {
		to.yes("taken_over")
	}
	text("trace_id", c.TraceID())
	switch {
	case x.arguments == nil:
	case len(x.arguments) > mostArguments || !json.Valid(x.arguments):
		to.text("arguments", string(x.arguments[:min(len(x.arguments), mostArguments)]))
		to.yes("arguments_cut")
	default:
		to.raw("arguments", x.arguments)
	}
}

// A record is a line for a [slog.Handler].
type record []slog.Attr

func (r *record) text(name, value string)      { *r = append(*r, slog.String(name, value)) }
func (r *record) integer(name string, n int64) { *r = append(*r, slog.Int64(name, n)) }
func (r *record) seconds(name string, d time.Duration) {
	*r = append(*r, slog.Float64(name, d.Seconds()))
}
func (r *record) yes(name string) { *r = append(*r, slog.Bool(name, true)) }
func (r *record) raw(name string, text json.RawMessage) {
	*r = append(*r, slog.Any(name, text))
}

// A jsonLine is a line as [slog.JSONHandler] writes it.
type jsonLine []byte

// begin begins the line.
func (l *jsonLine) begin(at time.Time, message string) {
	*l = append(*l, `{"time":"`...)
	*l = at.AppendFormat(*l, time.RFC3339Nano)
	*l = append(*l, `","level":"INFO","msg":"`...)
	*l = append(append(*l, message...), '"')
}

// end ends the line.
func (l *jsonLine) end() { *l = append(*l, "}\n"...) }

func (l *jsonLine) name(name string) []byte {
	return append(append(append(*l, `,"`...), name...), `":`...)
}

func (l *jsonLine) text(name, value string)      { *l = appendText(l.name(name), value) }
func (l *jsonLine) integer(name string, n int64) { *l = strconv.AppendInt(l.name(name), n, 10) }
func (l *jsonLine) yes(name string)              { *l = append(l.name(name), "true"...) }

func (l *jsonLine) seconds(name string, d time.Duration) {
	const digits = 9
	b := strconv.AppendInt(l.name(name), int64(d/time.Second), 10)
	if part := d % time.Second; part != 0 {
		point := len(b)
		b = strconv.AppendInt(b, int64(time.Second+part), 10) // a 1, in the point's place, and the digits
		b[point] = '.'
		b = bytes.TrimRight(b[:point+1+digits], "0")
	}
	*l = b
}

func (l *jsonLine) raw(name string, text json.RawMessage) {
	b := bytes.NewBuffer(l.name(name))
	_ = json.Compact(b, text) // it is valid
	*l = b.Bytes()
}

// appendText appends a string.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // a string always marshals
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
