package session

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/reading"
	"holdfast/jsonrpc"
)

// What follows is for requests that name a webhook: the URL that gets their outcome when
// they have ended and no client is connected. docs/decisions/0010-webhooks.md says when
// it is.

// An EndedRequest is a request that named a webhook, and whose call ended with nobody
// connected to be told its response.
type EndedRequest struct {
	ID      []byte    // raw, as its client spelled it
	Webhook string    // the URL as the client gave it; "" if it gave none that could be one
	Failed  bool      // the response is an error
	Time    time.Time // when it was given
	// Key tells the end of this request from that of any other one. It is the same on any node that tells of it.
	Key string
}

// metaWebhook is the member of a request's _meta whose url is the webhook.
const metaWebhook = "holdfast/webhook"

// longestWebhook bounds how many bytes of URL a call keeps.
const longestWebhook = 2048

// webhooks are the webhooks of a call. Guarded by hookTable.mu.
type webhooks struct {
	list      []webhook
	delivered uint64 // sequence of the last entry that was written to the client
	held      bool   // the transport that began the call will read it, or report that its connection was lost
	over      bool   // the stream has its last entry
}

// webhook is the webhook of one request.
type webhook struct {
	EndedRequest
	rq     *inflight
	seq    uint64 // of its response; 0 while there is none
	stream uint64 // that the request has for itself, if the response is on the standalone stream of a shared store
}

// webhooks returns the call's webhooks, nil for most calls.
func (c *Call) webhooks() *webhooks {
	if c.record == nil {
		return nil
	}
	return c.record.webhooks
}

// tellsLater reports whether the outcome of a request is told to somebody besides its client.
func (m *Manager) tellsLater(msg *jsonrpc.Message) bool {
	return m.opts.OnEnded != nil && !m.opts.Stateless && bytes.Contains(msg.Params, []byte("webhook")) &&
		jsonrpc.Field(msg.Params, "_meta", metaWebhook, "url") != nil
}

// addWebhook keeps the webhook that a request names. s.mu is held.
func (s *Session) addWebhook(c *Call, rq *inflight, m *jsonrpc.Message) {
	if !s.m.tellsLater(m) {
		return
	}
	url := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", metaWebhook, "url"))
	if len(url) > longestWebhook {
		url = ""
	}
	if c.recorded().webhooks == nil {
		c.record.webhooks = &webhooks{held: true}
	}
	h := c.record.webhooks
	h.list = append(h.list, webhook{EndedRequest: EndedRequest{ID: []byte(rq.id), Webhook: url}, rq: rq})
}

// answered implements [feature].
func (h *webhooks) answered(c *Call, rq *inflight, failed bool, seq uint64) {
	t := &c.s.hooks
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range h.list {
		k := &h.list[i]
		if k.rq != rq {
			continue
		}
		k.seq, k.Time, k.Failed = seq, time.Now(), failed
		if c.s.single {
			if c.hasJournal() {
				k.stream = c.recovery.journal
			}
			c.s.standalone.webhooks().list = append(c.s.standalone.webhooks().list, *k)
			h.drop(rq)
		}
		return
	}
}

// stored implements [feature]: the responses so far come after what was said first.
func (h *webhooks) stored(c *Call) {
	c.s.hooks.mu.Lock()
	defer c.s.hooks.mu.Unlock()
	for i := range h.list {
		if h.list[i].seq > 0 {
			h.list[i].seq += c.said
		}
	}
}

// cancelled implements [feature]: the client wants no answer.
func (h *webhooks) cancelled(c *Call, rq *inflight) {
	c.s.hooks.mu.Lock()
	defer c.s.hooks.mu.Unlock()
	h.drop(rq)
}

// refused implements [feature]: clients are told that the outcome is unknown.
func (h *webhooks) refused(c *Call, _ [][]byte, seq uint64) {
	c.s.hooks.mu.Lock()
	defer c.s.hooks.mu.Unlock()
	for i := range h.list {
		if k := &h.list[i]; k.seq == 0 || k.seq > seq {
			k.seq, k.Time, k.Failed = seq+1, time.Now(), true
		}
	}
}

// left implements [feature]: the next owner dispatches them.
func (h *webhooks) left(*Call) {}

// dropWebhooks forgets the webhooks of the call: its client has the answers.
func (c *Call) dropWebhooks() {
	if h := c.webhooks(); h != nil {
		h.cancelled(c, nil)
	}
}

// drop forgets the webhook of a request; nil: of all. hookTable.mu is held.
func (h *webhooks) drop(rq *inflight) {
	kept := h.list[:0]
	for _, k := range h.list {
		if rq != nil && k.rq != rq {
			kept = append(kept, k)
		}
	}
	clear(h.list[len(kept):])
	h.list = kept
}

// releaseWebhooks notes that the transport that began the call will not read it.
func (c *Call) releaseWebhooks(number uint64) {
	h := c.webhooks()
	if h == nil {
		return
	}
	c.s.hooks.mu.Lock()
	h.held = false
	c.s.hooks.mu.Unlock()
	c.s.dispatchWebhooks(number, h)
}

