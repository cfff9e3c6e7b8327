// Package ownprogress makes progress notifications of our own for requests with a silent server, so that hosts which wait
// longer for a call that makes progress do so. They say no more than that the request runs.
package ownprogress

import (
	"bytes"
	"math"
	"strconv"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// StillRunning is the message of our own progress, if the server's has none.
const StillRunning = "still running"

// A Pulse is the progress of one request, the server's and our own. One goroutine uses it at a time, until the notification
// is queued: the order of the stream is that of the values.
type Pulse struct {
	every time.Duration
	due   time.Duration // when our next notification is, by the caller's clock
	token []byte        // raw, as the client spelled it

	said           bool    // a notification was sent
	ours           bool    // one of our own was sent
	last           float64 // the value of the last notification
	total, message []byte  // raw, of the server's last notification; nil: it has none
}

// New returns the pulse of a request with a progress token. Our notifications are due after each silence of the length every.
func New(every, now time.Duration, token []byte) *Pulse {
	return &Pulse{every: every, due: now + every, token: bytes.Clone(token)}
}

// Of returns the pulse of the token in params; nil: none has that token.
func Of(all []*Pulse, params []byte) *Pulse {
	if len(all) == 0 {
		return nil
	}
	key := string(jsonrpc.Key(jsonrpc.Field(params, "progressToken")))
	for _, p := range all {
		if string(jsonrpc.Key(p.token)) == key {
			return p
		}
	}
	return nil
}

// Due returns when our next notification is due; far in the future for nil.
func (p *Pulse) Due() time.Duration {
	if p == nil {
		return math.MaxInt64
	}
	return p.due
}

// step returns a value that is greater than another, by so little that no server's next value is less.
func step(value float64) float64 {
	next := value + max(math.Abs(value), 1)*0x1p-40
	if math.IsInf(next, 0) {
		return value
	}
	return next
}

// Beat returns our next notification, at a time. runs says that the server has the request. was has the values that were sent under
// the tokens of the call before the call is made again.
func (p *Pulse) Beat(now time.Duration, runs bool, was map[string]float64) []byte {
	p.due = now + p.every
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
		params = append(append(params, `,"message":`...), jsonrpc.Quote(StillRunning)...)
	}
	return jsonrpc.AppendRequest(nil, nil, protocol.MethodProgress, append(params, '}'))
}

// Hear takes in a notification of the server at a time, and returns it as the client gets it: a value that ours has passed is raised.
func (p *Pulse) Hear(m *jsonrpc.Message, now time.Duration) []byte {
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

// copied returns a copy of a member; nil if it is not there, is null or is too long.
func copied(object []byte, member string) []byte {
	value := jsonrpc.Field(object, member)
	if value == nil || string(value) == "null" || len(value) > jsonrpc.MaxName {
		return nil
	}
	return append([]byte(nil), value...)
}
