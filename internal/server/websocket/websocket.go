// Package websocket carries MCP's messages over a WebSocket, one in each text frame. It
// knows neither sessions nor what the messages say.
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

// Subprotocol is what clients that know MCP may offer.
const Subprotocol = "mcp"

// Why a connection is closed (RFC 6455, section 7.4.1).
const (
	StatusNormalClosure   = websocket.StatusNormalClosure
	StatusGoingAway       = websocket.StatusGoingAway
	StatusPolicyViolation = websocket.StatusPolicyViolation
	StatusInternalError   = websocket.StatusInternalError
	StatusTryAgainLater   = websocket.StatusTryAgainLater
)

// Options say how a connection behaves. All fields are required.
type Options struct {
	MostBytes    int64         // of a message
	WriteTimeout time.Duration // how long a write may take
	PingTimeout  time.Duration // how long a sign of life may take
	// Meter counts and bounds the messages that are read. setDeadline sets by when more
	// of a message has to come; zero: there is no bound.
	Meter func(setDeadline func(time.Time) error) Meter
}

// A Meter counts and bounds one message after the other while it is read.
type Meter interface {
	// Begin returns what a message is to be read from, instead of r.
	Begin(r io.Reader) io.Reader
	// Done is called when the message was read.
	Done()
}

// A Conn is a WebSocket. Read may run beside the other methods; those run one after the
// other.
type Conn struct {
	ws    *websocket.Conn
	wire  wire
	opts  Options
	meter Meter

	closing atomic.Bool  // Close has set the deadline
	reading atomic.Int64 // since when a message is waited for, in ticks; 0: it is not
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

// Refuse answers a handshake that has a fault of its own, and reports whether it has one.
func Refuse(w http.ResponseWriter, r *http.Request) bool {
	t := &trial{to: w, head: make(http.Header)}
	_, _ = websocket.Accept(t, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // which a trial refuses at the latest
	return !t.good
}

// Accept answers a handshake. After an error the request is answered. Origin and Host
// must have been checked.
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

// buffers are what messages are read into and written from: a connection that waits holds
// none.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostBuffered is how many bytes are gathered before they are written, and half of what
// a buffer may hold that is kept.
const mostBuffered = 64 << 10

// Read returns the next message, which is the caller's to keep. A *jsonrpc.Error says
// that one was left out, and why. After any other error the connection is of no use.
func (c *Conn) Read() ([]byte, error) {
	c.reading.Store(ticks())
	defer c.reading.Store(0)
	kind, r, err := c.ws.Reader(context.Background())
	if errors.Is(err, io.EOF) { // not the io.EOF of a pipe, whose client may still read
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

// Ping asks the other end for a sign of life, and breaks the connection if none comes. It
// does not wait. Who sends anything lives. While a message is being handled nobody reads,
// and nobody can tell; nor can they where this process itself stood still: then the next
// ping tells.
func (c *Conn) Ping() {
	if c.pinging.Swap(true) {
		return // the last one is still out
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

// closeTimeout is how long the other end may take to say that it understands why a
// connection ends.
const closeTimeout = 5 * time.Second

// Close ends the connection, and with it Read. It says why, and waits a little for the
// other end to say that it understands.
func (c *Conn) Close(code websocket.StatusCode, reason string) {
	c.closing.Store(true)
	// Who sends half of a frame is not waited for.
	_ = c.wire.SetReadDeadline(time.Now().Add(closeTimeout))
	_ = c.ws.Close(code, reason) // who has gone does not hear it
	c.pings.Wait()
}

// began is when ticks began.
var began = time.Now()

// ticks is the time, in nanoseconds, by a clock that nobody sets. It is never 0.
func ticks() int64 { return int64(time.Since(began)) + 1 }
