package logtest

import (
	"bytes"
	"context"
	"sync"
	"time"

	"holdfast/internal/cluster"
	"holdfast/stream"
)

// A Handle is a node's connection to an [Engine]: a durable.Log.
type Handle struct {
	e    *Engine
	name string

	// The engine's lock guards these.
	closed bool
	cut    bool

	mu    sync.Mutex
	inbox *inbox
}

// Cut cuts the node off from the engine and from the other nodes, or connects it
// again. While it is cut off, operations fail at once.
func (h *Handle) Cut(cut bool) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.cut = cut
}

// IsCut reports whether the node is cut off.
func (h *Handle) IsCut() bool {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	return h.cut
}

// Put implements durable.Log.
func (h *Handle) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (version uint64, err error) {
	value = bytes.Clone(value)
	var res struct {
		version uint64
		err     error
	}
	if err := h.e.do(ctx, h, "Put", func() { h.e.writes["Put "+key]++; res.version, res.err = h.e.put(key, was, value, ttl) }); err != nil {
		return 0, err
	}
	return res.version, res.err
}

// Get implements durable.Log.
func (h *Handle) Get(ctx context.Context, key string) (data []byte, version uint64, age time.Duration, err error) {
	var v value
	var ok bool
	fail := h.e.do(ctx, h, "Get", func() {
		if v, ok = h.e.value(key); ok {
			age = h.e.now().Sub(v.put)
		}
	})
	switch {
	case fail != nil:
		return nil, 0, 0, fail
	case !ok:
		return nil, 0, 0, stream.ErrNotFound
	}
	return bytes.Clone(v.data), v.version, age, nil
}

// Remove implements durable.Log.
func (h *Handle) Remove(ctx context.Context, key string, was uint64) error {
	var res error
	if err := h.e.do(ctx, h, "Remove", func() {
		v, ok := h.e.value(key)
		switch {
		case !ok:
		case was != 0 && v.version != was:
			res = stream.ErrConflict
		default:
			delete(h.e.values, key)
		}
	}); err != nil {
		return err
	}
	return res
}

// List implements durable.Log.
func (h *Handle) List(ctx context.Context, prefix string, yield func(key string, value []byte, version uint64) bool) error {
	type item struct {
		key string
		value
	}
	var found []item
	if err := h.e.do(ctx, h, "List", func() {
		found = found[:0]
		for _, key := range h.e.list(prefix) {
			found = append(found, item{key, h.e.values[key]})
		}
	}); err != nil {
		return err
	}
	for _, v := range found {
		if !yield(v.key, bytes.Clone(v.data), v.version) {
			break
		}
	}
	return nil
}

// Append implements durable.Log.
func (h *Handle) Append(ctx context.Context, key string, last uint64, frame []byte) (at uint64, err error) {
	frame = bytes.Clone(frame)
	var res struct {
		at  uint64
		err error
	}
	if err := h.e.do(ctx, h, "Append", func() { h.e.writes["Append "+key]++; res.at, res.err = h.e.append(key, last, frame) }); err != nil {
		return 0, err
	}
	if res.err == nil {
		h.e.tell(key, res.at)
	}
	return res.at, res.err
}

// Frames implements durable.Log.
func (h *Handle) Frames(ctx context.Context, key string, after uint64, yield func(at uint64, age time.Duration, frame []byte) bool) error {
	var found []frame
	var now time.Time
	if err := h.e.do(ctx, h, "Frames", func() { found, now = h.e.seen(key), h.e.now() }); err != nil {
		return err
	}
	for _, f := range found {
		if f.at > after && !yield(f.at, now.Sub(f.put), f.data) {
			break
		}
	}
	return nil
}

// Trim implements durable.Log.
func (h *Handle) Trim(ctx context.Context, key string, before uint64) error {
	return h.e.do(ctx, h, "Trim", func() {
		l := h.e.log(key)
		for len(l) > 0 && (before == 0 || l[0].at < before) {
			l = l[1:]
		}
		h.e.logs[key] = l
	})
}

// Retention implements durable.Log.
func (h *Handle) Retention() time.Duration { return h.e.o.Retention }

// MaxFrame implements durable.Log.
func (h *Handle) MaxFrame() int { return h.e.o.MaxFrame }

// Ping implements durable.Log.
func (h *Handle) Ping(ctx context.Context) error { return h.e.do(ctx, h, "Ping", func() {}) }

// Close implements durable.Log.
func (h *Handle) Close() error {
	h.e.mu.Lock()
	h.closed = true
	delete(h.e.nodes, h.name)
	h.e.mu.Unlock()
	h.leave()
	return nil
}

// Node implements [cluster.Bus].
func (h *Handle) Node() string { return h.name }

// MaxMessage implements [cluster.Bus].
func (h *Handle) MaxMessage() int { return h.e.o.MaxFrame }

// Send implements [cluster.Bus].
func (h *Handle) Send(node string, message []byte) error {
	h.e.mu.Lock()
	to, lost := h.e.nodes[node], h.cut
	lost = lost || to != nil && to.cut
	h.e.mu.Unlock()
	switch {
	case lost:
	case to == nil || !to.deliver(message):
		return cluster.ErrNoNode
	}
	return nil
}

// Cast implements [cluster.Bus].
func (h *Handle) Cast(message []byte) error {
	h.e.mu.Lock()
	var all []*Handle
	for _, to := range h.e.nodes {
		if !h.cut && !to.cut {
			all = append(all, to)
		}
	}
	h.e.mu.Unlock()
	for _, to := range all {
		to.deliver(message)
	}
	return nil
}

// deliver reports whether the node receives messages.
func (h *Handle) deliver(message []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inbox == nil {
		return false
	}
	h.inbox.put(bytes.Clone(message))
	return true
}

// Receive implements [cluster.Bus].
func (h *Handle) Receive(r cluster.Receiver) (stop func(), err error) {
	in := &inbox{quit: make(chan struct{}), more: make(chan struct{}, 1)}
	in.done.Go(func() { in.run(r) })
	h.mu.Lock()
	h.inbox = in
	h.mu.Unlock()
	return h.leave, nil
}

// leave ends Receive, and waits for its goroutine.
func (h *Handle) leave() {
	h.mu.Lock()
	in := h.inbox
	h.inbox = nil
	h.mu.Unlock()
	if in != nil {
		close(in.quit)
		in.done.Wait()
	}
}

// An inbox has the messages for a node that it has not taken yet.
type inbox struct {
	quit chan struct{}
	more chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	waiting [][]byte
}

func (in *inbox) put(message []byte) {
	in.mu.Lock()
	in.waiting = append(in.waiting, message)
	in.mu.Unlock()
	select {
	case in.more <- struct{}{}:
	default: // run is notified already
	}
}

func (in *inbox) run(r cluster.Receiver) {
	for {
		select {
		case <-in.quit:
			return
		case <-in.more:
		}
		in.mu.Lock()
		turn := in.waiting
		in.waiting = nil
		in.mu.Unlock()
		for _, m := range turn {
			r.Message(m)
		}
	}
}
