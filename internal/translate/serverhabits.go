package translate

import (
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// habits records whether a backend's servers ask clients something without saying which call the question is for. Its
// methods may be called concurrently; the zero value is ready for use.
type habits struct {
	mu    sync.Mutex
	asks  bool
	quiet map[string]struct{} // names of calls that have not asked, by [calledName]
	deaf  bool                // a ping was not answered
}

// mostQuiet bounds how many names are kept, as clients choose them.
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

// prove notes that a call of this name has not asked.
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

// proven reports whether a call of this name has been seen not to ask. If there are too many names, it reports true.
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

// calledName returns the method of a request with the name of the tool, prompt or resource that it asks for.
func calledName(m *jsonrpc.Message) string {
	name := jsonrpc.String(jsonrpc.Field(m.Params, protocol.NameField(m.Method)))
	return m.Method + " " + name[:min(len(name), jsonrpc.MaxName)]
}
