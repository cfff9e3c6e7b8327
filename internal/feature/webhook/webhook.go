// Package webhook has the completion webhooks of a session's requests: a request names the URL that gets its outcome when it has ended
// and no client is connected. docs/decisions/0010-webhooks.md says when that is. Package holdfast/internal/webhook sends them.
package webhook

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/jsonrpc"
)

// An Ended is a request that named a webhook, and that ended while no client was connected to read
// its response.
type Ended struct {
	ID      []byte    // raw, as its client spelled it
	Webhook string    // the URL as the client gave it; "" if it could not be a URL
	Failed  bool      // the response is an error
	Time    time.Time // when the response was given
	// Key names the end of this request, unlike that of any other request. It is the same on any node that tells the webhook.
	Key string
}

// meta is the member of a request's _meta that has the webhook as its url.
const meta = "holdfast/webhook"

// longest bounds how many bytes of URL a call keeps.
const longest = 2048

// mostNews bounds how many streams a note names.
const mostNews = 256

// Options are the same for all sessions.
type Options struct {
	// Tell tells the webhook of a request, and reports whether no other node has to tell it. nil: webhooks are ignored.
	Tell func(Ended) (told bool)
	// InBackground runs f on a goroutine of its own, as Tell may take long, and reports whether it does. nil: no other node takes
	// sessions over.
	InBackground func(f func()) bool
}

// Wants reports whether the params of a request name a webhook.
func (o *Options) Wants(params []byte) bool {
	return o.Tell != nil && bytes.Contains(params, []byte("webhook")) && jsonrpc.Field(params, "_meta", meta, "url") != nil
}

// An Owner is a session as its webhooks know it. Its methods are called without a lock.
type Owner interface {
	// Moved reports whether another node has the session. That node tells the webhooks.
	Moved() bool
	// IsRead reports whether a client reads a stream.
	IsRead(number uint64) bool
	// Note stores the streams of [Session.News].
	Note()
}

// A Session has the webhooks of a session. nil has none. Its methods may be called concurrently, and, but for ReleaseAll, with locks
// of the owner held.
type Session struct {
	key   string
	owner Owner
	opts  *Options

	mu      sync.Mutex
	ended   map[uint64]*Call // the calls with webhooks to be told, by their streams
	all     *Call            // of the stream that all calls share, or nil; does not change
	news    []uint64         // the streams of calls with webhooks that were told
	telling int              // how many goroutines are telling webhooks
}

// New returns the webhooks of a session with a key, or nil if they are ignored.
func New(key string, owner Owner, opts *Options) *Session {
	if opts.Tell == nil {
		return nil
	}
	return &Session{key: key, owner: owner, opts: opts}
}

// Share makes all calls share the stream 0, and returns its webhooks. No other goroutine knows the session yet.
func (s *Session) Share() *Call {
	if s == nil {
		return nil
	}
	s.all = &Call{s: s, over: true}
	return s.all
}

// locked calls do with the lock held, unless there are no webhooks.
func (s *Session) locked(do func()) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
	}
}

// Of returns the webhooks of a call that has ended, by its stream.
func (s *Session) Of(number uint64) (c *Call) {
	s.locked(func() { c = s.ended[number] })
	return c
}

// HasTold reports that no webhook is being told. While one is, the store does not know of it yet.
func (s *Session) HasTold() bool {
	telling := 0
	s.locked(func() { telling = s.telling })
	return telling == 0
}

// IsIdle reports that no webhook is being told, and no ended call has webhooks to tell.
func (s *Session) IsIdle() bool {
	waiting := 0
	s.locked(func() { waiting = s.telling + len(s.ended) })
	return waiting == 0
}

// News returns the streams of calls with webhooks that were told since News was last called.
func (s *Session) News() (news []uint64) {
	s.locked(func() { news, s.news = s.news, nil })
	return news
}

// ReleaseAll tells the webhooks of all calls that have ended and that no client reads.
func (s *Session) ReleaseAll() {
	var all *Call
	var ended map[uint64]*Call
	s.locked(func() { all, ended = s.all, maps.Clone(s.ended) })
	all.Release(0)
	for number, c := range ended {
		c.Release(number)
	}
}

// settle notes that the next owner must not tell some webhooks. s.mu is held.
func (s *Session) settle(all []request) {
	for i := range all {
		if n := all[i].stream; n != 0 && len(s.news) < mostNews && !slices.Contains(s.news, n) {
			s.news = append(s.news, n)
		}
	}
}

// tell tells webhooks that are due, and notes that in a shared store. Until the store has the note, the next
// owner of the session would tell them, too.
func (s *Session) tell(due []request) {
	told := due[:0]
	for i := range due {
		if s.opts.Tell(due[i].Ended) {
			told = append(told, due[i])
		}
	}
	if s.opts.InBackground == nil {
		return
	}
	s.mu.Lock()
	s.telling--
	s.settle(told)
	s.mu.Unlock()
	if len(told) > 0 {
		s.owner.Note()
	}
}

// A Call has the webhooks of a call. nil has none. Its methods may be called concurrently, and, but for Delivered, Release, Dispatch and Flush,
// with locks of the owner held. Guarded by Session.mu.
type Call struct {
	s         *Session
	list      []request
	delivered uint64 // sequence of the last entry that was written to the client
	held      bool   // the transport that began the call will read it, or report that its connection was lost
	over      bool   // the stream has its last entry
}

// A request is a request that names a webhook.
type request struct {
	Ended
	seq    uint64 // of its response; 0 while it has none
	stream uint64 // the request's own stream, if its response is on the shared stream; or 0
}

