package server

import (
	"context"
	"net"
	"net/http"
	"time"

	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/jsonrpc"
)

// Gone reports whether the client of a request on a watched connection has left, as far as the
// network knows.
func (h *Handler) Gone(r *http.Request) bool { return h.watched.At(r).Gone() }

// Tunnel wraps each connection to another node. It must be called before the first one is opened.
func (h *Handler) Tunnel(wrap func(net.Conn) net.Conn) {
	dial := h.nodes.Transport().DialContext
	h.nodes.Transport().DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			c = wrap(c)
		}
		return c, err
	}
}

// Unpool gives each request to another node a connection of its own.
func (h *Handler) Unpool() { h.nodes.Transport().DisableKeepAlives = true }

// HurryLost sets how long a client with an event id has to come back with it. It must be called before the first request.
func (h *Handler) HurryLost(patience time.Duration) { h.responses.Patience = patience }

// HasLeft reports whether another node has sent a notice that the client at an address left it.
func (h *Handler) HasLeft(from string) bool { return h.nodes.HasLeft(from, time.Time{}) }

// Decoded is the result of decoding a POST.
type Decoded struct {
	Modern bool // the POST is of revision 2026-07-28
	Taken  bool // the POST was not answered yet, and can be served
}

// DecodeModern decodes a POST.
func (h *Handler) DecodeModern(w http.ResponseWriter, r *http.Request, msgs []jsonrpc.Message, batch bool) Decoded {
	x := exchange.Exchange{HTTP: r, Msgs: msgs, Batch: batch}
	if !modernfront.IsModern(&x) {
		return Decoded{}
	}
	return Decoded{Modern: true, Taken: h.modern.Decode(w, &x)}
}

// AddFeature adds a feature. It must be called before the first request.
func (h *Handler) AddFeature(f modern.Feature) { h.modern.Features = append(h.modern.Features, f) }

// FillUntaken leaves no room for answers that a server does not take, until the handler ends.
func (h *Handler) FillUntaken() {
	for range exchange.MostUntaken {
		h.untaken.Hold(&jsonrpc.Message{})
	}
}
