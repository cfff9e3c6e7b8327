package placement

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"

	"holdfast/internal/again"
)

// This file serves calls that clients make again at another node than the one that knows them: [again.Calls.Lend].

// headerLoan marks a request between nodes that asks for a stranded call, and replaces the visit. A node of an older build misses the
// visit, and refuses the request.
const headerLoan = "Holdfast-Loan"

// mostLoanQuery bounds the bytes of such a request's body, which has the client's request and its description.
const mostLoanQuery = 64 << 20

// Strand implements [again.Peers].
func (n *Nodes) Strand(keys []byte, name uint64) {
	n.notifyAll(&notice{Node: n.node.Name(), Stranded: keys, Call: name})
}

// Unstrand implements [again.Peers].
func (n *Nodes) Unstrand(node string, keys []byte, name uint64) {
	n.notifyAll(&notice{Node: cmp.Or(node, n.node.Name()), Returned: keys, Call: name})
}

// Fly implements [again.Peers].
func (n *Nodes) Fly(all []again.Flight) {
	n.notifyAll(&notice{Node: n.node.Name(), Flights: all})
}

// Borrow implements [again.Peers].
func (n *Nodes) Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+"/", bytes.NewReader(query))
	if err != nil {
		return nil, fmt.Errorf("node %q not asked: %w", node, err)
	}
	req.Header.Set(headerLoan, "1")
	res, err := n.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("node %s not asked: %w", node, err)
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, nil
	}
	return res.Body, nil
}

// lends serves a request that has headerLoan, and reports whether r is one.
func (n *Nodes) lends(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get(headerLoan) == "" {
		return false
	}
	query, err := io.ReadAll(io.LimitReader(r.Body, mostLoanQuery))
	if err != nil || !n.sessions.Flights().Lend(r.Context(), query, &flushed{w, http.NewResponseController(w)}) {
		w.WriteHeader(http.StatusNoContent)
	}
	return true
}

// flushed is a response that sends each write at once.
type flushed struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// Write implements [io.Writer].
func (f *flushed) Write(text []byte) (int, error) {
	n, err := f.w.Write(text)
	if err == nil {
		err = f.c.Flush()
	}
	return n, err
}
