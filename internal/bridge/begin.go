package bridge

import (
	"context"
	"log/slog"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// initialize begins a session, or resumes the one that the same host had.
func (b *bridge) initialize(m jsonrpc.Message, from origin) {
	// The bridge resumes requests: the host must not do so too.
	params := withoutIn(m.Params, "capabilities", protocol.CapabilityResumable)
	opener := fingerprintOf(m.Method, params)
	b.mu.Lock()
	b.opener = opener
	b.mu.Unlock()
	var old *sessionRecord
	if b.store != nil {
		var err error
		if old, err = b.store.open(opener); err != nil {
			slog.Warn("cannot keep the session: a restart will begin a new one", "error", err)
		}
	}
	if old != nil && b.resume(m, from, old) {
		return
	}
	b.move(eventOpened) // unless resuming has failed
	if x := from.exchange; x != nil && b.eras.legacy.known.answer(x.key, b.loginTime()) != nil {
		b.opts.BeginWithin = max(b.opts.BeginWithin, awayFor) // the host need not wait
	}
	conn, err := b.connect(nil)
	if err != nil {
		from.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))
		return
	}
	b.request(conn, mustParse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params)), from)
}

// initialized handles the host's notifications/initialized: messages that were held for the
// host are written. The server of a resumed session may have the notification already.
func (b *bridge) initialized(ctx context.Context, conn *client.Conn, m jsonrpc.Message) {
	b.mu.Lock()
	early := b.phase == opening || b.phase == resuming // the host may have the response just now
	b.mu.Unlock()
	if early {
		select {
		case <-b.answered:
		case <-ctx.Done():
		case <-b.stop:
		}
	}
	b.mu.Lock()
	resumed := b.phase == holding
	b.mu.Unlock()
	if !resumed || !conn.State().Ready {
		b.send(ctx, conn, m)
	}
	for {
		b.mu.Lock()
		held := b.held
		b.held = nil
		b.mu.Unlock()
		if len(held) == 0 && b.ready() {
			return
		}
		for _, h := range held {
			h.from.emit(h.m)
		}
	}
}

// ready ends holding, unless a message was held meanwhile: nothing may overtake it.
func (b *bridge) ready() bool {
	b.mu.Lock()
	empty := len(b.held) == 0
	if empty {
		b.moveLocked(eventReady)
	}
	b.mu.Unlock()
	return empty
}

// hold reports whether a message must not be written yet. It is held, or dropped if too many
// are held: the server gets an error for a request.
func (b *bridge) hold(from origin, m jsonrpc.Message) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != resuming && b.phase != holding {
		return false
	}
	size := len(m.Raw)
	for _, one := range b.held {
		size += len(one.m.Raw)
	}
	switch {
	case len(b.held) < maxHeld && size <= maxHeldBytes:
		b.held = append(b.held, heldMessage{from, m})
	case m.Kind == jsonrpc.Request:
		refusal := mustParse(jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "the client is not ready, and too many messages wait for it")))
		b.work.Go(func() { b.toServer(refusal, origin{}) })
	}
	return true
}
