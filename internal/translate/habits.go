package translate

import (
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// habits are what is known of whether the calls of a backend's servers ask clients something without saying which call
// that is for. Its methods may be called concurrently; the zero value is ready for use.
type habits struct {
	mu    sync.Mutex
	asks  bool
	quiet map[string]struct{} // what was called and has not asked, by [calledName]
	deaf  bool                // a ping was not answered
}

// mostQuiet bounds how many names are kept. They are the clients' choice.
const mostQuiet = 1000

// ask notes that the server has asked in a call.
func (h *habits) ask() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asks, h.quiet = true, nil
}

// known reports whether the server has asked in a call.
func (h *habits) known() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asks
}

// prove notes that a call has not asked.
func (h *habits) prove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asks || len(h.quiet) >= mostQuiet {
		return
	}
	if h.quiet == nil {
		h.quiet = make(map[string]struct{})
	}
	h.quiet[name] = struct{}{}
}

// proven reports whether what is called so has not asked before. Where there are too many names it is true.
func (h *habits) proven(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.quiet[name]
	return ok || len(h.quiet) >= mostQuiet
}

// noPing notes that the server has not answered a ping in time.
func (h *habits) noPing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaf = true
}

// answersNoPing reports whether a ping was not answered in time.
func (h *habits) answersNoPing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deaf
}

// calledName names what a request calls.
func calledName(m *jsonrpc.Message) string {
	name := jsonrpc.String(jsonrpc.Field(m.Params, protocol.NameField(m.Method)))
	return m.Method + " " + name[:min(len(name), jsonrpc.MaxName)]
}