// locked calls do with the lock held, unless there are no webhooks.
func (c *Call) locked(do func()) {
	if c != nil {
		c.s.locked(do)
	}
}

// Begin adds a request that names a webhook, and returns the webhooks of its call. c are the call's webhooks so far, or nil.
func (s *Session) Begin(c *Call, id string, params []byte) *Call {
	url := jsonrpc.String(jsonrpc.Field(params, "_meta", meta, "url"))
	if len(url) > longest {
		url = ""
	}
	if c == nil {
		c = &Call{s: s, held: true}
	}
	c.locked(func() { c.list = append(c.list, request{Ended: Ended{ID: []byte(id), Webhook: url}}) })
	return c
}

// Answered notes that the response to a request is the entry seq of the call's stream, or of the shared stream. stream is then the
// request's own stream, or 0.
func (c *Call) Answered(id string, failed bool, seq, stream uint64) {
	c.locked(func() {
		i := slices.IndexFunc(c.list, func(r request) bool { return string(r.ID) == id })
		if i < 0 {
			return
		}
		r := &c.list[i]
		r.seq, r.Time, r.Failed, r.stream = seq, time.Now(), failed, stream
		if all := c.s.all; all != nil {
			all.list = append(all.list, *r)
			c.list = slices.Delete(c.list, i, i+1)
		}
	})
}

// Stored notes that the responses so far come after the entry said of the call's stream.
func (c *Call) Stored(said uint64) {
	c.locked(func() {
		for i := range c.list {
			if c.list[i].seq > 0 {
				c.list[i].seq += said
			}
		}
	})
}

// Cancelled forgets the webhook of a request: the client wants no answer.
func (c *Call) Cancelled(id string) {
	c.locked(func() { c.list = slices.DeleteFunc(c.list, func(r request) bool { return string(r.ID) == id }) })
}

// Refused notes that the store has refused the entries after seq: clients are told that the outcome is unknown.
func (c *Call) Refused(seq uint64) {
	c.locked(func() {
		for i := range c.list {
			if r := &c.list[i]; r.seq == 0 || r.seq > seq {
				r.seq, r.Time, r.Failed = seq+1, time.Now(), true
			}
		}
	})
}

// Drop forgets the webhooks: the client has the answers.
func (c *Call) Drop() { c.locked(func() { c.list = nil }) }

// PassOn moves the webhooks of a call to another call, which has its requests from now on. If all calls share a stream, it moves none.
func (c *Call) PassOn() (to *Call) {
	c.locked(func() {
		if c.s.all == nil {
			to, c.list = &Call{s: c.s, list: c.list}, nil
		}
	})
	return to
}

// End notes that the call's stream has its last entry. Dispatch must follow.
func (c *Call) End(number uint64) {
	c.locked(func() {
		if c.s.ended == nil {
			c.s.ended = make(map[uint64]*Call, 1)
		}
		c.over, c.s.ended[number] = true, c
	})
}

// Attached notes that a client reads the stream, which has its entries up to seq.
func (c *Call) Attached(seq uint64) {
	c.locked(func() { c.held, c.delivered = false, max(c.delivered, seq) })
}

// Delivered notes that the entries of the stream up to seq have been written to the client.
func (c *Call) Delivered(number, seq uint64) {
	c.locked(func() { c.delivered = max(c.delivered, seq) })
	c.Dispatch(number)
}

// Hold makes the webhooks wait for a client, or for Release.
func (c *Call) Hold() { c.locked(func() { c.held = true }) }

// Release notes that the client that the webhooks wait for will not read the stream.
func (c *Call) Release(number uint64) {
	c.locked(func() { c.held = false })
	c.Dispatch(number)
}

// Flush is Dispatch for the stream that all calls share, if they do.
func (c *Call) Flush() {
	if c != nil && c.s.all != nil {
		c.s.all.Dispatch(0)
	}
}

// Dispatch tells the webhooks if the call is over and no client has its outcome. It is called when that may have changed: the stream
// has ended, or a client has stopped reading it.
func (c *Call) Dispatch(number uint64) {
	if c == nil || c.s.owner.Moved() {
		return // the new owner tells them
	}
	s := c.s
	isRead := s.owner.IsRead(number)
	s.mu.Lock()
	due, settled := c.due(isRead)
	if c.over && len(c.list) == 0 {
		delete(s.ended, number)
	}
	if s.opts.InBackground != nil {
		s.settle(settled)
		if len(due) > 0 {
			s.telling++
		}
	}
	s.mu.Unlock()
	for i := range due {
		r := &due[i]
		if r.Key = fmt.Sprintf("%s %d %s", s.key, cmp.Or(r.stream, number), r.ID); number == 0 && r.stream == 0 {
			r.Key = fmt.Sprintf("%s at %d %s", s.key, r.seq, r.ID)
		}
		r.stream = cmp.Or(r.stream, number)
	}
	if len(due) > 0 && (s.opts.InBackground == nil || !s.opts.InBackground(func() { s.tell(due) })) {
		s.tell(due)
	}
}

// due removes from the list, and returns, the requests to tell now, and the settled ones, which
// need no webhook. isRead says that the stream has a reader. Session.mu is held.
func (c *Call) due(isRead bool) (due, settled []request) {
	if !c.over {
		return nil, nil
	}
	kept := c.list[:0]
	for _, r := range c.list {
		switch {
		case r.seq <= c.delivered: // 0: it was cancelled
			settled = append(settled, r)
		case isRead || c.held:
			kept = append(kept, r)
		default:
			due = append(due, r)
		}
	}
	clear(c.list[len(kept):])
	c.list = kept
	return due, settled
}
