package mux

import (
	"context"
	"net/http"

	"holdfast/internal/placement"
	"holdfast/internal/reading"
	"holdfast/internal/server/copying"
	"holdfast/jsonrpc"
)

// watchRights has the connection look at the rights of its client when they may have changed.
func (m *mux) watchRights() (stop func()) {
	if m.client.rights == nil {
		return func() {}
	}
	return m.client.rights.Watch(func() { reading.Wake(m.ready) })
}

// isGone returns why a connection is closed whose client has no proof any more of who it is, or nil.
func (m *mux) isGone() error {
	if why := copying.Denial(m.client.rights); why != nil && why.Status == http.StatusUnauthorized {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}

// mayHear returns why nothing of a stream is written to the client any more, or nil.
func (m *mux) mayHear() error {
	if why := copying.Denial(m.client.rights); why != nil {
		return &placement.NotAllowed{Why: why.Text}
	}
	return nil
}

// hears is mayHear for an exchange with a context, which ends with the connection.
func (m *mux) hears(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := m.mayHear()
	if err != nil {
		m.stop(err)
	}
	return err
}

// refuses reports whether the client must not send messages. If so, those that are requests were answered, as a POST
// of them is.
func (m *mux) refuses(msgs []jsonrpc.Message) bool {
	var why error
	var not *jsonrpc.Message
	if denied := copying.Denial(m.client.rights); denied != nil {
		why, not = denied, &msgs[0]
	} else if not, why = m.front.Permitted(m.client.values, msgs); why == nil {
		return false
	}
	status, e := m.front.Answers.Explain(why)
	m.front.Answers.TellDenied(nil, status, why, m.front.Answers.Denied(m.request(), not, m.front.Asker(m.request())))
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			m.queue.text(jsonrpc.AppendError(nil, msgs[i].ID, e))
		}
	}
	return true
}
