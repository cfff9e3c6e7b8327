package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows answers stored calls with plain JSON ([ResponseJSON]): the call is on
// record before it runs, and its answer is before it is told.

// A record is the call that a POST is answered with.
type record struct {
	begun
	msgs  []jsonrpc.Message
	batch bool
}

// errSpoken says that the server said something before its response.
var errSpoken = errors.New("more than responses was said")

// plain answers a POST with the responses of a stored call, as soon as it has ended; or
// with its stream, if that has anything else in it. An error says that nothing was
// answered.
func (h *Handler) plain(w http.ResponseWriter, r *http.Request, x *record) error {
	c := h.newConn(w, r, x.session)
	if err := c.read(r.Context(), stream.Cursor{Stream: stream.ID{Number: x.number}}); err != nil {
		if x.call != nil {
			return h.undelivered(w, x.call, x.msgs, err)
		}
		return err
	}
	x.deliver(context.WithoutCancel(r.Context()), x.msgs, r.Header)
	answers, err := c.responses(r.Context())
	switch {
	case err == nil:
		if err = h.answer(w, answers, x.batch); err == nil {
			err = c.tellAll(r.Context())
		}
	case errors.Is(err, errSpoken):
		c.link()
		if err = c.open(nil); err == nil {
			err = c.copy(r.Context())
		}
		c.close(err)
		return nil
	case r.Context().Err() != nil:
	default:
		c.conn.close(nil)
		return h.interrupted(w, r, x, err)
	}
	c.conn.close(err)
	return nil
}

// responses waits for the end of the one stream that the connection reads and returns
// the responses in it. It goes back to where the stream begins, with errSpoken, when
// there is anything else: a message of the server's, or a reason to end the connection.
func (c *conn) responses(ctx context.Context) (answers [][]byte, err error) {
	src := &c.sources[0]
	begin := src.Cursor()
	var buf [8]stream.Entry
	for {
		gone := src.Gone() // asked before, so that what was said until then is read
		entries, err := src.Next(ctx, buf[:0])
		for i := range entries {
			e := &entries[i]
			src.ended = src.ended || e.Last
			switch {
			case len(e.Data) == 0: // the end of a call that was cancelled
			case isResponse(e.Data):
				answers = append(answers, e.Data)
			case jsonrpc.String(jsonrpc.Field(e.Data, "method")) == protocol.MethodResumePolicy: // of no use with an answer
			default:
				src.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
				src.ended = false
				return nil, errSpoken
			}
		}
		src.ended = src.ended || errors.Is(err, io.EOF)
		switch {
		case src.ended:
			return answers, nil
		case err != nil:
			return nil, err
		case len(entries) > 0:
			continue
		case gone && c.s.Moved():
			return nil, session.ErrMoved
		case gone || src.HasDisconnectRequest():
			src.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
			return nil, errSpoken
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// isResponse says whether a message is the response to a request.
func isResponse(data []byte) bool {
	return jsonrpc.Field(data, "id") != nil && jsonrpc.Field(data, "method") == nil
}

// tellAll notes that all of the one stream was written. If the client had left before,
// it was not: then the error says that the connection broke.
func (c *conn) tellAll(ctx context.Context) error {
	if err := c.left(ctx); err != nil {
		return err
	}
	if c.heeded && c.h.peers.hasLeft(c.from, c.opened) {
		return errLeft
	}
	src := &c.sources[0]
	src.Delivered()
	c.finished(src, false)
	src.told = true
	return nil
}

// interrupted answers a POST whose call can't be read to its end here: as a rule its
// session has left this node. Whoever sent the POST on asks for the call, by the name
// that it has, where the session is now.
func (h *Handler) interrupted(w http.ResponseWriter, r *http.Request, x *record, err error) error {
	v := h.visit(r)
	switch moved := errors.Is(err, session.ErrMoved); {
	case moved && v != nil && v.here:
		v.moved = true
	case moved && v != nil:
		panic(http.ErrAbortHandler)
	case moved && x.call != nil && x.call.Retriable():
		return session.ErrMoved
	default:
		h.logger.Warn("call not read to its end", "session", x.session.Name(), "error", err)
		h.failErrand(w, fmt.Errorf("%w: %w", errUnknown, err), &errand{msgs: x.msgs, batch: x.batch})
	}
	return nil
}

// undelivered ends a call that has begun, and whose stream can't be read: it does not
// run. The error says that nothing was answered.
func (h *Handler) undelivered(w http.ResponseWriter, call *session.Call, msgs []jsonrpc.Message, err error) error {
	call.Abort(msgs, errf(jsonrpc.CodeServer, "not delivered: its stream cannot be read: %v", err))
	if errors.Is(err, session.ErrMoved) {
		return err
	}
	h.fail(w, err)
	return nil
}
