package observe

// Figures are what a handler knows of itself, for observers that are asked and not only told. A nil function has none.
type Figures struct {
	// Memory returns how many bytes are used of each part of the memory budget, and may be.
	Memory func() []Memory
	Ready  func() error
	// AuditLost returns how many lines of the audit were lost.
	AuditLost func() uint64
	// Waiting returns how many calls wait for others to end, as a limit has them.
	Waiting func() int
}

// Memory is a part of the memory budget.
type Memory struct {
	Part       string // "kept", "in_flight" or "connections"
	Used, Most int64
}

// An Attachment makes the observer of each handler that it is given to. Its method is not exported, so that no program
// depends on this package; an [Attach] is one.
type Attachment interface {
	attach(Figures) (Observer, func(), error)
}

// Attach makes the observer of a handler, and what ends it.
type Attach func(Figures) (o Observer, detach func(), err error)

func (a Attach) attach(f Figures) (Observer, func(), error) { return a(f) }

// To makes an observer of a handler. The caller must call detach when the handler ends, unless there is an error.
func To(f Figures, a Attachment) (o Observer, detach func(), err error) { return a.attach(f) }
