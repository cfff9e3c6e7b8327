package session

import (
	"context"
	"errors"
	"log/slog"

	"holdfast/backend"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// In this file alone sessions call code of the library's user: the backend, and the
// functions of Options. A panic there becomes the error of the call that it
// concerns, and is handled as any other error, on any goroutine: the call no longer
// counts. A panic of Options.Safe is raised in its callers.

// errNoConn is for a backend that breaks its contract.
var errNoConn = errors.New("the backend returned neither a conversation nor an error")

// A userCode is the code of the library's user.
type userCode struct {
	backend backend.Backend
	onEnded func(webhook.Ended) bool
	safe    func(tool string) bool
	logger  *slog.Logger
}

func (u *userCode) openBackend(ctx context.Context, start backend.Start, sink backend.Sink) (conn backend.Conn, err error) {
	defer panics.Catch(&err, u.logger, "opening the server", "")
	conn, err = u.backend.Open(ctx, start, sink)
	if err == nil && conn == nil {
		err = errNoConn
	}
	return conn, err
}

func (u *userCode) deliverTo(conn backend.Conn, in backend.Inbound) (err error) {
	defer panics.Catch(&err, u.logger, "the server's handler of", messageName(&in))
	return conn.Deliver(in)
}

func messageName(in *backend.Inbound) string {
	if in.Kind == jsonrpc.Response {
		return "an answer"
	}
	return in.Method
}

func (u *userCode) closeConn(conn backend.Conn) (err error) {
	defer panics.Catch(&err, u.logger, "closing the server", "")
	return conn.Close()
}

// callOnEnded tells the user of an outcome. It reports whether no node has to tell it again.
func (u *userCode) callOnEnded(e webhook.Ended) (told bool) {
	var err error // is logged
	defer panics.Catch(&err, u.logger, "Options.Ended", "")
	return u.onEnded(e)
}

// saysRepeatable reports whether the operator says that a tool of a server may be called again.
func (m *Manager) saysRepeatable(server, tool string) bool {
	defer panics.Raise(m.logger, "Options.Safe")
	return m.safe != nil && m.safe(tool) || m.many != nil && m.many.SafeTool(server, tool)
}

// IsSafe implements [again.Call]. Where Options.Safe panics the tool is not safe: the call has begun, so it has to go on.
func (f flightCall) IsSafe(tool string) (safe bool) {
	var err error // is logged
	defer panics.Catch(&err, f.s.m.logger, "Options.Safe", "")
	return f.s.Tools.IsRepeatable(tool)
}

// panicked reports whether err is a panic of the user's code, which was logged.
func panicked(err error) bool {
	var p *panics.Error
	return errors.As(err, &p)
}

// notDelivered returns the error that answers a request which was not delivered, because of err.
func notDelivered(err error) *jsonrpc.Error {
	if p, ok := errors.AsType[*panics.Error](err); ok {
		return jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: %v", p)
	}
	return jsonrpc.Errorf(jsonrpc.CodeServer, "the server did not take the request: %v", err)
}

// notRedelivered is notDelivered for a request that was taken over from a lost
// node: it may have run there.
func notRedelivered(err error) *jsonrpc.Error {
	return outcomeUnknown("the node that ran this call was lost, and it could not be run again: %s", notDelivered(err).Message)
}

// outcomeUnknown returns the error that answers a request when it is not known whether it ran.
func outcomeUnknown(format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(protocol.CodeOutcomeUnknown, protocol.TextOutcomeUnknown+": "+format, args...)
}