// A hookTable has what is known of webhooks in a session.
type hookTable struct {
	mu       sync.Mutex
	ended    map[uint64]*webhooks // of calls that have ended, and have webhooks to be told, by the numbers of their streams
	notified []uint64             // streams of calls whose webhooks were told, since [hookTable.takeNotified] was last called
	telling  int                  // how often webhooks are being told just now
}

// end notes that a call's stream has its last entry, which comes before the stream loses its call. It returns the call's webhooks;
// [Session.dispatchWebhooks] must follow.
func (t *hookTable) end(c *Call, number uint64) *webhooks {
	h := c.webhooks()
	if h == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h.over = true
	if t.ended == nil {
		t.ended = make(map[uint64]*webhooks)
	}
	t.ended[number] = h
	return h
}

// of returns the webhooks of a call that has ended, by the number of its stream.
func (t *hookTable) of(number uint64) *webhooks {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended[number]
}

// readBy returns the webhooks of what a reader reads.
func (t *hookTable) readBy(r *reading.Reader) *webhooks {
	if c := written(r.Call()); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.webhooks()
	}
	return t.of(r.Cursor().Stream.Number)
}

// reached notes that a reader's client has what the stream says through seq, and returns the webhooks of that, or nil.
func (t *hookTable) reached(r *reading.Reader, seq uint64) *webhooks {
	h := t.readBy(r)
	if h == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h.held = false
	h.delivered = max(h.delivered, seq)
	return h
}

// isUnused reports whether no webhook waits.
func (t *hookTable) isUnused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ended) == 0 && t.telling == 0
}

// takeNotified returns the streams of calls whose webhooks were told since it was last called.
func (t *hookTable) takeNotified() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	notified := t.notified
	t.notified = nil
	return notified
}

// endUnstored notes that a call is over whose end is not in the store.
func (c *Call) endUnstored(number uint64) {
	c.s.dispatchWebhooks(number, c.s.hooks.end(c, number))
}

// dispatchWebhooks has the webhooks told whose call is over and nobody has it; h may be nil.
// No lock is held.
func (s *Session) dispatchWebhooks(number uint64, h *webhooks) {
	if h == nil || s.Moved() {
		return // or the new owner tells them
	}
	t := &s.hooks
	t.mu.Lock()
	due, settled := h.due(s.streams.IsRead(number))
	if h.over && len(h.list) == 0 {
		delete(t.ended, number)
	}
	if s.m.shared != nil {
		t.settle(settled)
		if len(due) > 0 {
			t.telling++
		}
	}
	t.mu.Unlock()
	for i := range due {
		k := &due[i]
		if k.Key = fmt.Sprintf("%s %d %s", s.key, cmp.Or(k.stream, number), k.ID); number == standalone && k.stream == 0 {
			k.Key = fmt.Sprintf("%s at %d %s", s.key, k.seq, k.ID)
		}
		k.stream = cmp.Or(k.stream, number)
	}
	switch {
	case len(due) == 0:
	case s.m.shared != nil && s.m.startWork(): // for the store may take its time
		go func() {
			defer s.m.work.Done()
			s.m.tell(s, due)
		}()
	default:
		s.m.tell(s, due)
	}
}

// tell tells webhooks of a session that are due, and has the store know, if that is shared: until it does, the next owner of the
// session tells them, too.
func (m *Manager) tell(s *Session, due []webhook) {
	told := due[:0]
	for i := range due {
		if m.callOnEnded(due[i].EndedRequest) {
			told = append(told, due[i])
		}
	}
	if m.shared == nil {
		return
	}
	t := &s.hooks
	t.mu.Lock()
	t.telling--
	t.settle(told)
	t.mu.Unlock()
	if len(told) > 0 && !s.isClosed() {
		s.noteSession(nil, false)
		s.log.Flush()
	}
}

// settle notes that webhooks are not to be told by the next owner. t.mu is held.
func (t *hookTable) settle(all []webhook) {
	for i := range all {
		if n := all[i].stream; n != 0 && len(t.notified) < mostNews && !slices.Contains(t.notified, n) {
			t.notified = append(t.notified, n)
		}
	}
}

// hasTold reports whether no webhook is being told, of which the store does not know yet.
func (t *hookTable) hasTold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.telling == 0
}

// due takes off the list what is settled, as it need not be told, and what is to be told now: it
// returns both. connected reports whether the stream has a reader. hookTable.mu is held.
func (h *webhooks) due(connected bool) (due, settled []webhook) {
	if !h.over {
		return nil, nil
	}
	kept := h.list[:0]
	for _, k := range h.list {
		switch {
		case k.seq <= h.delivered: // or there is none: it was cancelled
			settled = append(settled, k)
		case connected || h.held:
			kept = append(kept, k)
		default:
			due = append(due, k)
		}
	}
	clear(h.list[len(kept):])
	h.list = kept
	return due, settled
}
