package session

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/again"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows attaches a request to a stranded call of another node. That node takes the call, as for a request of its own, and writes
// what it says into the answer of a request between nodes, to its end. If this answer is not read to its end the call is stranded again.

// A loanQuery is what a node asks another for.
type loanQuery struct {
	Name    string          `json:"name"`              // of the loan
	Cancel  bool            `json:"cancel,omitempty"`  // the client wants no answer of it any more
	ID      json.RawMessage `json:"id,omitempty"`      // by which a modern client knows the request
	Request json.RawMessage `json:"request,omitempty"` // as the client has sent it, but for the id
	Talk    []byte          `json:"talk,omitempty"`    // see [placesOf]
	Client  []byte          `json:"client,omitempty"`
	Safe    bool            `json:"safe,omitempty"` // the tool may run twice
	Left    bool            `json:"left,omitempty"` // the client has left: the node does not wait for another that has, too
}

// What a node lends is frames: a kind, a length in four bytes, and so many bytes.
const (
	frameTaken   = 'a' // first: the call is taken, and why
	frameMessage = 'm' // a message of the call
	frameLast    = 'l' // its last one
	frameAnswer  = 'r' // its response, if that is all there is
	frameUnknown = 'u' // its end is not known
	frameWaits   = 'w' // first: there is none to be lent, but see [loanWaits]
)

// mostFrame bounds the bytes of a frame.
const mostFrame = 1 << 30

// loans are the calls that a node lends. The zero value is ready to use.
type loans struct {
	mu  sync.Mutex
	all map[string]*loan // by their names
}

// A loan is a call that is lent.
type loan struct {
	cancel    context.CancelFunc
	cancelled bool // the client that made the request again wants no answer; guarded by loans.mu
}

// begin notes a loan; end is to be called at its end, and reports whether its client wants no answer any more.
func (t *loans) begin(name string, l *loan) (end func() (cancelled bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[string]*loan)
	}
	t.all[name] = l
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.all[name] == l {
			delete(t.all, name)
		}
		return l.cancelled
	}
}

// cancel ends a loan, as its client wants no answer.
func (t *loans) cancel(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.all[name]; l != nil {
		l.cancelled = true
		l.cancel()
	}
}

// tellStranded tells other nodes of a stranded call that their clients may make again.
func (m *Manager) tellStranded(of *stranded) {
	if keys := m.keysElsewhere(of); keys != nil {
		name := of.nameElsewhere()
		m.stranded.mu.Lock()
		of.hinted = name
		m.stranded.mu.Unlock()
		m.elsewhere.Strand(keys, name)
	}
}

// nameElsewhere returns the name by which other nodes know the call, which is that of its flight.
func (of *stranded) nameElsewhere() uint64 {
	if c := of.s.CallAt(of.number); c != nil && c.flight != nil {
		return c.flight.name
	}
	return rand.Uint64()
}

// tellTaken tells them that such a call is not known any more.
func (m *Manager) tellTaken(of *stranded) {
	m.stranded.mu.Lock()
	hinted := of.hinted
	m.stranded.mu.Unlock()
	if hinted != 0 {
		m.elsewhere.Unstrand("", m.keysElsewhere(of), hinted)
	}
}

// keysElsewhere returns the keys that other nodes may find a stranded call by; nil: there are none.
func (m *Manager) keysElsewhere(of *stranded) (keys []byte) {
	if m.elsewhere == nil || of.doubtful {
		return nil
	}
	add := func(key again.Digest) {
		if key != (again.Digest{}) {
			keys = append(keys, key[:]...)
		}
	}
	if of.s.modern != "" { // a session's requests come to its node, but for those in other sessions
		add(of.keys[again.Asked])
	}
	if of.s.modern != "" || !of.s.principal.IsAnonymous() {
		add(of.keys[again.Named])
	}
	return keys
}

// Hint notes that a node knows a stranded call, by a name.
func (m *Manager) Hint(node string, keys []byte, name uint64) {
	for key := range again.EachKey(keys) {
		m.hints.Add(&again.Hint{Key: key, Node: node, Name: name, Since: time.Now()}, m.strandedFor())
	}
}

// Unhint notes that a node does not know a call any more. It reports whether the call was known.
func (m *Manager) Unhint(node string, keys []byte, name uint64) (known bool) {
	for key := range again.EachKey(keys) {
		known = m.hints.Forget(key, node, name) || known
		known = m.flying.far.Forget(key, node, name) || known
	}
	return known
}

