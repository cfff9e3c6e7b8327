package server

import (
	"log/slog"
	"net"
	"net/http"

	"holdfast/internal/budget"
	"holdfast/internal/caller"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/guard"
	"holdfast/internal/server/watch"
	"holdfast/internal/server/websocket"
)

// The charges count the memory of requests that take more than their connection counts for (watch.Bound), against the address
// of their client. A plain request over a connection of its own takes no more.
type charges struct {
	memory  *budget.Connections // nil: nothing is counted
	guards  *guard.Guard
	answers *answering.Writer
	logger  *slog.Logger
}

// The charges in bytes, beside the connection's.
const (
	socketCost  = 24 << 10 // a WebSocket
	streamCost  = 12 << 10 // a stream of events that a GET opens
	sharedCost  = 16 << 10 // a request that shares a connection of HTTP/2
	proxiedCost = 20 << 10 // a request from a proxy, on a connection that is charged to no client
	fieldCost   = 96       // a header field of HTTP/2, beside its bytes
)

// carries returns the request with its client's address, and its charge in bytes.
func (c *charges) carries(r *http.Request) (_ *http.Request, cost int64) {
	of := c.guards.OfClient(r)
	if of != r {
		cost += proxiedCost
	}
	if r.ProtoMajor > 1 {
		cost += sharedCost + headerCost(r.Header)
	}
	if r.Method == http.MethodGet {
		if websocket.IsUpgrade(r) {
			return of, cost + socketCost
		}
		cost += streamCost
	}
	return of, cost
}

// headerCost returns the charge for a header, in bytes.
func headerCost(header http.Header) (cost int64) {
	for name, values := range header {
		for _, value := range values {
			cost += int64(len(name)+len(value)) + fieldCost
		}
	}
	return cost
}

// takes charges a request to its client's address. If it returns false, there was no room, and the request was answered.
func (c *charges) takes(w http.ResponseWriter, r *http.Request, cost int64) bool {
	if c.memory.Take(addressOf(r), cost) {
		return true
	}
	c.crowded(r.RemoteAddr)
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the body is not read
	}
	c.answers.Fail(w, budget.ErrConnections)
	return false
}

// gives takes the charge of a request back.
func (c *charges) gives(r *http.Request, cost int64) {
	c.memory.Add(addressOf(r), -cost)
}

// addressOf returns the tenant that a request is charged to before its principal is known: its address.
func addressOf(r *http.Request) string { return caller.TenantOf(caller.Principal{}, r.RemoteAddr) }

// bound returns the bound of the handler's connections, or nil. Connections of a trusted proxy are charged to no tenant,
// as they are of many clients.
func (c *charges) bound() *watch.Bound {
	if c.memory == nil {
		return nil
	}
	return &watch.Bound{
		Memory: c.memory,
		Tenant: func(remote net.Addr) string {
			if c.guards.TrustsProxy(remote.String()) {
				return ""
			}
			return caller.TenantOf(caller.Principal{}, remote.String())
		},
		Refused: func(remote net.Addr) { c.crowded(remote.String()) },
	}
}

// crowded logs that there was no room for a connection or a request on it.
func (c *charges) crowded(remote string) {
	c.logger.Warn("a connection was refused: those that are open take up what --memory has room for, in all or for one address (--max-share)", "address", remote)
}
