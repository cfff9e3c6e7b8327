package webhook

import (
	"container/heap"
	"context"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/stream"
)

// An Outbox keeps deliveries that wait to be sent in a store, where other nodes, and the next process of this node, find them. Its
// methods may be called concurrently. The errors are those of package stream.
type Outbox interface {
	// PutItem keeps an item for ttl, if its version is still was; 0: it does not exist yet. ErrConflict: it has another version. No two
	// puts may have the same value.
	PutItem(ctx context.Context, name string, was uint64, value []byte, ttl time.Duration) (version uint64, err error)
	// Item returns an item, its version, and how long ago it was put. ErrNotFound: it does not exist.
	Item(ctx context.Context, name string) (value []byte, version uint64, age time.Duration, err error)
	// RemoveItem removes an item if its version is still was; 0: in any version.
	RemoveItem(ctx context.Context, name string, was uint64) error
	// Items calls yield with all items until it returns false.
	Items(ctx context.Context, yield func(name string, value []byte) bool) error
}

// kept is a delivery in the outbox. Its times count from when it was put, so no node's clock is compared with another's.
type kept struct {
	Node  string        `json:"node"`  // the node that sends the delivery
	Stamp string        `json:"stamp"` // random, so that no two puts have the same value
	URL   string        `json:"url"`
	Body  []byte        `json:"body"`
	Tries int           `json:"tries"`
	Wait  time.Duration `json:"wait"` // before the next try
	Left  time.Duration `json:"left"` // in which there may be more tries
	Asked bool          `json:"asked"`
}

const (
	// keepTime bounds the wait for the outbox.
	keepTime = 5 * time.Second
	// keepLonger is for how long the outbox keeps a delivery after the time for its tries, as no node may live in that time. A node that
	// finds the delivery then tries it once.
	keepLonger = 24 * time.Hour
	// mostKeeping bounds the deliveries that are put, or taken over, at a time.
	mostKeeping = 16
)

// Keep makes the sender keep deliveries in an outbox, under the name of this node, which no other process has. It is called before Send.
func (s *Sender) Keep(in Outbox, node string) {
	s.outbox, s.node = in, node
	s.keeping = make(chan struct{}, mostKeeping)
	s.ids = make(map[string]bool)
}

// idOf returns the id of the delivery for a key: the same on all nodes. Without a key it is random.
func idOf(key string) string {
	if key == "" {
		return "msg_" + cryptorand.Text()
	}
	sum := sha256.Sum256([]byte(key))
	return "msg_" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16])
}

// errTaken says that another node sends a delivery.
var errTaken = errors.New("another node sends it")

// put puts the present state of a delivery into the outbox. errTaken: another node has the delivery.
func (s *Sender) put(d *delivery) error {
	ctx, stop := context.WithTimeout(s.ctx, keepTime)
	defer stop()
	now := time.Now()
	value, err := json.Marshal(kept{
		Node: s.node, Stamp: cryptorand.Text(), URL: d.to.url.String(), Body: d.body,
		Tries: d.tries, Wait: max(0, d.due.Sub(now)), Left: d.end.Sub(now), Asked: d.asked,
	})
	if err != nil {
		return err
	}
	for range 3 {
		version, err := s.outbox.PutItem(ctx, d.id, d.version, value, max(0, d.end.Sub(now))+keepLonger)
		if err == nil {
			d.version, d.kept = version, true
			return nil
		}
		if !errors.Is(err, stream.ErrConflict) {
			return err
		}
		is, version, _, err := s.outbox.Item(ctx, d.id)
		switch {
		case errors.Is(err, stream.ErrNotFound): // the outbox has lost it
			d.version = 0
		case err != nil:
			return err
		case nodeOf(is) != s.node:
			return errTaken
		default: // an earlier put, which seemed to fail
			d.version = version
		}
	}
	return stream.ErrUnavailable
}

// nodeOf returns the node of a kept delivery; "" if value cannot be read.
func nodeOf(value []byte) string {
	var k kept
	_ = json.Unmarshal(value, &k)
	return k.Node
}

// begin puts a new delivery into the outbox. told reports whether the outbox has the delivery now, of this node or of another; mine,
// whether this node must send it.
func (s *Sender) begin(d *delivery) (told, mine bool) {
	s.keeping <- struct{}{}
	defer func() { <-s.keeping }()
	err := s.put(d)
	switch {
	case err == nil:
		return true, true
	case errors.Is(err, errTaken):
		s.logger.Debug("webhook not sent: another node does", "id", d.id)
		return true, false
	}
	s.logger.Warn("webhook not kept: it is lost if this node is killed before it is sent", "url", d.to, "id", d.id, "error", err)
	return false, true
}

// settle updates the outbox after a try, and reports whether this node tries again.
func (s *Sender) settle(d *delivery, again bool, sent bool) bool {
	if s.outbox == nil {
		return again
	}
	if again {
		err := s.put(d)
		if errors.Is(err, errTaken) {
			s.logger.Debug("webhook left to another node", "id", d.id)
			return false
		}
		if err != nil {
			s.logger.Debug("webhook not kept", "id", d.id, "error", err)
		}
		return true
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(s.ctx), keepTime)
	defer stop()
	version := d.version
	if sent {
		version = 0 // in any version: another node need not send it either
	}
	if err := s.outbox.RemoveItem(ctx, d.id, version); err != nil && !errors.Is(err, stream.ErrConflict) {
		s.mu.Lock()
		if len(s.over) < s.opts.Queue {
			s.over[d.id] = true
		}
		s.mu.Unlock()
		s.logger.Debug("webhook not removed from the store", "id", d.id, "error", err)
	}
	return false
}

