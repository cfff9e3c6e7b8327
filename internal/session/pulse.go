package session

import (
	"math"
	"strconv"
	"time"

	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows sends progress of our own for requests whose server is silent, so that hosts which wait longer for a call
// that makes progress do so. It says no more than that the request runs.

// stillRunning is the message of progress of ours, where the server's has none.
const stillRunning = "still running"

// A pulse is the progress of one request, of its server and of ours. Guarded by Session.mu, which is also held while
// what it says is queued: the order of the stream is that of the values.
type pulse struct {
	every time.Duration
	due   time.Duration // when our next is, by the manager's clock
	token []byte        // raw, as the client spelled it

	said           bool    // there was any
	ours           bool    // there was one of ours
	last           float64 // the value of the last one
	total, message []byte  // raw, of the server's last one; nil: it has none
}

// keeps returns the interval in which a request of the call is sent progress, and whether that has its host go on
// waiting; 0: none is sent. Session.mu is held.
func (c *Call) keeps(m *jsonrpc.Message, host hosts.Host) (every time.Duration, kept bool) {
	if c.s.m.opts.ProgressEvery == nil || m.Method == protocol.MethodToolsList || c.guestOf() != "" || c.IsPolled(m) ||
		jsonrpc.Field(m.Params, "_meta", "progressToken") == nil {
		return 0, false
	}
	every = c.s.m.opts.ProgressEvery(host)
	return every, host.IsKept(every)
}

// step returns a value that is greater than another, by so little that no server's next one is less.
func step(value float64) float64 {
	next := value + max(math.Abs(value), 1)*0x1p-40
	if math.IsInf(next, 0) {
		return value
	}
	return next
}

// beat returns the next progress of ours. runs says that the server has the request, and was what has been said under the
// tokens of its call before that is made again.
func (p *pulse) beat(runs bool, was progress) []byte {
	switch before, again := was[string(jsonrpc.Key(p.token))]; {
	case again && (!p.said || p.last < before):
		p.last = step(before)
	case p.said:
		p.last = step(p.last)
	}
	p.said, p.ours = true, true
	params := append([]byte(`{"progressToken":`), p.token...)
	params = strconv.AppendFloat(append(params, `,"progress":`...), p.last, 'g', -1, 64)
	if p.total != nil {
		params = append(append(params, `,"total":`...), p.total...)
	}
	switch {
	case p.message != nil:
		params = append(append(params, `,"message":`...), p.message...)
	case runs:
		params = append(append(params, `,"message":`...), jsonrpc.Quote(stillRunning)...)
	}
	return jsonrpc.AppendRequest(nil, nil, protocol.MethodProgress, append(params, '}'))
}

// hear takes in the server's own progress at a time. It returns that as it is to be told: a value that ours has passed is raised.
func (p *pulse) hear(m *jsonrpc.Message, now time.Duration) []byte {
	p.due = now + p.every
	_, value, ok := protocol.Progress(m.Params)
	if !ok {
		return m.Raw
	}
	data := m.Raw
	if p.ours && value <= p.last {
		value = step(p.last)
		if params, ok := jsonrpc.Set(m.Params, strconv.AppendFloat(nil, value, 'g', -1, 64), "progress"); ok {
			data = jsonrpc.AppendRequest(nil, nil, m.Method, params)
		}
	}
	p.said, p.last = true, value
	p.total, p.message = copied(m.Params, "total"), copied(m.Params, "message")
	return data
}

// copied returns a member, without what it is a part of; nil if it is not there, or null.
func copied(object []byte, member string) []byte {
	value := jsonrpc.Field(object, member)
	if value == nil || string(value) == "null" || len(value) > jsonrpc.MaxName {
		return nil
	}
	return append([]byte(nil), value...)
}

// pulseOf returns the pulse of the call's request with a progress token; nil if it has none. Session.mu is held.
func (c *Call) pulseOf(params []byte) *pulse {
	if c.record == nil || len(c.record.pulses) == 0 {
		return nil
	}
	key := string(jsonrpc.Key(jsonrpc.Field(params, "progressToken")))
	for _, p := range c.record.pulses {
		if string(jsonrpc.Key(p.token)) == key {
			return p
		}
	}
	return nil
}

// tell queues progress of the call. Session.mu is held; the log must be flushed after.
func (c *Call) tell(data []byte) {
	to := c
	to.mu.Lock()
	if to.sharesStream() {
		to.mu.Unlock()
		to = c.s.standalone
		to.mu.Lock()
	}
	defer to.mu.Unlock()
	if to.isOver() {
		return
	}
	if to.isLight() {
		to.promote()
	}
	to.push(data, false)
	if to.record != nil && to.record.watched != nil {
		to.record.watched.Said(data)
	}
}
