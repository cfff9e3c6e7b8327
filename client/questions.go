package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/jsonrpc"
)

// A question is a request of the server that the host has yet to answer.
type question struct {
	call *call // on whose stream it came; nil: on the standalone one
	// id is the server's, where the host knows the question by another: it may still
	// answer an older one under this.
	id []byte
}

// mostStale bounds how many questions are remembered that nobody waits for any more
// and that the host may yet answer.
const mostStale = 1000

// mostAsked bounds how many questions of the server wait: for the host to answer, or for
// the server to take the answer. mostAnswering bounds how many answers are being sent at
// a time: each may take a connection of its own.
const (
	mostAsked     = 10_000
	mostAnswering = 256
)

// forget forgets a question that nobody waits for any more. c.mu is held.
func (c *Conn) forget(key string) {
	delete(c.asked, key)
	if c.stale == nil || len(c.stale) >= mostStale {
		c.stale = make(map[string]struct{})
	}
	c.stale[key] = struct{}{}
}

// forgetAll forgets the questions of a call. c.mu is held.
func (c *Conn) forgetAll(k *call) {
	for id, q := range c.asked {
		if q.call == k {
			c.forget(id)
		}
	}
}

// turns are a call's questions and the host's answers to them (SEP-1335,
// "Multi-turn requests for server-to-client requests").
type turns struct {
	mu        sync.Mutex
	asked     int      // questions without an answer
	ready     [][]byte // answers that wait for the server to ask for them
	connected bool     // the stream is being read
	posting   int      // answers on their way to the endpoint
	posted    bool     // one has arrived there since the server last said that it waits
	changed   chan struct{}

	// sending are answers for the stream URL, as an array; nil if there are none, or if
	// they were sent and nobody knows whether they arrived. Guarded by call.mu, as what
	// follows.
	sending []byte
	sent    [][]byte // those of which it is not known that they arrived
	flown   int      // how many of them have been sent
}

// connect notes whether the call's stream is being read.
func (t *turns) connect(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connected = on
}

// ask gives a question of the server to the host.
func (c *Conn) ask(k *call, m jsonrpc.Message) {
	key := string(jsonrpc.Key(m.ID))
	q := &question{call: k}
	c.mu.Lock()
	if _, old := c.stale[key]; old {
		q.id, m.ID = m.ID, c.newID()
		m.Raw = m.WithID(m.ID)
		key = string(m.ID)
	}
	_, again := c.asked[key]
	if !again && len(c.asked)+c.answers >= mostAsked {
		told := c.crowded
		c.crowded = true
		c.mu.Unlock()
		if !told {
			c.logger.Warn("requests of the server are dropped: too many of them wait for an answer", "most", mostAsked)
		}
		return
	}
	c.asked[key] = q
	c.mu.Unlock()
	if again {
		return // the host has it
	}
	if k != nil {
		k.turns.mu.Lock()
		k.turns.asked++
		k.turns.mu.Unlock()
	}
	c.deliver(m)
}

// unask forgets a question: the server has taken it back.
func (c *Conn) unask(id []byte) {
	if q := c.takeQuestion(id); q != nil && q.call != nil {
		q.call.turns.answer(nil)
		q.call.settle()
	}
}

func (c *Conn) takeQuestion(id []byte) *question {
	key := string(jsonrpc.Key(id))
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.asked[key]
	delete(c.asked, key)
	delete(c.stale, key)
	return q
}

// answer notes that a question is settled, with an answer that is to be kept for
// the server or without.
func (t *turns) answer(kept []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked > 0 {
		t.asked--
	}
	if kept != nil {
		t.ready = append(t.ready, kept)
	}
	t.tell()
}

// tell wakes who waits for a change. t.mu is held.
func (t *turns) tell() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// post counts answers that go to the endpoint.
func (t *turns) post(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.posting += n
	t.posted = t.posted || n < 0
	t.tell()
}

// keepFor is how long an answer waits for a server that has given a stream URL to
// disconnect and ask for it. One that keeps the connection open gets it without.
const keepFor = time.Second

// reply takes the host's answer to a question of the server. A second one is
// dropped.
func (c *Conn) reply(m jsonrpc.Message) error {
	q := c.takeQuestion(m.ID)
	if q == nil {
		return nil
	}
	if q.id != nil {
		m.Raw = m.WithID(q.id)
	}
	k := q.call
	if k != nil {
		defer k.settle()
	}
	if k == nil || c.transport().shared() {
		if k != nil {
			k.turns.answer(nil)
		}
		return c.sendAnswer(k, m.Raw)
	}
	k.mu.Lock()
	turned, keys := k.ways.stream != nil && !k.ways.refused[attemptStream], k.session.keys
	k.mu.Unlock()
	k.turns.mu.Lock()
	connected := k.turns.connected
	k.turns.mu.Unlock()
	if !turned || keys && connected {
		// A server that honours keys is one of ours, and takes answers at any time.
		k.turns.answer(nil)
		return c.sendAnswer(k, m.Raw)
	}
	k.turns.answer(m.Raw)
	if keys && k.gather() {
		k.backoff.poke() // it has disconnected to wait for this, and need not be asked whether it does
		return nil
	}
	c.spawn(func() { c.keep(k) })
	return nil
}

