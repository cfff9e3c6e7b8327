package mux

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/server/websocket"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
)

// Socket serves a WebSocket in a session of this node. After an error the handshake was not answered.
func (fr *Front) Socket(w http.ResponseWriter, x *exchange.Exchange) error {
	s := x.Session
	m := fr.newMux(x, whereabouts.KeyOf(s.ID()), true)
	if err := m.standalone.resume(x.HTTP); err != nil {
		return err
	}
	fr.accept(w, x.HTTP, m, s.ID(), s.Tenant())
	return nil
}

// SocketElsewhere serves a WebSocket in a session on another node. After an error the
// handshake was not answered. The error is placement.ErrHere if the session has come here.
func (fr *Front) SocketElsewhere(w http.ResponseWriter, x *exchange.Exchange) error {
	if x.Last != "" && !ticket.IsStandalone(ticket.NameOf(x.Last)) {
		return errOfCall
	}
	x.Session = nil
	m := fr.newMux(x, x.Name(), true)
	refusal, err := m.listenRemote(x.Last)
	switch {
	case refusal != nil:
		m.close(err)
		refusal.WriteTo(w)
		return nil
	case err != nil:
		m.close(err)
		return err
	}
	fr.accept(w, x.HTTP, m, x.Secret, caller.TenantOf(x.Principal, x.HTTP.RemoteAddr))
	return nil
}

// accept answers the handshake of a WebSocket, and serves m on it. id is the session's.
func (fr *Front) accept(w http.ResponseWriter, r *http.Request, m *mux, id, tenant string) {
	w.Header()[protocol.HeaderSession] = []string{id}
	ws, err := websocket.Accept(w, r, websocket.Options{
		MostBytes:    fr.MaxBody,
		WriteTimeout: fr.WriteTimeout,
		PingTimeout:  fr.KeepAlive,
		Meter: func(setDeadline func(time.Time) error) websocket.Meter {
			return fr.Meter(tenant, setDeadline)
		},
	})
	if err != nil {
		m.close(err) // the handshake was answered
		return
	}
	err = m.serve(m.client.values, socketPipe{ws})
	fr.Logger.Debug("websocket ended", "session", m.key, "cause", err)
}

// errOfCall refuses a Last-Event-ID of a call: a connection resumes only the standalone stream.
var errOfCall = fmt.Errorf("%w (one of a call: go on with that by requests/resume)", ticket.ErrBadEvent)

// A socketPipe makes a WebSocket a [pipe].
type socketPipe struct{ *websocket.Conn }

// Close implements [pipe]. It sends a close frame with the reason, if why has one for the client.
func (p socketPipe) Close(why error, retry time.Duration) {
	code, reason := websocket.StatusInternalError, ""
	var denied *placement.NotAllowed
	switch {
	case errors.As(why, &denied):
		code, reason = websocket.StatusPolicyViolation, denied.Reason()
	case errors.Is(why, streaming.ErrComeBack):
		code, reason = websocket.StatusGoingAway, fmt.Sprintf("going away; retry: %d", retry.Milliseconds())
	case errors.Is(why, errSessionEnded):
		code, reason = websocket.StatusNormalClosure, why.Error()
	case errors.Is(why, errSilent):
		code, reason = websocket.StatusPolicyViolation, why.Error()
	case errors.Is(why, answering.ErrNoRoom):
		code, reason = websocket.StatusTryAgainLater, "try again later: "+answering.ErrNoRoom.Error()
	}
	p.Conn.Close(code, reason)
}
