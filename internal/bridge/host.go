package bridge

import (
	"io"
	"log/slog"
	"sync"

	"holdfast/jsonrpc"
)

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
