package websocket

import (
	"bufio"
	"bytes"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/protocol"
)

// upgrade is the response to a handshake. The WebSocket gets its connection as a wire.
type upgrade struct {
	http.ResponseWriter
	wire *wire
}

// WriteHeader removes the session's id from a response that is not a WebSocket.
func (u *upgrade) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		u.Header().Del(protocol.HeaderSession)
	}
	u.ResponseWriter.WriteHeader(status)
}

// Hijack implements [http.Hijacker].
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.wire.Conn = c
	// Room for the head of a frame: larger writes are not buffered.
	return u.wire, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.wire, 128)), nil
}

// A trial is a response to try a handshake with: the client gets it only if it refuses
// the handshake.
type trial struct {
	to   http.ResponseWriter
	head http.Header
	good bool
}

// Header implements [http.ResponseWriter].
func (t *trial) Header() http.Header { return t.head }

// WriteHeader implements [http.ResponseWriter].
func (t *trial) WriteHeader(status int) {
	if t.good = t.good || status == http.StatusSwitchingProtocols; !t.good {
		maps.Copy(t.to.Header(), t.head)
		t.to.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (t *trial) Write(text []byte) (int, error) {
	if t.good {
		return len(text), nil
	}
	return t.to.Write(text)
}

// Hijack implements [http.Hijacker].
func (t *trial) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrHijacked }

// A wire is the connection below a WebSocket. Bytes that are written while it
// is held go out in one write.
type wire struct {
	net.Conn
	timeout  time.Duration // for a write
	received atomic.Int64  // when the last bytes came, in ticks

	mu   sync.Mutex
	held *bytes.Buffer
}

// Read implements [net.Conn].
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.received.Store(ticks())
	}
	return n, err
}

// Write implements [net.Conn].
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		if w.held.Len()+len(b) <= mostBuffered {
			return w.held.Write(b)
		}
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	return w.send(b)
}

func (w *wire) send(b []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(w.timeout))
	return w.Conn.Write(b)
}

// flush writes the held bytes. w.mu is held.
func (w *wire) flush() error {
	if w.held.Len() == 0 {
		return nil
	}
	_, err := w.send(w.held.Bytes())
	w.held.Reset()
	return err
}

// hold gathers the bytes of later writes, until release writes them.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = buffers.Get().(*bytes.Buffer)
}

func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.flush()
	buffers.Put(w.held)
	w.held = nil
	return err
}
