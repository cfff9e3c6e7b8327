package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// turns are the server's requests on a call's stream, and the host's replies to them
// (SEP-1335, "Multi-turn requests for server-to-client requests"). A server that offers a
// stream URL may end the connection and wait for the replies: they are held until then, and
// sent there as a batch. Other replies are sent to the endpoint, one by one.
type turns struct {
	mu        sync.Mutex
	open      int           // requests without a reply
	held      [][]byte      // replies that the server has not waited for yet
	connected bool          // the stream is being read
	posting   int           // replies on their way to the endpoint
	posted    bool          // a reply has been posted since the server's last 204
	changed   chan struct{} // closed at the next change; nil: no goroutine waits

	// Guarded by call.mu.
	batch       []byte   // replies to be sent to the stream URL, as an array; nil: none
	unconfirmed [][]byte // replies that may not have arrived
	inBatch     int      // how many of those the last batch that was sent contains
}

// opened notes a request of the server.
func (t *turns) opened() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open++
}

// connect notes whether the call's stream is being read.
func (t *turns) connect(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connected = on
}

// settled notes that a request needs no reply any more. held is a reply to be held, or nil.
func (t *turns) settled(held []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open > 0 {
		t.open--
	}
	if held != nil {
		t.held = append(t.held, held)
	}
	t.wake()
}

// wake wakes the goroutines that wait for a change. t.mu is held.
func (t *turns) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// post counts n more replies that go to the endpoint, or fewer.
func (t *turns) post(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.posting += n
	t.posted = t.posted || n < 0
	t.wake()
}

// holdFor is how long a reply waits for a server that has given a stream URL to disconnect
// and ask for it. A server that keeps the connection open gets the reply unasked.
const holdFor = time.Second

// gather makes a batch of the replies that are held, if none is
// missing.
func (k *call) gather() bool {
	t := &k.turns
	k.mu.Lock()
	defer k.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open > 0 || len(t.held) == 0 || t.connected { // while connected, sendLate would miss the batch
		return false
	}
	k.setBatch(t.held)
	t.held = nil
	return true
}

// setBatch makes the next attempt send replies to the stream URL, with all that may not have arrived. k.mu is held.
func (k *call) setBatch(ready [][]byte) {
	t := &k.turns
	t.unconfirmed, t.inBatch = append(slices.Clip(t.unconfirmed), ready...), 0
	t.batch = []byte{'['}
	for i, raw := range t.unconfirmed {
		if i > 0 {
			t.batch = append(t.batch, ',')
		}
		t.batch = append(t.batch, raw...)
	}
	t.batch = append(t.batch, ']')
}

// sendHeld sends the replies of a call one by one if its server does not disconnect
// to ask for them.
func (s *serverRequests) sendHeld(k *call) {
	t := time.NewTicker(holdFor)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-k.ctx.Done():
			return
		}
		k.turns.mu.Lock()
		if len(k.turns.held) == 0 {
			k.turns.mu.Unlock()
			return
		}
		var ready [][]byte
		if k.turns.connected {
			ready, k.turns.held = k.turns.held, nil
		}
		k.turns.mu.Unlock()
		for _, raw := range ready {
			if err := s.sendReply(context.Background(), k, raw); err != nil {
				return
			}
		}
	}
}

// awaitReplies handles a 204: the server waits for replies, or has sent all messages. It
// waits until the host has replied to all requests.
func (k *call) awaitReplies() error {
	t := &k.turns
	for {
		t.mu.Lock()
		if t.open == 0 && t.posting == 0 {
			break
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-k.ctx.Done():
			return context.Cause(k.ctx)
		}
	}
	ready, posted := t.held, t.posted
	t.posted = false
	if k.kind == attemptStream {
		t.held = nil
	}
	t.mu.Unlock()
	if len(ready) == 0 && posted {
		return errNext // the reply arrived after the server had answered 204
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(ready) == 0 && t.batch != nil: // the goroutine of the last reply has set the batch
	case k.kind == attemptStream && len(ready)+len(t.unconfirmed) > 0:
		k.setBatch(ready) // with the replies that may not have arrived
	default:
		k.backoff.last = errors.New("the server says that it has sent everything, but the response did not arrive")
		k.ways.refuse(k.kind)
	}
	return errNext
}

// fromStart handles a 204 to a POST that asked for the events after an event id: the server says that there are
// none, and the response has not come. It reports whether to ask for the call from its start, which happens once.
func (k *call) fromStart() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := &k.ways
	if k.kind != attemptToken && k.kind != attemptAgain || w.received.last == "" || w.restarts {
		return false
	}
	w.received, w.restarts = position{}, true
	return true
}

// unsureBatch handles replies that may have arrived. They are not sent again before the
// server says that it still waits for them. A server that honours keys is a Holdfast, which
// takes each reply once: it gets them again.
func (k *call) unsureBatch() {
	k.mu.Lock()
	keys := k.session.keys
	if !keys {
		k.turns.batch = nil
	}
	k.mu.Unlock()
	if keys {
		k.c.requests.sendEach(k)
	}
}

// batchTaken notes that the server has taken the replies that were sent to the stream
// URL.
func (k *call) batchTaken() {
	defer k.settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.turns
	t.batch, t.unconfirmed = nil, t.unconfirmed[min(t.inBatch, len(t.unconfirmed)):]
	if t.inBatch = 0; len(t.unconfirmed) > 0 {
		k.setBatch(nil)
	}
}

// sendLate sends replies that were gathered while the stream was being requested: the stream
// is open now, and the replies need not wait for its next end.
func (k *call) sendLate() {
	k.mu.Lock()
	late := k.session.keys && k.turns.batch != nil
	k.mu.Unlock()
	if late {
		k.c.requests.sendEach(k)
	}
}

// sendEach sends the replies of a batch, which the stream URL has refused, to the endpoint.
func (s *serverRequests) sendEach(k *call) {
	k.mu.Lock()
	replies := k.turns.unconfirmed
	k.turns.batch, k.turns.unconfirmed, k.turns.inBatch = nil, nil, 0
	k.mu.Unlock()
	for _, raw := range replies {
		if err := s.sendReply(context.Background(), k, raw); err != nil {
			return
		}
	}
}

// settle lets State say how far the stream was received, if the server has all replies:
// another process must receive again a request that has no reply.
func (k *call) settle() {
	k.mu.Lock()
	t := &k.turns
	t.mu.Lock()
	open := t.open > 0 || t.posting > 0 || len(t.held) > 0
	t.mu.Unlock()
	if !open && len(t.unconfirmed) == 0 {
		k.ways.received.settle()
	}
	k.mu.Unlock()
	k.c.changed()
}
