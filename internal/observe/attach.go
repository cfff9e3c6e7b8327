package observe

// Figures are the functions by which an observer asks a handler for figures that no event has. They may be nil.
type Figures struct {
	// Memory returns the bytes used of each part of the memory budget, and their bounds.
	Memory func() []Memory
	Ready  func() error
	// AuditLost returns how many records of the audit were lost.
	AuditLost func() uint64
	// Waiting returns how many calls wait for others to end, because of a limit.
	Waiting func() int
}

// Memory is a part of the memory budget.
type Memory struct {
	Part       string // "kept", "in_flight" or "connections"
	Used, Most int64
}

// An Attachment makes the observer of each handler that it is given to: an [Attach]. Its method is not exported, so
// that no program depends on this package.
type Attachment interface {
	attach(Figures) (Observer, func(), error)
}

// Attach makes the observer of a handler, and the function that ends it.
type Attach func(Figures) (o Observer, detach func(), err error)

func (a Attach) attach(f Figures) (Observer, func(), error) { return a(f) }

// To makes an observer of a handler. The caller must call detach when the handler ends, unless there is an error.
func To(f Figures, a Attachment) (o Observer, detach func(), err error) { return a.attach(f) }