// Nodes are the other nodes that use the outbox.
type Nodes interface {
	// Gone reports whether a node has ended.
	Gone(ctx context.Context, node string) bool
	// Peers returns the names of the nodes that live.
	Peers() []string
	// Watch calls f with the name of each node that ends from now on.
	Watch(f func(node string))
}

const (
	// lookAfter is the time from the end of a node to the look for its deliveries, and lookAgain the time after a look that failed.
	lookAfter = 200 * time.Millisecond
	lookAgain = 2 * time.Second
	// lookEvery is the time between two other looks, of any of the nodes. All looks together take 1/lookShare of the time at most.
	lookEvery = 30 * time.Second
	lookShare = 20
)

// Attend makes the sender take over the deliveries that ended nodes have left in the outbox, until Close.
func (s *Sender) Attend(nodes Nodes) {
	if s.outbox == nil {
		return
	}
	lost := make(chan struct{}, 1)
	wake := func(string) {
		select {
		case lost <- struct{}{}:
		default:
		}
	}
	nodes.Watch(wake)
	s.work.Go(func() {
		t := time.NewTimer(0)
		defer t.Stop()
		for {
			select {
			case <-s.looking.Done():
				return
			case <-lost:
				t.Reset(lookAfter)
				continue
			case <-t.C:
			}
			began := time.Now()
			if err := s.look(nodes); err != nil {
				s.logger.Debug("webhooks of lost nodes not looked for", "error", err)
				t.Reset(lookAgain)
				continue
			}
			every := max(lookEvery, lookShare*time.Since(began)) * time.Duration(1+len(nodes.Peers()))
			t.Reset(every*3/4 + rand.N(every/2))
		}
	})
}

// look takes over the deliveries that ended nodes have left in the outbox.
func (s *Sender) look(nodes Nodes) error {
	ctx := s.looking
	type found struct{ id, node string }
	var all []found
	room, done := s.room(), s.allDone()
	err := s.outbox.Items(ctx, func(id string, value []byte) bool {
		if delete(done, id); !s.holds(id) {
			all = append(all, found{id, nodeOf(value)})
		}
		return true
	})
	if err == nil {
		s.forgetDone(done)
	}
	gone := map[string]bool{s.node: true} // a delivery of this node that it does not hold: removing it failed, or a put seemed to fail
	places := make(chan struct{}, mostKeeping)
	var work sync.WaitGroup
	for _, f := range all {
		is, known := gone[f.node]
		if !known {
			is = nodes.Gone(ctx, f.node)
			gone[f.node] = is
		}
		if !is || room <= 0 || ctx.Err() != nil {
			continue
		}
		room--
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			e := s.adopt(ctx, f.id, f.node)
			if e == nil || errors.Is(e, stream.ErrConflict) || errors.Is(e, stream.ErrNotFound) {
				return // another node was faster, or the delivery was sent
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			err = errors.Join(err, e)
		})
	}
	work.Wait()
	return err
}

// adopt takes over a delivery from a node that has ended. ErrConflict: another node was faster; ErrNotFound: the delivery was sent.
func (s *Sender) adopt(ctx context.Context, id, from string) error {
	ctx, stop := context.WithTimeout(ctx, keepTime)
	defer stop()
	if s.wasDone(id) {
		if err := s.outbox.RemoveItem(ctx, id, 0); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.over, id)
		s.mu.Unlock()
		return nil
	}
	value, version, age, err := s.outbox.Item(ctx, id)
	if err != nil {
		return err
	}
	var k kept
	if err := json.Unmarshal(value, &k); err != nil || k.Node != from {
		return errors.Join(err, stream.ErrConflict)
	}
	now := time.Now()
	d := &delivery{
		id: id, body: k.Body, tries: k.Tries, version: version, asked: k.Asked,
		due: now.Add(max(0, k.Wait-age)), end: now.Add(k.Left - age),
	}
	if d.to, err = s.policy.parse(k.URL); err != nil {
		s.logger.Info("webhook refused", "url", d.to, "id", id, "error", err)
		s.report("refused")
		return s.outbox.RemoveItem(ctx, id, version)
	}
	if !s.hold(id) {
		return nil // this node holds it already, or has no room
	}
	if err := s.put(d); err != nil {
		s.release(id)
		if errors.Is(err, errTaken) {
			err = stream.ErrConflict
		}
		return err
	}
	s.logger.Debug("webhook taken over", "url", d.to, "id", id, "from", from, "tries", d.tries)
	if !s.push(d) {
		s.release(id)
	}
	return nil
}

// room returns how many more deliveries may wait.
func (s *Sender) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Queue - s.held
}

// holds reports whether this node holds a delivery.
func (s *Sender) holds(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// wasDone reports whether a delivery is over, but could not be removed from the outbox.
func (s *Sender) wasDone(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over[id]
}

// allDone returns the deliveries for which wasDone is true.
func (s *Sender) allDone() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.over)
}

// forgetDone forgets deliveries of which wasDone was true, and that the outbox does not have any more.
func (s *Sender) forgetDone(all map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range all {
		delete(s.over, id)
	}
}

// hold counts a delivery. It returns false if this node holds it already, there is no room, or the sender is closed.
func (s *Sender) hold(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.ids[id] || s.held >= s.opts.Queue {
		return false
	}
	s.held++
	s.ids[id] = true
	return true
}

// release undoes hold.
func (s *Sender) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.let(id)
	s.emptied()
}

// let undoes hold, without a call of emptied. s.mu is held.
func (s *Sender) let(id string) {
	s.held--
	delete(s.ids, id)
}

// push queues a delivery that hold has counted. It returns false after Close.
func (s *Sender) push(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		if d.kept {
			s.left++
		} else {
			s.unsent++
		}
		return false
	}
	heap.Push(&s.queue, d)
	s.start()
	s.arm()
	return true
}