// hintsOf returns what other nodes have told of calls that the request may be, the stranded ones first. Of the calls that a node has in flight it
// has one, as all are asked for at once.
func (c *Call) hintsOf() []again.Hint {
	m := c.s.m
	if m.hints.Kept() == 0 && m.flying.far.Kept() == 0 { // as a rule
		return nil
	}
	keys := c.keysFar()
	all := m.hints.Find(keys, m.strandedFor())
	for _, h := range m.flying.far.Find(keys, longestFlight) {
		switch i := slices.IndexFunc(all, func(other again.Hint) bool { return other.Node == h.Node }); {
		case i < 0:
			all = append(all, h)
		case all[i].InFlight && h.Near:
			all[i] = h
		}
	}
	return all
}

// Lend writes what a stranded call says that a request makes again, and which is not known here as such any more. It reports whether there
// is one; then the caller is to flush after each write.
func (m *Manager) Lend(ctx context.Context, query []byte, w io.Writer) (found bool) {
	var q loanQuery
	if json.Unmarshal(query, &q) != nil {
		return false
	}
	if q.Cancel {
		m.loans.cancel(q.Name)
		return false
	}
	msg, err := jsonrpc.Parse(q.Request)
	if err != nil || len(q.Talk) != len(again.Digest{}) || len(q.Client) != len(again.Digest{}) || !m.startWork() {
		return false
	}
	defer m.work.Done()
	sum := sumOf(&msg)
	if q.ID != nil {
		sum += idSum(q.ID)
	}
	like := again.LikenessOf(&msg, sum, m.opts.CallIDs)
	if like.IsZero() {
		return false
	}
	keys := like.KeysAt(again.Digest(q.Talk), again.Digest(q.Client))
	of, call, reason := m.takeFlying(ctx, keys, &q)
	if of == nil {
		return q.Left && m.flying.allWait(keys) && writeFrame(w, frameWaits, nil) == nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if call != nil {
		call.goesFar()
	}
	end := m.loans.begin(q.Name, &loan{cancel: stop})
	whole := of.lend(ctx, call, reason, w)
	switch cancelled := end(); {
	case whole:
	case !cancelled:
		of.comesBack(call)
	case call != nil && call.followers.Load() == 0 && !of.s.isClosed() && !of.s.streams.IsRead(of.number):
		call.Withdraw(textWithdrawn)
	}
	return true
}

// landsWithin is how long a node that is asked for a call waits for it to be stranded, as its client has left.
const landsWithin = 500 * time.Millisecond

// takeFlying takes a stranded call, as takeStranded does. It waits for one in flight whose client has left.
func (m *Manager) takeFlying(ctx context.Context, keys again.Keys, q *loanQuery) (*stranded, *Call, again.Reason) {
	found := keys
	if q.Safe {
		found[again.Asked] = again.Digest{}
	}
	came, pause := time.Now(), time.Millisecond
	for {
		leaves := !q.Left && m.flying.leaves(found, time.Since(came) < strandsWithin) // first: it may be stranded meanwhile
		of, call, reason := m.takeStranded(keys, q.Safe, came, nil)
		if of != nil || !leaves || ctx.Err() != nil || time.Since(came) > landsWithin {
			return of, call, reason
		}
		time.Sleep(pause)
		pause = min(2*pause, mostPause)
	}
}

// lend writes what a call says, and reports whether that was written to its end.
func (of *stranded) lend(ctx context.Context, call *Call, reason again.Reason, w io.Writer) bool {
	if call != nil {
		call.followers.Add(1)
		defer call.followers.Add(-1)
		call.Returned()
	}
	if writeFrame(w, frameTaken, []byte{byte(reason)}) != nil {
		return false
	}
	if of.number == 0 {
		return writeFrame(w, frameAnswer, of.answer) == nil
	}
	var failed error
	over, err := of.follow(ctx, call, func(e *stream.Entry) bool {
		kind := byte(frameMessage)
		if e.Last {
			kind = frameLast
		}
		failed = writeFrame(w, kind, e.Data)
		return e.Last || failed != nil
	})
	switch {
	case over:
		return failed == nil
	case err != nil:
		return writeFrame(w, frameUnknown, nil) == nil
	}
	return false
}

// comesBack notes that a call was lent, and that its borrower was lost.
func (of *stranded) comesBack(call *Call) {
	m := of.s.m
	m.stranded.mu.Lock()
	back := *of
	if call != nil {
		call.lent = false
	}
	m.stranded.mu.Unlock()
	back.since = time.Now()
	m.stranded.add(&back, m.strandedFor())
	if call != nil && of.s.modern != "" {
		call.AwaitReturn(wholeWithin, "the node of its client was lost, and the client did not come back in time")
	}
	m.tellStranded(&back)
}

// writeFrame writes a frame.
func writeFrame(w io.Writer, kind byte, data []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data))), data...))
	return err
}