// gather makes the answers that wait ready to be sent to the stream URL, if none is
// missing.
func (k *call) gather() bool {
	t := &k.turns
	k.mu.Lock()
	defer k.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked > 0 || len(t.ready) == 0 || t.connected { // or late would not see to it
		return false
	}
	k.send(t.ready)
	t.ready = nil
	return true
}

// send has answers sent to the stream URL next. k.mu is held.
func (k *call) send(ready [][]byte) {
	t := &k.turns
	t.sent, t.flown = append(slices.Clip(t.sent), ready...), 0
	t.sending = []byte{'['}
	for i, raw := range t.sent {
		if i > 0 {
			t.sending = append(t.sending, ',')
		}
		t.sending = append(t.sending, raw...)
	}
	t.sending = append(t.sending, ']')
}

// keep sends the answers of a call one by one if its server does not disconnect
// to ask for them.
func (c *Conn) keep(k *call) {
	t := time.NewTicker(keepFor)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-k.ctx.Done():
			return
		}
		k.turns.mu.Lock()
		if len(k.turns.ready) == 0 {
			k.turns.mu.Unlock()
			return
		}
		var ready [][]byte
		if k.turns.connected {
			ready, k.turns.ready = k.turns.ready, nil
		}
		k.turns.mu.Unlock()
		for _, raw := range ready {
			if err := c.sendAnswer(k, raw); err != nil {
				return
			}
		}
	}
}

// wanted is what follows from a 204: the server waits for answers, or has nothing
// more to say. It waits for the host to have answered everything.
func (k *call) wanted() error {
	t := &k.turns
	for {
		t.mu.Lock()
		if t.asked == 0 && t.posting == 0 {
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
	ready, posted := t.ready, t.posted
	t.posted = false
	if k.kind == attemptStream {
		t.ready = nil
	}
	t.mu.Unlock()
	if len(ready) == 0 && posted {
		return errNext // the server had not heard the answer when it said so
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(ready) == 0 && t.sending != nil: // whoever answered last has seen to it
	case k.kind == attemptStream && len(ready)+len(t.sent) > 0:
		k.send(ready) // and with them what it does not have yet
	default:
		k.backoff.last = errors.New("the server says that it has said everything, but the answer did not arrive")
		k.ways.refuse(k.kind)
	}
	return errNext
}

// doubt is what becomes of answers that may have arrived: they are not sent again
// before the server says that it still waits for them. One that honours keys is one
// of ours, which takes each once however often it comes.
func (k *call) doubt() {
	k.mu.Lock()
	keys := k.session.keys
	if !keys {
		k.turns.sending = nil
	}
	k.mu.Unlock()
	if keys {
		k.c.scatter(k)
	}
}

// turned notes that the server has taken the answers that were sent to the stream
// URL.
func (k *call) turned() {
	defer k.settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.turns
	t.sending, t.sent = nil, t.sent[min(t.flown, len(t.sent)):]
	if t.flown = 0; len(t.sent) > 0 {
		k.send(nil)
	}
}

// late sends answers that were gathered while the stream was asked for: it goes on
// without them, and there is no need to wait for its next end.
func (k *call) late() {
	k.mu.Lock()
	late := k.session.keys && k.turns.sending != nil
	k.mu.Unlock()
	if late {
		k.c.scatter(k)
	}
}

// scatter sends answers that the stream URL refused to the endpoint.
func (c *Conn) scatter(k *call) {
	k.mu.Lock()
	answers := k.turns.sent
	k.turns.sending, k.turns.sent, k.turns.flown = nil, nil, 0
	k.mu.Unlock()
	for _, raw := range answers {
		if err := c.sendAnswer(k, raw); err != nil {
			return
		}
	}
}

// sendAnswer sends an answer, behind the caller's back, until the server has it.
// k is the call that it is for, or nil.
func (c *Conn) sendAnswer(k *call, raw []byte) error {
	ctx := c.ctx
	if k != nil {
		ctx = k.ctx
		k.turns.post(1)
	}
	c.answering(1)
	ok := c.spawn(func() {
		defer c.answering(-1)
		if k != nil {
			defer k.settle()
			defer k.turns.post(-1)
		}
		select {
		case c.sending <- struct{}{}:
			defer func() { <-c.sending }()
		case <-ctx.Done():
			return
		}
		if err := c.tellFor(ctx, k, raw, c.opts.GiveUp); err != nil && ctx.Err() == nil {
			c.logger.Warn("answer not delivered", "error", err)
		}
	})
	if !ok {
		c.answering(-1)
		return ErrClosed
	}
	return nil
}

// answering counts the answers that the server is to be given, one more or one less.
func (c *Conn) answering(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers += n
}

// tell sends a message that has no answer until the server has it, for as long as
// it may be out of reach.
func (c *Conn) tell(ctx context.Context, raw []byte, atMost time.Duration) error {
	return c.tellFor(ctx, nil, raw, atMost)
}

func (c *Conn) tellFor(ctx context.Context, k *call, raw []byte, atMost time.Duration) error {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		return err
	}
	return c.transport().send(ctx, k, m, atMost)
}

// settle lets State say how far the stream was heard, if the server has an answer
// to everything: a question without one is for whoever goes on with the call.
func (k *call) settle() {
	k.mu.Lock()
	t := &k.turns
	t.mu.Lock()
	open := t.asked > 0 || t.posting > 0 || len(t.ready) > 0
	t.mu.Unlock()
	if !open && len(t.sent) == 0 {
		k.ways.received.settle()
	}
	k.mu.Unlock()
	k.c.changed()
}
