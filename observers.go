package holdfast

import "holdfast/internal/observe"

// observers returns those of the handler: one for each thing that listens to what happens to calls
// (docs/decisions/0026-observers.md); nil if there is none.
func (h *Handler) observers(*Options) (all observe.Observers) { return all }
