package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"holdfast/jsonrpc"
)

// mostLine bounds a message of the host, in bytes.
const mostLine = 16 << 20

// read takes what the host says until it says no more.
func (b *bridge) read(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r, mostLine)
		switch {
		case errors.Is(err, errLongLine):
			b.host.fail(nil, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", mostLine))
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read from the host: %w", err)
		}
		if len(line) > 0 {
			b.line(ctx, line)
		}
		if err != nil {
			return nil
		}
	}
}

// line takes one line of the host: a message, or a batch of them.
func (b *bridge) line(ctx context.Context, line []byte) {
	msgs, _, err := jsonrpc.ParseBody(line)
	if err != nil {
		code := jsonrpc.CodeInvalidRequest
		if errors.Is(err, jsonrpc.ErrParse) {
			code = jsonrpc.CodeParse
		}
		b.host.fail(nil, jsonrpc.Errorf(code, "%v", err))
		return
	}
	for _, m := range msgs {
		b.fromHost(ctx, m)
	}
}

var errLongLine = errors.New("line is too long")

// readLine returns the next line without its end; an empty one is none. What was
// too long has been read to its end. Each line has bytes of its own.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > most; !long {
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

// host is where messages for the host go. Its methods may be called concurrently.
type host struct {
	gone chan struct{} // closed when it takes no more

	mu sync.Mutex
	w  io.Writer // nil when it is gone
}

// write gives the host a message. It reports whether it was taken.
func (h *host) write(raw []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.w == nil {
		return false
	}
	line := append(append(make([]byte, 0, len(raw)+1), raw...), '\n')
	if _, err := h.w.Write(line); err != nil {
		slog.Error("the host does not listen any more", "error", err)
		h.w = nil
		close(h.gone)
		return false
	}
	return true
}

// fail answers the host's request id with an error.
func (h *host) fail(id []byte, e *jsonrpc.Error) { h.write(jsonrpc.AppendError(nil, id, e)) }
