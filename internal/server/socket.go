package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
)

// subprotocol is what clients that know MCP may offer.
const subprotocol = "mcp"

// upgrades says whether a GET asks for a WebSocket.
func upgrades(r *http.Request) bool {
	for _, list := range r.Header["Upgrade"] {
		for name := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(name), "websocket") {
				return true
			}
		}
	}
	return false
}

// socketHere serves a WebSocket in a session of this node.
func (h *Handler) socketHere(w http.ResponseWriter, x *intent) error {
	s := x.session
	m := h.newMux(x.r, s, s.Key(), true)
	if err := m.goOn(x.r); err != nil {
		return err
	}
	h.accept(w, x.r, m, s.ID(), s.Tenant())
	return nil
}

// accept answers the handshake of a WebSocket, and serves that. id is the session's.
func (h *Handler) accept(w http.ResponseWriter, r *http.Request, m *mux, id, tenant string) {
	w.Header()[protocol.HeaderSession] = []string{id}
	p := &socket{timeout: h.opts.KeepAlive, wire: wire{timeout: h.opts.WriteTimeout}}
	p.pieces.intake = intake{flight: h.opts.Flight, tenant: tenant, patience: h.opts.BodyTimeout, deadline: p.expect}
	var err error
	p.ws, err = websocket.Accept(&upgrade{w, &p.wire}, r, &websocket.AcceptOptions{
		Subprotocols: []string{subprotocol},
		// The guard has checked Origin and Host, by the rules that hold for every door.
		InsecureSkipVerify: true,
	})
	if err != nil {
		m.close(err) // it is answered
		return
	}
	p.ws.SetReadLimit(h.opts.MaxBody)
	err = m.serve(m.client.values, p)
	h.logger.Debug("websocket ended", "session", m.key, "cause", err)
}

// goOn has the connection read the standalone stream from where its client is.
func (m *mux) goOn(r *http.Request) error {
	last := r.Header[protocol.HeaderLastEventID]
	if len(last) == 0 || last[0] == "" {
		return m.listen(r.Context())
	}
	at, err := m.aside.s.ParseEventID(last[0])
	if err == nil && at.Stream.Number != 0 {
		err = errOfCall
	}
	if err != nil {
		return err
	}
	return m.aside.read(r.Context(), at, m.tags())
}

// errOfCall refuses an event id at which no connection goes on.
var errOfCall = fmt.Errorf("%w (one of a call: go on with that by requests/resume)", session.ErrBadID)

// A socket is a WebSocket as a [pipe].
type socket struct {
	ws      *websocket.Conn
	wire    wire
	timeout time.Duration // for a sign of life

	pieces  pieces       // of the message that is being read
	closing atomic.Bool  // close has set the deadline
	reading atomic.Int64 // since when a message is waited for, in ticks; 0: it is not
	pinging atomic.Bool
	pings   sync.WaitGroup
}

// began is when ticks began.
var began = time.Now()

// ticks is the time, in nanoseconds, by a clock that nobody sets. It is never 0.
func ticks() int64 { return int64(time.Since(began)) + 1 }

// bodies are what messages are read into: a connection that waits holds none.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// read implements [pipe].
func (p *socket) read() ([]byte, error) {
	p.reading.Store(ticks())
	defer p.reading.Store(0)
	kind, r, err := p.ws.Reader(context.Background())
	if err != nil {
		return nil, fmt.Errorf("websocket: %w", err)
	}
	b := bodies.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= 2*mostText {
			b.Reset()
			bodies.Put(b)
		}
	}()
	_, err = b.ReadFrom(p.pieces.begin(r))
	p.pieces.done()
	_ = p.expect(time.Time{})
	if err != nil {
		return nil, fmt.Errorf("websocket: %w", err)
	}
	if kind != websocket.MessageText {
		return nil, errf(codeInvalid, "messages come in text frames")
	}
	return bytes.Clone(b.Bytes()), nil
}

// expect bounds the time until more comes; zero: there is no bound.
func (p *socket) expect(by time.Time) error {
	if p.closing.Load() {
		return nil
	}
	return p.wire.SetReadDeadline(by)
}

// write implements [pipe].
func (p *socket) write(lines []byte) error {
	p.wire.hold()
	for len(lines) > 0 {
		n := bytes.IndexByte(lines, '\n')
		if err := p.ws.Write(context.Background(), websocket.MessageText, lines[:n]); err != nil {
			_ = p.wire.release()
			return err
		}
		lines = lines[n+1:]
	}
	return p.wire.release()
}

// ping implements [pipe]. Who sends anything lives. While a message is being
// handled nobody reads, and nobody can tell; nor can they where this process itself
// stood still: then the next ping tells.
func (p *socket) ping() {
	if p.pinging.Swap(true) {
		return // the last one is still out
	}
	asked := ticks()
	p.pings.Go(func() {
		ctx, stop := context.WithTimeout(context.Background(), p.timeout)
		defer stop()
		err := p.ws.Ping(ctx)
		p.pinging.Store(false)
		since := p.reading.Load()
		late := time.Duration(ticks()-asked) > p.timeout+p.timeout/4
		if err != nil && !late && since != 0 && since < asked && p.wire.heard.Load() < asked {
			_ = p.ws.CloseNow()
		}
	})
}

// closeTimeout is how long the other end may take to say that it understands why a
// connection ends.
const closeTimeout = 5 * time.Second

// close implements [pipe]. It says why the connection ends, where that is known,
// and waits a little for the other end to say that it understands.
func (p *socket) close(why error, retry time.Duration) {
	code, reason := websocket.StatusInternalError, ""
	switch {
	case errors.Is(why, errComeBack):
		code, reason = websocket.StatusGoingAway, fmt.Sprintf("going away; retry: %d", retry.Milliseconds())
	case errors.Is(why, errSessionEnded):
		code, reason = websocket.StatusNormalClosure, why.Error()
	case errors.Is(why, errSilent):
		code, reason = websocket.StatusPolicyViolation, why.Error()
	case errors.Is(why, errNoRoom):
		code, reason = websocket.StatusTryAgainLater, "try again later: "+errNoRoom.Error()
	}
	p.closing.Store(true)
	// Who sends half of a frame is not waited for.
	_ = p.wire.SetReadDeadline(time.Now().Add(closeTimeout))
	_ = p.ws.Close(code, reason) // who has gone does not hear it
	p.pings.Wait()
}

// upgrade is the answer to a handshake, of which the WebSocket gets the connection
// as a wire.
type upgrade struct {
	http.ResponseWriter
	wire *wire
}

// WriteHeader names the session only to who gets a WebSocket.
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
	// Room for the head of a frame: what is larger goes through.
	return u.wire, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.wire, 128)), nil
}

// A wire is the connection below a WebSocket. What is written while it is held
// goes out in one write.
type wire struct {
	net.Conn
	timeout time.Duration // for a write
	heard   atomic.Int64  // when anything came last, in ticks

	mu   sync.Mutex
	held *bytes.Buffer
}

// Read implements [net.Conn].
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.heard.Store(ticks())
	}
	return n, err
}

// Write implements [net.Conn].
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		if w.held.Len()+len(b) <= mostText {
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

// flush writes what is held. w.mu is held.
func (w *wire) flush() error {
	if w.held.Len() == 0 {
		return nil
	}
	_, err := w.send(w.held.Bytes())
	w.held.Reset()
	return err
}

// hold gathers what is written from now on, until release writes it.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = bodies.Get().(*bytes.Buffer)
}

func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.flush()
	bodies.Put(w.held)
	w.held = nil
	return err
}
