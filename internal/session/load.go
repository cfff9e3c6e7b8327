package session

// Load returns how many requests are in flight, and how many sessions are open.
func (m *Manager) Load() (calls, sessions int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return int(m.calls.Load()), len(m.sessions)
}
