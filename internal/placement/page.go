package placement

import (
	"net/http"

	"holdfast/jsonrpc"
)

// headerPage says that a request between nodes is for the live page of the node, in the place of a visit.
// A node of an older build finds no visit in it, and refuses it with status 400.
const headerPage = "Holdfast-Page"

// AskPage sends a request to the live page of another node, whose name is in the place of the host. What
// that node serves is [Options.Page]. The status is 400 if the node is of an older build, and 404 if it
// has no page.
func (n *Nodes) AskPage(r *http.Request) (*http.Response, error) {
	r.Header.Set(headerPage, "1")
	return n.transport.RoundTrip(r)
}

// pageAsked serves what another node asks the live page of this one, and reports whether it was that.
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
