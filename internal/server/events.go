package server

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
)

// events is a connection that is answered with server-sent events.
type events struct {
	conn
	w     http.ResponseWriter
	c     *http.ResponseController
	wrote int // bytes
}

// newConn prepares an event stream; nothing is written yet.
func (h *Handler) newConn(w http.ResponseWriter, r *http.Request, s *session.Session) *events {
	v := h.visit(r)
	stays := v != nil && v.Stays
	if v != nil && v.here {
		v = nil
	}
	var below *watched
	if v == nil {
		below = h.watched.at(r)
	}
	if below != nil || v != nil && v.Watched {
		s.ConfirmArrival(r.RemoteAddr)
	}
	c := &events{
		conn: conn{
			h:       h,
			s:       s,
			ready:   make(chan struct{}, 1),
			ids:     !h.opts.Stateless,
			primes:  !h.opts.Stateless && protocol.Primes(s.Revision()),
			from:    r.RemoteAddr,
			watched: below,
			opened:  time.Now(),
			away:    v != nil,
			stays:   stays,
			heeded:  v != nil && v.Watched,
		},
		w: w,
		c: http.NewResponseController(w),
	}
	c.out = c
	return c
}

// open sends the header, and what comes before any message: the priming event,
// first, or a comment.
func (c *events) open(first []byte) error {
	// A server's timeouts are meant for requests; a stream has its own.
	_ = c.c.SetReadDeadline(time.Time{})
	head := c.w.Header()
	head["Content-Type"] = typeSSE
	head["Cache-Control"] = noCache
	head["X-Accel-Buffering"] = unbuffered // or nginx gathers what should be seen at once
	if c.away {
		head[headerAt] = []string{string(c.eventID(&c.sources[0]))}
	}
	c.w.WriteHeader(http.StatusOK)
	switch {
	case c.primes:
		first = c.prime(c.h.opts.Retry)
	case len(first) == 0:
		first = []byte(sse.Comment) // some proxies hold the header until there is a body
	}
	return c.write(first, false)
}

// prime returns an event that carries a new id for the place that the connection
// is at.
func (c *events) prime(retry time.Duration) []byte {
	id := c.eventID(&c.sources[0])
	id = append(id, '~')
	id = strconv.AppendUint(id, uint64(rand.Uint32()), 36)
	c.sentID = true
	return sse.AppendPriming(make([]byte, 0, 128), id, retry)
}

func (c *events) eventID(src *source) []byte {
	at := src.Cursor()
	return session.AppendEventID(make([]byte, 0, 64), src.name, at.Epoch, at.Seq)
}

// append implements [sink].
func (c *events) append(text, id, data []byte) []byte { return sse.AppendMessage(text, id, data) }

// surelySent is how many bytes of a response the system takes off our hands
// whether the client reads or not: so few need no bound on the time it takes.
const surelySent = 8 << 10

// write implements [sink]: it writes and flushes. The time that it may take is
// bounded: a client that does not read holds up nobody but itself, and not for
// ever. What is the last of a short response may wait for the response's end, to
// go out with it.
func (c *events) write(text []byte, last bool) error {
	c.written = time.Now()
	c.wrote += len(text)
	_ = c.c.SetWriteDeadline(c.written.Add(c.h.opts.WriteTimeout))
	if len(text) > 0 {
		if _, err := c.w.Write(text); err != nil {
			return err
		}
	}
	if last && c.wrote <= surelySent {
		return nil
	}
	if err := c.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// keep implements [sink].
func (c *events) keep() error { return c.write([]byte(sse.Comment), false) }

// leave implements [sink] (SEP-1699).
func (c *events) leave(retry time.Duration) error {
	if c.primes {
		return c.write(c.prime(retry), false)
	}
	return c.write(sse.AppendRetry(nil, retry), false)
}

// close ends the event stream, after the copying has ended with err. The
// connection below may be used for more requests.
func (c *events) close(err error) {
	c.conn.close(err)
	_ = c.c.SetWriteDeadline(time.Time{})
	moved := c.s.Moved() && !c.over()
	switch w := c.w.(type) {
	case *follow:
		w.moved, w.taken = moved, errors.Is(err, errTaken)
	case *strand:
		w.moved, w.taken = moved, errors.Is(err, errTaken)
	default:
		switch {
		case moved && c.away:
			panic(http.ErrAbortHandler) // the node goes on with it where the session is
		case c.stays && errors.Is(err, errTaken):
			c.w.Header().Set(http.TrailerPrefix+headerTaken, "1")
		}
	}
}
