package placement

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// upgrade joins a client's connection with the connection on which another node has
// accepted a WebSocket: it copies bytes both ways, until either ends. When that node is
// lost, or this node is drained, the client gets a close frame that tells it to come back.
func (p *Placement) upgrade(res *http.Response) error {
	far, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return fmt.Errorf("no connection below a %d", res.StatusCode)
	}
	head := p.w.Header()
	head["Connection"], head["Upgrade"] = []string{"Upgrade"}, res.Header["Upgrade"]
	p.w.WriteHeader(http.StatusSwitchingProtocols)
	near, buffered, err := http.NewResponseController(p.w).Hijack()
	if err != nil {
		return fmt.Errorf("websocket not taken over: %w", err)
	}
	_ = near.SetDeadline(time.Time{})
	b := &bridge{near: near, far: far, timeout: p.nodes.opts.WriteTimeout}
	defer p.nodes.enterBridge(b)()
	defer context.AfterFunc(p.req.HTTP.Context(), func() {
		var why *NotAllowed
		if errors.As(context.Cause(p.req.HTTP.Context()), &why) {
			b.leave(websocket.StatusPolicyViolation, why.Reason())
		}
	})()
	over := make(chan struct{})
	go func() {
		defer close(over)
		// The client's bytes, maybe from amid a frame, are not parsed.
		_, _ = io.Copy(far, buffered.Reader)
		_ = far.Close() // which ends down
	}()
	b.down()
	_ = near.Close()
	_ = far.Close()
	<-over
	return nil
}

// NotAllowed is why a client's connection may not stay open: the [context.Cause] of its
// requests' end.
type NotAllowed struct{ Why string }

// Error implements error.
func (e *NotAllowed) Error() string { return e.Why }

// Reason returns as much of Why as fits into a WebSocket's close frame (RFC 6455, section 5.5).
func (e *NotAllowed) Reason() string { return strings.ToValidUTF8(e.Why[:min(len(e.Why), 123)], "") }

// A bridge joins a client's WebSocket with another node.
type bridge struct {
	near    net.Conn
	far     io.ReadWriteCloser
	timeout time.Duration // for a write

	mu    sync.Mutex // held while a frame is written
	frame frame      // the state after the last byte written to the client
	ended bool       // no more is written
}

// down copies the other node's bytes to the client, until the connection to either ends.
func (b *bridge) down() {
	chunk := chunks.Get().(*[16 << 10]byte)
	defer chunks.Put(chunk)
	for {
		n, err := b.far.Read(chunk[:])
		if !b.write(chunk[:n]) {
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) || !b.frame.closed {
				b.leave(websocket.StatusServiceRestart, "the node was lost; come back at once")
			}
			return
		}
	}
}

// write writes the other node's bytes to the client, and reports whether it could.
func (b *bridge) write(text []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.frame.follow(text)
	_ = b.near.SetWriteDeadline(time.Now().Add(b.timeout))
	_, err := b.near.Write(text)
	return err == nil
}

// leave ends the bridge. It writes a close frame with the reason first, unless
// the bytes before it end amid a frame.
func (b *bridge) leave(code websocket.StatusCode, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended && !b.frame.closed && b.frame.whole() {
		text := append([]byte{0x88, byte(2 + len(reason))}, byte(code>>8), byte(code))
		_ = b.near.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = b.near.Write(append(text, reason...)) // the client may have gone
	}
	b.ended = true
	_ = b.far.Close()
}

// A frame follows a server's frames (RFC 6455, section 5.2), to know whether
// the bytes so far end with a whole frame.
type frame struct {
	head   [10]byte
	got    int    // bytes of the head
	rest   uint64 // bytes of the payload that are still to come
	closed bool   // a close frame has begun
}

func (f *frame) whole() bool { return f.got == 0 && f.rest == 0 }

func (f *frame) follow(text []byte) {
	for len(text) > 0 {
		if f.rest > 0 {
			n := min(f.rest, uint64(len(text)))
			f.rest -= n
			text = text[n:]
			continue
		}
		f.head[f.got] = text[0]
		f.got++
		text = text[1:]
		size := uint64(f.head[1] & 0x7f)
		switch {
		case f.got < 2:
			continue
		case size == 126 && f.got < 4, size == 127 && f.got < 10:
			continue
		case size == 126:
			size = uint64(binary.BigEndian.Uint16(f.head[2:4]))
		case size == 127:
			size = binary.BigEndian.Uint64(f.head[2:10])
		}
		f.closed = f.closed || f.head[0]&0x0f == 0x8
		f.rest, f.got = size, 0
	}
}
