package session

// Hints returns how many keys of stranded calls other nodes have told.
func (m *Manager) Hints() int { return m.hints.Told() }

// HintsKept returns how many of them are kept.
func (m *Manager) HintsKept() int { return m.hints.Kept() }

// FlightsKept returns how many keys of calls that are in flight on other nodes are kept.
func (m *Manager) FlightsKept() int { return m.flying.far.Kept() }
