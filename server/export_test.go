package server

import "net/http"

// Gone says whether the client that a watched connection's request came from has
// left, as far as the network knows.
func (h *Handler) Gone(r *http.Request) bool { return h.watched.at(r).gone() }
