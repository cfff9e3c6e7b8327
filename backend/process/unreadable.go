package process

import (
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// inFlight are the requests that the process has not answered.
type inFlight struct{ c *conn }

// Named implements [rpc.Requests].
func (f inFlight) Named(id []byte) rpc.Request {
	if e := f.c.requests.Named(id); e != nil {
		return unanswered{f.c, e}
	}
	return nil
}

// InFlight implements [rpc.Requests].
func (f inFlight) InFlight() []rpc.Request {
	var all []rpc.Request
	for _, e := range f.c.requests.All() {
		all = append(all, unanswered{f.c, e})
	}
	return all
}

// GivenUp implements [rpc.Requests].
func (f inFlight) GivenUp() bool { return f.c.requests.GivenUp() }

// unanswered is a request that the process has not answered.
type unanswered struct {
	c *conn
	e *rpc.Entry[struct{}]
}

// Unreadable implements [rpc.Request].
func (u unanswered) Unreadable(err error) {
	if !u.c.requests.EndEntry(u.e) {
		return
	}
	u.c.log.Warn("a request ends with an error", "id", string(u.e.ID), "error", err)
	if m, perr := jsonrpc.Parse(jsonrpc.AppendError(nil, u.e.ID, rpc.ErrorOf(err))); perr == nil {
		u.c.sink.Emit(nil, m)
	}
}
