package bridge

import (
	"log/slog"
	"time"
)

// changed is called when the record has changed. It saves the record soon, or at once if a
// request that must not run twice is being sent.
func (b *bridge) changed() {
	if b.sending.Load() > 0 {
		b.save()
		return
	}
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// saveChanges saves the record when it has changed or is old, until the bridge ends.
func (b *bridge) saveChanges() {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		select {
		case <-b.dirty:
		case <-renew.C:
		case <-b.stop:
			return
		}
		begun := time.Now()
		b.save()
		// A server can make the record long: saving takes at most a tenth of the time.
		select {
		case <-time.After(max(saveEvery, 9*time.Since(begun))):
		case <-b.stop:
			return
		}
	}
}

// save keeps the session and its calls as they are now.
func (b *bridge) save() {
	b.mu.Lock()
	ends := b.phase == leaving
	b.mu.Unlock()
	save := b.store.save
	if ends {
		save = b.store.saveLast
	}
	if err := save(b.record); err != nil {
		slog.Warn("state not saved", "error", err)
	}
}

// record returns the record of the session, or nil if no session or call can be continued.
func (b *bridge) record() *sessionRecord {
	b.mu.Lock()
	conn, opener, modern := b.conn, b.opener, b.era == modernEra
	b.mu.Unlock()
	if conn == nil {
		return nil
	}
	state := conn.State()
	if !modern && (state.Result == nil || state.Session == "" && state.Endpoint == "") {
		return nil
	}
	calls := b.requests.records(state.Calls)
	state.Calls = nil
	return &sessionRecord{fingerprint: opener, Alive: time.Now(), Modern: modern, Conn: state, Calls: calls}
}
