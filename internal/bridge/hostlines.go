package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// maxLine bounds a message of the host, in bytes.
const maxLine = 16 << 20

// read handles the lines of the host until the host closes its end.
func (b *bridge) read(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		var long *longLineError
		line, err := readLine(r, maxLine)
		switch {
		case errors.As(err, &long):
			if long.answered {
				b.host.fail(long.id, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", maxLine))
			} else {
				slog.Warn("a notification of the host is too large", "max", maxLine)
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read from the host: %w", err)
		}
		if len(line) > 0 {
			b.readMessages(ctx, line)
		}
		if err != nil {
			return nil
		}
	}
}

// byteOrderMark comes before the first line that some shells write.
var byteOrderMark = []byte("\xef\xbb\xbf")

// readMessages handles one line of the host: a message, a batch, or several messages without anything between them.
// Each part that is not a message gets an error of its own; the other parts are handled.
func (b *bridge) readMessages(ctx context.Context, line []byte) {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, byteOrderMark))
	if len(line) == 0 {
		return
	}
	msgs, _, err := jsonrpc.ParseBody(line)
	if err == nil {
		for _, m := range msgs {
			b.fromHost(ctx, m)
		}
		return
	}
	if parts := partsOf(line); len(parts) > 0 {
		for _, part := range parts {
			if m, err := jsonrpc.Parse(part); err == nil {
				b.fromHost(ctx, m)
			} else {
				b.refuse(part, err)
			}
		}
		return
	}
	b.refuse(line, err)
}

// partsOf returns the members of a batch, or the objects that follow each other in a line. It returns nil if the line
// is not JSON, or is a single value that is not a batch.
func partsOf(line []byte) (parts []json.RawMessage) {
	if line[0] == '[' {
		if json.Unmarshal(line, &parts) != nil {
			return nil
		}
		return parts
	}
	d := json.NewDecoder(bytes.NewReader(line))
	for {
		var part json.RawMessage
		switch err := d.Decode(&part); {
		case errors.Is(err, io.EOF) && len(parts) > 1:
			return parts
		case err != nil || part[0] != '{': // something other than a message follows
			return nil
		}
		parts = append(parts, part)
	}
}

// refuse answers a text of the host that is not a message. A notification is only logged.
func (b *bridge) refuse(text []byte, why error) {
	code := jsonrpc.CodeInvalidRequest
	if errors.Is(why, jsonrpc.ErrParse) {
		code = jsonrpc.CodeParse
	}
	id, answered := rpc.RequestID(text)
	if !answered {
		slog.Warn("a notification of the host cannot be read", "error", why)
		return
	}
	b.host.fail(id, jsonrpc.Errorf(code, "%v", why))
}

// A longLineError says that a line is too long. It has the results of [rpc.RequestID] for the line.
type longLineError struct {
	id       []byte
	answered bool
}

// Error implements error.
func (*longLineError) Error() string { return "the line is too long" }

// readLine returns the next line without its end, in memory of its own. A line of more than
// limit bytes is read to its end, and is a [longLineError].
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	var long *rpc.IDScanner
	for {
		part, err := r.ReadSlice('\n')
		if long == nil && len(line)+len(part) > limit {
			long = &rpc.IDScanner{}
			long.Take(line)
			line = nil
		}
		if long == nil {
			line = append(line, part...)
		} else {
			long.Take(part)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if long != nil {
			id, answered := long.RequestID()
			return nil, &longLineError{id, answered}
		}
		for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
			line = line[:n-1]
		}
		return line, err
	}
}
