package client

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// next returns the exchange that brings the call on: its request, or the best
// door back to it. It reports false if there is none. sent will say whether the
// request may have left.
func (k *call) next(sent *atomic.Bool) (exchange, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.session
	x := exchange{session: &s, wait: k.c.opts.ConnectTimeout}
	p := &k.place
	switch answers := k.turns.sending; {
	case answers != nil && p.stream != nil:
		k.door, x.method, x.url, x.body, x.last, x.sent = doorAnswers, http.MethodPost, p.stream, answers, p.last, sent
		k.turns.flown = len(k.turns.sent)
		if !s.keys {
			x.wait = k.c.opts.AnswerTimeout // it may go on with the call before it says anything
		}
	case p.stream != nil && !k.dead.stream:
		k.door, x.method, x.url, x.last = doorStream, http.MethodGet, p.stream, p.last
		x.wait = k.pace.bound(x.wait)
	case p.last != "" && !k.dead.last:
		k.door, x.method, x.last, x.sent = doorLast, http.MethodGet, p.last, sent
		x.wait = k.pace.bound(x.wait)
	case p.token != "" && !k.dead.token:
		k.door, x.method, x.body, x.last = doorToken, http.MethodPost, k.resume(), p.last
		x.wait = k.pace.bound(x.wait)
	case k.body == nil:
		return x, false
	case !k.maybe:
		k.door, x.sent = doorPost, sent
		k.post(&x)
	case !k.dead.again && (k.key != "" || k.safe()):
		// Who has the key attaches to the call, after what we have of it. What has
		// no key is sent under another id: it may be in flight under this one.
		k.door, x.sent, x.last = doorAgain, sent, p.last
		if k.key == "" && k.method != protocol.MethodInitialize {
			k.wire = k.c.newID()
			x.last = ""
		}
		k.post(&x)
	default:
		return x, false
	}
	return x, true
}

// post fills in the request itself. k.mu is held.
func (k *call) post(x *exchange) {
	k.progress.sent++
	x.method, x.body, x.key, x.wait, x.headers = http.MethodPost, k.body, k.key, k.patience(), k.mirror
	if string(k.wire) != string(k.id) {
		if m, err := jsonrpc.Parse(bytes.Clone(k.body)); err == nil {
			x.body = m.WithID(k.wire)
		}
	}
}

// mirror sets the headers that repeat what is in the body (2026-07-28).
func (k *call) mirror(h http.Header) {
	if k.method == protocol.MethodInitialize {
		delete(h, protocol.HeaderSession)
		delete(h, protocol.HeaderVersion)
		return
	}
	mirror(h, k.method, k.body)
}

// patience is how long the header of the answer may take. k.mu is held.
func (k *call) patience() time.Duration {
	switch {
	case k.method == protocol.MethodInitialize, k.method == protocol.MethodDiscover:
		return k.c.opts.ConnectTimeout
	case k.key != "":
		return k.c.opts.Silence // who honours keys says at once that it has the call
	}
	return k.c.opts.AnswerTimeout
}

// resume is the request that asks for the call by its token (SEP-975). k.mu is
// held.
func (k *call) resume() []byte {
	k.wire = k.id
	params := jsonrpc.Object("resumeToken", k.place.token)
	return jsonrpc.AppendRequest(nil, k.id, protocol.MethodResume, params)
}
