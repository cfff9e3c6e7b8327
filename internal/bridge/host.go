package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// maxLine bounds a message of the host, in bytes.
const maxLine = 16 << 20

// read handles what the host writes, until it closes its end.
func (b *bridge) read(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r, maxLine)
		switch {
		case errors.Is(err, errLongLine):
			b.host.fail(nil, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", maxLine))
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

// readMessages handles one line of the host: a message, or a batch of them.
func (b *bridge) readMessages(ctx context.Context, line []byte) {
	msgs, _, err := jsonrpc.ParseBody(line)
	if err != nil {
		code := jsonrpc.CodeInvalidRequest
		if errors.Is(err, jsonrpc.ErrParse) {
			code = jsonrpc.CodeParse
		}
		if id, answered := rpc.RequestID(line); answered {
			b.host.fail(id, jsonrpc.Errorf(code, "%v", err))
		}
		return
	}
	for _, m := range msgs {
		b.fromHost(ctx, m)
	}
}

var errLongLine = errors.New("the line is too long")

// readLine returns the next line without its end, in memory of its own. A line of more than
// limit bytes is read to its end, and is errLongLine.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > limit; !long {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if long {
			return nil, errLongLine
		}
		for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
			line = line[:n-1]
		}
		return line, err
	}
}

// A host is the writing end of the connection to the host. Its methods may be called
// concurrently.
type host struct {
	gone chan struct{} // closed when a write has failed

	mu sync.Mutex // held while a message is written: messages must not mix
	w  io.Writer  // nil when a write has failed
}

// write writes a message. It reports whether the host has taken it.
func (h *host) write(raw []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.w == nil {
		return false
	}
	line := append(append(make([]byte, 0, len(raw)+1), raw...), '\n')
	if _, err := h.w.Write(line); err != nil {
		slog.Error("cannot write to the host", "error", err)
		h.w = nil
		close(h.gone)
		return false
	}
	return true
}

// fail writes an error response to the request with an id.
func (h *host) fail(id []byte, e *jsonrpc.Error) { h.write(jsonrpc.AppendError(nil, id, e)) }
