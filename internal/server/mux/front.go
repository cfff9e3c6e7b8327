// Package mux serves connections that carry many exchanges at a time: WebSockets, and pairs of pipes (mux.go).
package mux

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/stdio"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
)

// A Front serves connections that carry many exchanges. Its methods may be called concurrently.
type Front struct {
	*copying.Responses // what holds for the streams of all connections
	Sessions           *session.Manager
	Starter            *exchange.Starter
	Modern             *modernfront.Front
	BodyTimeout        time.Duration // how long the first message of a WebSocket may take
	UpgradeAfter       time.Duration // how long an answer is waited for before its call is stored; 0: for ever
	MaxBody            int64         // bytes of a message

	// Meter returns what counts and bounds the messages of a WebSocket of a tenant.
	Meter func(tenant string, setDeadline func(time.Time) error) websocket.Meter
	// Permitted returns why the client of a connection with a context must not send messages, and the first that it must not send.
	Permitted func(ctx context.Context, msgs []jsonrpc.Message) (not *jsonrpc.Message, why error)
	// Asker returns who makes a request, whichever server it is for.
	Asker func(r *http.Request) string
	// Light reports whether requests start light.
	Light func(ctx context.Context, header http.Header, s *session.Session, msgs []jsonrpc.Message) bool

	// What serves an exchange of a connection. Serve serves it in its session, which is here; Place prepares its placement where
	// its session is not; Ask does what is needed of both, and returns the answer. ServeModern serves one of revision 2026-07-28.
	Serve       func(to *placement.Answer, x *exchange.Exchange) error
	Place       func(to *placement.Answer, x *exchange.Exchange) *placement.Placement
	Ask         func(x *exchange.Exchange) (answer []byte, err error)
	ServeModern func(to *placement.Answer, x *exchange.Exchange)
}

// Pipes serves a pair of pipes in a new session, which an exchange has begun, until nothing more is to be read or written: nil if the
// client has sent all, and got all. The error is [session.ErrClosing] if this node ends.
func (fr *Front) Pipes(ctx context.Context, x *exchange.Exchange, r io.Reader, w io.Writer) error {
	m := fr.newMux(x, whereabouts.KeyOf(x.Session.ID()), false)
	if err := m.standalone.listen(ctx); err != nil {
		return err
	}
	err := m.serve(ctx, stdio.New(ctx, r, w, fr.MaxBody, fr.WriteTimeout))
	if errors.Is(err, copying.ErrComeBack) {
		err = session.ErrClosing
	}
	return err
}
