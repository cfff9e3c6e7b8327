// Package websocket carries MCP's messages over a WebSocket, one in each text frame. It
// knows neither sessions nor the content of messages.
package websocket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/jsonrpc"
)

// Subprotocol is the subprotocol that clients of MCP may offer.
const Subprotocol = "mcp"

// Why a connection is closed (RFC 6455, section 7.4.1).
const (
	StatusNormalClosure   = websocket.StatusNormalClosure
	StatusGoingAway       = websocket.StatusGoingAway
	StatusPolicyViolation = websocket.StatusPolicyViolation
	StatusInternalError   = websocket.StatusInternalError
	StatusTryAgainLater   = websocket.StatusTryAgainLater
)

// Options of a connection. All fields are required.
type Options struct {
	MostBytes    int64         // of a message
	WriteTimeout time.Duration // how long a write may take
	PingTimeout  time.Duration // how long a sign of life may take
	// Meter returns a meter of the messages that are read. setDeadline sets the time by
	// which more of a message has to come; zero: no bound.
	Meter func(setDeadline func(time.Time) error) Meter
}

// A Meter counts and bounds messages while they are read, one after the other.
type Meter interface {
	// Begin returns the reader to read a message from, instead of r.
	Begin(r io.Reader) io.Reader
	// Done is called when the message was read.
	Done()
}

// A Conn is a WebSocket. Read may run beside the other methods, which run one after the other.
type Conn struct {
	ws    *websocket.Conn
	wire  wire
	opts  Options
	meter Meter

	closing atomic.Bool  // Close has set the deadline
	reading atomic.Int64 // since when Read waits, in ticks; 0: it does not run
	pinging atomic.Bool
	pings   sync.WaitGroup
}

// IsUpgrade reports whether a GET asks for a WebSocket.
func IsUpgrade(r *http.Request) bool {
	for _, list := range r.Header["Upgrade"] {
		for name := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(name), "websocket") {
				return true
			}
		}
	}
	return false
}

// Refuse answers a handshake that is invalid by itself, and reports whether it is.
func Refuse(w http.ResponseWriter, r *http.Request) bool {
	t := &trial{to: w, head: make(http.Header)}
	_, _ = websocket.Accept(t, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // a trial's Hijack fails at the latest
	return !t.good
}

// Accept answers a handshake, also if it returns an error. The caller must have
// checked Origin and Host.
func Accept(w http.ResponseWriter, r *http.Request, opts Options) (*Conn, error) {
	c := &Conn{opts: opts}
	c.wire.timeout = opts.WriteTimeout
	c.meter = opts.Meter(c.setDeadline)
	var err error
	c.ws, err = websocket.Accept(&upgrade{w, &c.wire}, r, &websocket.AcceptOptions{
		Subprotocols: []string{Subprotocol},
		// The caller has checked Origin and Host, by the rules that hold for all requests.
		InsecureSkipVerify: true,
	})
	if err != nil {
		return nil, err
	}
	c.ws.SetReadLimit(opts.MostBytes)
	return c, nil
}

// setDeadline bounds the time until more of a message comes; zero: there is no bound.
func (c *Conn) setDeadline(by time.Time) error {
	if c.closing.Load() {
		return nil
	}
	return c.wire.SetReadDeadline(by)
}

// buffers are for reading and writing messages: a connection that waits holds none.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostBuffered is how many bytes are gathered before they are written, and half the
// capacity of the largest buffer that is kept.
const mostBuffered = 64 << 10

// Read returns the next message, which the caller may keep. A *jsonrpc.Error says why
// a message was left out. After any other error the connection is unusable.
func (c *Conn) Read() ([]byte, error) {
	c.reading.Store(ticks())
	defer c.reading.Store(0)
	kind, r, err := c.ws.Reader(context.Background())
	if errors.Is(err, io.EOF) { // io.EOF would say that the client may still read
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("websocket: %w", err)
	}
	b := buffers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= 2*mostBuffered {
			b.Reset()
			buffers.Put(b)
		}
	}()
	_, err = b.ReadFrom(c.meter.Begin(r))
	c.meter.Done()
	_ = c.setDeadline(time.Time{})
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("websocket: %w", err)
	}
	if kind != websocket.MessageText {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "messages come in text frames")
	}
	return bytes.Clone(b.Bytes()), nil
}

// Write writes messages, each of which ends in a line feed.
func (c *Conn) Write(lines []byte) error {
	c.wire.hold()
	for len(lines) > 0 {
		n := bytes.IndexByte(lines, '\n')
		if err := c.ws.Write(context.Background(), websocket.MessageText, lines[:n]); err != nil {
			_ = c.wire.release()
			return err
		}
		lines = lines[n+1:]
	}
	return c.wire.release()
}

// Ping asks the client for a sign of life, and breaks the connection if none comes. It
// does not wait. Any bytes from the client are a sign of life. It does not break the
// connection if no Read was waiting, as while a message is handled, or if this process
// itself stood still: then the next ping decides.
func (c *Conn) Ping() {
	if c.pinging.Swap(true) {
		return // the last ping is still out
	}
	asked := ticks()
	c.pings.Go(func() {
		timeout := c.opts.PingTimeout
		ctx, stop := context.WithTimeout(context.Background(), timeout)
		defer stop()
		err := c.ws.Ping(ctx)
		c.pinging.Store(false)
		since := c.reading.Load()
		late := time.Duration(ticks()-asked) > timeout+timeout/4
		if err != nil && !late && since != 0 && since < asked && c.wire.received.Load() < asked {
			_ = c.ws.CloseNow()
		}
	})
}

// closeTimeout is how long the client may take to answer a close frame.
const closeTimeout = 5 * time.Second

// Close ends the connection, and with it Read. It sends a close frame, and waits up to
// closeTimeout for the client's.
func (c *Conn) Close(code websocket.StatusCode, reason string) {
	c.closing.Store(true)
	// A client that sends half of a frame is not waited for.
	_ = c.wire.SetReadDeadline(time.Now().Add(closeTimeout))
	_ = c.ws.Close(code, reason) // the client may have left
	c.pings.Wait()
}

// began is the zero of ticks.
var began = time.Now()

// ticks returns the monotonic time since began, in nanoseconds. It is never 0.
func ticks() int64 { return int64(time.Since(began)) + 1 }
