package server

import (
	"context"
	"errors"
	"io"
	"net/http"

	"holdfast/internal/panics"
	"holdfast/internal/server/exchange"
)

// ServeConn serves one client over a pair of pipes, such as a process's standard input and output: one JSON-RPC message on each
// line (2025-11-25, Transports, "stdio"), in either era. For clients of revisions with sessions it begins a session, which outlives
// the connection as on other transports: calls that are cut off go on, and the client can resume them on another connection (SEP-975).
//
// It returns nil when r has ended and all answers have been written; ctx's error when ctx is done; an error that wraps
// [session.ErrClosing] when the handler is drained and no call of the connection is in flight; and otherwise the error of reading
// or writing. It closes neither r nor w. A Read that is waiting when it returns ends with r, unless r has a read deadline; so does
// a Write that was given up after WriteTimeout.
//
// It may be called concurrently for different pipes. Principal and backends see
// ctx's values in the context of their request.
func (h *Handler) ServeConn(ctx context.Context, r io.Reader, w io.Writer) (err error) {
	defer panics.Catch(&err, h.logger, "a connection", "")
	if h.opts.Stateless {
		return errors.New("a stateless handler has no sessions, and cannot serve a pair of pipes")
	}
	if h.opts.Role != RoleBoth {
		return errors.New("a door has no sessions, and a worker no clients: neither can serve a pair of pipes")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	if err != nil {
		return err
	}
	x := exchange.Exchange{Purpose: exchange.ForSocket, HTTP: req, Principal: h.callers.principal(req)}
	if err := h.open(&x); err != nil {
		return err
	}
	s := x.Session
	defer func() {
		if s.Revision() == "" {
			h.sessions.End(s) // no client has initialized it
		}
	}()
	return h.mux.Pipes(ctx, &x, r, w)
}
