// Package mux serves connections that carry many exchanges at a time: WebSockets, and pairs of pipes (mux.go).
package mux

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/stdio"
	"holdfast/internal/server/streaming"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
)

// A Front serves connections that carry many exchanges. Its methods may be called concurrently.
type Front struct {
	*streaming.Responses // settings of the streams of all connections
	Sessions             *session.Manager
	Starter              *exchange.Starter
	Modern               *modernfront.Front
	Untaken              *exchange.Untaken
	BodyTimeout          time.Duration // how long the first message of a WebSocket may take
	UpgradeAfter         time.Duration // how long a call is light at most; 0: for ever
	MaxBody              int64         // bytes of a message

	// Meter returns a meter that counts and bounds the messages of a tenant's WebSocket.
	Meter func(tenant string, setDeadline func(time.Time) error) websocket.Meter
	// Permitted returns the first message that the client of a connection with a context must not send, and the reason; or nil.
	Permitted func(ctx context.Context, msgs []jsonrpc.Message) (not *jsonrpc.Message, why error)
	// Asker returns the name of the principal that makes a request, without the server.
	Asker func(r *http.Request) string
	// Light reports whether a call of requests starts light.
	Light func(ctx context.Context, header http.Header, s *session.Session, msgs []jsonrpc.Message) bool

	// Serve serves an exchange of a connection in its session, which is here. Place prepares its placement if the session is not
	// here. Ask does either, and returns the answer. ServeModern serves an exchange of revision 2026-07-28.
	Serve       func(to *placement.Answer, x *exchange.Exchange) error
	Place       func(to *placement.Answer, x *exchange.Exchange) *placement.Placement
	Ask         func(x *exchange.Exchange) (answer []byte, err error)
	ServeModern func(to *placement.Answer, x *exchange.Exchange)
}

// Pipes serves a pair of pipes in the new session of x. It returns nil when the client has sent all its messages and got all answers,
// [session.ErrClosing] if this node ends, else the error of ctx or of the pipes.
func (fr *Front) Pipes(ctx context.Context, x *exchange.Exchange, r io.Reader, w io.Writer) error {
	m := fr.newMux(x, whereabouts.KeyOf(x.Session.ID()), false)
	if err := m.standalone.listen(ctx); err != nil {
		return err
	}
	err := m.serve(ctx, stdio.New(ctx, r, w, fr.MaxBody, fr.WriteTimeout))
	if errors.Is(err, streaming.ErrComeBack) {
		err = session.ErrClosing
	}
	return err
}
