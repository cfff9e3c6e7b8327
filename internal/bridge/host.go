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
	"sync"

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

// A host is the writing end of the connection to the host. Its methods may be called
// concurrently.
type host struct {
	gone chan struct{} // closed when a write has failed
	out  io.Writer     // w, for as long as the bridge lives

	mu    sync.Mutex // held while a message is written: messages must not mix
	w     io.Writer  // nil after a write has failed, or after end
	waits waits
}

// waits are the requests of the host that have no response yet.
type waits struct {
	mu   sync.Mutex
	ids  map[string]unanswered // by [jsonrpc.Key]
	idle chan struct{}         // closed when ids is empty; nil: method none was not called
}

// unanswered are the requests with the same id: a host may use an id twice.
type unanswered struct {
	id    []byte
	count int
}

// begin notes a request of the host.
func (w *waits) begin(id []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ids == nil {
		w.ids = make(map[string]unanswered)
	}
	key := string(jsonrpc.Key(id))
	w.ids[key] = unanswered{id, w.ids[key].count + 1}
}

// end notes that a request with an id has its response, or that the host does not want it.
func (w *waits) end(id []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(jsonrpc.Key(id))
	one, ok := w.ids[key]
	if one.count--; one.count > 0 {
		w.ids[key] = one
	} else if ok {
		delete(w.ids, key)
	}
	if len(w.ids) == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// has reports whether a request with an id has no response yet.
func (w *waits) has(id []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[string(jsonrpc.Key(id))].count > 0
}

// none returns a channel that is closed when no request waits. It is called once.
func (w *waits) none() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := make(chan struct{})
	if len(w.ids) == 0 {
		close(idle)
	} else {
		w.idle = idle
	}
	return idle
}

// all returns the ids of the requests that wait.
func (w *waits) all() (ids [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.ids {
		ids = append(ids, one.id)
	}
	return ids
}

// write writes a message. It reports whether the host has taken it.
func (h *host) write(raw []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.writeLocked(raw) {
		return false
	}
	if m, err := jsonrpc.Parse(raw); err == nil && m.Kind == jsonrpc.Response && m.ID != nil {
		h.waits.end(m.ID)
	}
	return true
}

// writeLocked is write with h.mu held.
func (h *host) writeLocked(raw []byte) bool {
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

// end writes an error response to each request that waits. Nothing is written after that.
func (h *host) end(e *jsonrpc.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !hasNoReader(h.out) { // else the write would end the process with SIGPIPE, before the rest is done
		for _, id := range h.waits.all() {
			h.writeLocked(jsonrpc.AppendError(nil, id, e))
		}
	}
	h.w = nil
}

// fail writes an error response to the request with an id.
func (h *host) fail(id []byte, e *jsonrpc.Error) { h.write(jsonrpc.AppendError(nil, id, e)) }
