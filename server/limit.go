package server

import (
	"errors"
	"net/http"
	"time"
)

// finish writes the body of an answer to its end. The time that it may take is
// bounded, as that of a write to a stream.
func (h *Handler) finish(w http.ResponseWriter, body []byte) error {
	if len(body) <= surelySent {
		_, err := w.Write(body)
		return err
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(h.opts.WriteTimeout))
	if _, err := w.Write(body); err != nil {
		return err
	}
	err := c.Flush()
	if err == nil {
		_ = c.SetWriteDeadline(time.Time{}) // the connection may be used for more requests
	}
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// limit bounds the time that a request's body may take, whether it is read here
// or thrown away by net/http, unless the server bounds it itself.
func (h *Handler) limit(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 || serverLimits(r) {
		return
	}
	size := h.opts.MaxBody
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength)
	}
	most := h.opts.BodyTimeout + time.Duration(size>>16)*time.Second
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(most))
}

// unlimit is called when the body has been read: the connection goes on being
// read, to notice when the client hangs up.
func (h *Handler) unlimit(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && !serverLimits(r) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}

// serverLimits says whether the server limits the time of reading requests.
func serverLimits(r *http.Request) bool {
	s, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	return ok && s.ReadTimeout > 0
}