// readFrame reads a frame.
func readFrame(r io.Reader) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > mostFrame {
		return 0, nil, errors.New("a frame that is too long")
	}
	var b bytes.Buffer
	_, err = io.CopyN(&b, r, int64(n))
	return head[0], b.Bytes(), err
}

// knownAs notes the id by which a modern client knows the call.
func (c *Call) knownAs(id []byte) {
	c.like.Sum = idSum(id)
	if m := c.s.m; m.hints.Kept() > 0 || m.flying.far.Kept() > 0 {
		c.known = bytes.Clone(id)
	}
}

// keysFar returns what other nodes may know the request's call by.
func (c *Call) keysFar() (keys again.Keys) {
	keys = keysIn(&c.like, c.s)
	keys[again.Whole] = again.Digest{} // of this node
	if c.s.modern == "" {
		keys[again.Asked] = again.Digest{}
	}
	return keys
}

// isFar reports whether another node may know the stranded call that the request makes again.
func (a *attachment) isFar() bool {
	c := a.c
	m := c.s.m
	if m.elsewhere == nil || len(c.hintsOf()) == 0 {
		return false
	}
	m.stranded.mu.Lock()
	defer m.stranded.mu.Unlock()
	return !c.lent // else that node's call may be this one
}

// lostWithin is how long a request waits for a stranded call whose node does not answer: another one may take its session over.
const lostWithin = 3 * time.Second

// borrow has the request answered by what a stranded call of another node says, and reports whether it is. If it is false the request is
// to be delivered.
func (a *attachment) borrow(ctx context.Context, msg *jsonrpc.Message) bool {
	c := a.c
	m := c.s.m
	talk, client := placesOf(c.s)
	q := loanQuery{Name: cryptorand.Text(), ID: c.known, Request: msg.Raw, Talk: talk[:], Client: client[:], Safe: a.safe}
	token := jsonrpc.Field(msg.Params, "_meta", "progressToken")
	asked := make(map[again.Hint]bool)
	var lost *again.Hint // of a node that may be lost
	wait := time.Time{}
	for ctx.Err() == nil {
		alike := false // there is, or was until just now, another call that is like it
		for _, h := range c.hintsOf() {
			if asked[h] {
				continue
			}
			asked[h] = true
			says, err := a.borrowFrom(ctx, &q, h.Node, token)
			// Of two that wait, and whose clients have left, one begins.
			alike = alike || err == nil && (says != loanWaits || c.flight == nil || h.Name < c.flight.name)
			switch {
			case says == loanTaken:
				return true
			case err != nil && a.isMeant(&h): // it may be lost, and with it what it knew
				lost, wait = &h, time.Now().Add(lostWithin)
			case err != nil && h.InFlight && !a.safe: // what it has borrowed, if that is it, is about to be stranded where it was
				wait = time.Now().Add(lostWithin)
				m.dropHint(h)
			case err != nil, !h.InFlight:
				m.dropHint(h)
			}
		}
		switch {
		case alike && a.ends():
			return true
		case time.Now().Before(wait):
		case lost == nil:
			return false
		default:
			return a.lose(ctx, &q, lost, token)
		}
		t := time.NewTimer(strandsWithin)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if a.find() { // the session has come here
			c.undecided.Store(false)
			a.begins()
			a.follow(ctx, token)
			return true
		}
	}
	return false
}

