package server

import (
	"net/http"

	"holdfast/jsonrpc"
)

// A Role is what a node does of the work of nodes that share a store. See
// docs/decisions/0028-doors-and-workers.md.
type Role int

// The roles.
const (
	RoleBoth   Role = iota // it takes clients' connections, and owns sessions
	RoleDoor               // it takes clients' connections, and sends their requests to other nodes
	RoleWorker             // it owns sessions, and takes requests of other nodes only
)

// refuseAtWorker answers a client that is connected to a worker, and reports whether it is one.
func (h *Handler) refuseAtWorker(w http.ResponseWriter) bool {
	if h.opts.Role != RoleWorker {
		return false
	}
	w.Header().Set("Retry-After", "1")
	h.answers.Reject(w, http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "this node is a worker and serves no clients: connect to a door"))
	return true
}
