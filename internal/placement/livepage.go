package placement

import (
	"net/http"

	"holdfast/jsonrpc"
)

// headerPage marks a request between nodes for the receiver's live page, and replaces the visit. A node
// of an older build misses the visit, and refuses the request with status 400.
const headerPage = "Holdfast-Page"

// AskPage sends a request to the live page of another node, [Options.Page]; the host of its URL is the
// node's name. The status is 400 if the node is of an older build, and 404 if it has no page.
func (n *Nodes) AskPage(r *http.Request) (*http.Response, error) {
	r.Header.Set(headerPage, "1")
	return n.transport.RoundTrip(r)
}

// pageAsked serves a request that has headerPage, and reports whether r is one.
func (n *Nodes) pageAsked(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get(headerPage) == "" {
		return false
	}
	if n.opts.Page == nil {
		n.opts.Host.Reject(w, http.StatusNotFound, jsonrpc.Errorf(jsonrpc.CodeServer, "this node has no live page"))
		return true
	}
	n.opts.Page.ServeHTTP(w, r)
	return true
}