// lose ends the request, as the node is lost that has told of its call, and nobody has taken that over. It is false if the node is back, or another request
// was told so.
func (a *attachment) lose(ctx context.Context, q *loanQuery, lost *again.Hint, token []byte) bool {
	c := a.c
	m := c.s.m
	says, err := a.borrowFrom(ctx, q, lost.Node, token)
	if says == loanTaken {
		return true
	}
	var keys []byte
	for _, key := range c.keysFar() {
		keys = append(keys, key[:]...)
	}
	if err == nil || !m.Unhint(lost.Node, keys, lost.Name) {
		return false
	}
	m.elsewhere.Unstrand(lost.Node, keys, lost.Name)
	a.of = &stranded{}
	c.undecided.Store(false)
	a.begins()
	a.end(nil)
	return true
}

// isMeant reports whether the request would be attached to the call that a node, which is lost, has told of. The tool of a request that is safe may
// run twice.
func (a *attachment) isMeant(h *again.Hint) bool {
	switch keys := a.c.keysFar(); {
	case a.safe, h.InFlight && !h.Near: // the latter's client hears of it at its own node
		return false
	case h.InFlight, h.Key == keys[again.Named]:
		return true
	}
	return time.Since(h.Since) <= a.c.s.m.opts.AttachWithin
}

// A loanState is what a node says to a request for a call.
type loanState uint8

const (
	loanNone  loanState = iota
	loanTaken           // the request is answered by it
	loanWaits           // there is only one that has not begun, and whose client has left: said only if that of the request has left, too
)

// borrowFrom has the request answered by what a node says, if that has the call. If the request is cancelled the node hears of that before
// the connection to it ends. token is as in follow.
func (a *attachment) borrowFrom(ctx context.Context, q *loanQuery, node string, token []byte) (loanState, error) {
	to, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var over atomic.Bool
	defer context.AfterFunc(ctx, func() {
		if !over.Load() {
			a.givenBack(q, node)
			stop()
		}
	})()
	body, err := a.askFor(to, q, node)
	switch {
	case body != nil:
		defer func() { _ = body.Close() }()
	case ctx.Err() != nil:
		return loanTaken, err
	default:
		return loanNone, err
	}
	for begun := false; ; {
		kind, data, err := readFrame(body)
		if kind == frameWaits && err == nil {
			over.Store(true)
			return loanWaits, nil
		}
		if !begun {
			begun = true
			a.of = &stranded{}
			a.c.undecided.Store(false)
			a.begins()
			// Its node takes it for stranded if this one is lost. A request of the same client at another node finds it here.
			a.c.goesFar()
			a.c.s.m.tellFlights()
		}
		over.Store(err != nil || kind != frameMessage && kind != frameTaken)
		switch {
		case ctx.Err() != nil:
			return loanTaken, nil
		case err != nil, kind == frameUnknown:
			a.end(nil)
			return loanTaken, nil
		case kind == frameTaken && len(data) == 1 && data[0] < byte(again.Reasons):
			a.c.tellAttached(again.Reason(data[0]), "on node "+node)
		case kind == frameAnswer:
			a.end(data)
			return loanTaken, nil
		case kind == frameMessage, kind == frameLast:
			if a.say(&stream.Entry{Data: data, Last: kind == frameLast}, token) {
				return loanTaken, nil
			}
		}
	}
}

// askFor asks a node for the call. A node does not wait for a call whose client may have left if the client of the request has: the two would wait for
// each other.
func (a *attachment) askFor(ctx context.Context, q *loanQuery, node string) (io.ReadCloser, error) {
	for {
		q.Left = a.hasLeft(a.c.back.Load())
		query, err := json.Marshal(q)
		if err != nil {
			return nil, nil
		}
		if q.Left {
			return a.c.s.m.elsewhere.Borrow(ctx, node, query)
		}
		once, stop := context.WithCancel(ctx)
		unwatch := a.whenLeft(stop)
		body, err := a.c.s.m.elsewhere.Borrow(once, node, query)
		if left := unwatch(); !left || ctx.Err() != nil {
			context.AfterFunc(ctx, stop) // the body is read until then
			return body, err
		}
		stop()
		if body != nil {
			_ = body.Close()
		}
	}
}

// givenBack is given for a call of another node.
func (a *attachment) givenBack(q *loanQuery, node string) {
	m := a.c.s.m
	if a.c.s.isClosed() {
		return
	}
	query, err := json.Marshal(&loanQuery{Name: q.Name, Cancel: true})
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
	defer stop()
	if _, err := m.elsewhere.Borrow(ctx, node, query); err != nil {
		m.logger.Warn("a call on another node was not cancelled", "node", node, "error", err)
	}
}
