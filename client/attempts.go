package client

import (
	"context"
	"errors"
	"net/url"
	"time"
)

// An attemptKind is one way to bring a call on: its request, or a way back to it.
type attemptKind int

// The kinds of attempt, the best one first.
const (
	attemptNext    attemptKind = iota // the step that the server's answer asks for first
	attemptAnswers                    // POST the host's responses to the stream URL (SEP-1335)
	attemptWait                       // nothing: the connection still carries the call's messages
	attemptStream                     // GET the stream URL (SEP-1335)
	attemptEvents                     // GET with the last event id
	attemptToken                      // requests/resume with the resume token (SEP-975)
	attemptRequest                    // the request, which the server does not have
	attemptAgain                      // the request, which the server may have
	attemptKinds                      // how many there are
	attemptNone    attemptKind = -1
)

// A transport carries the attempts of calls: each over an HTTP exchange of its own
// ([exchanges]), or all over one connection ([mux]). A call's life is written once, in
// [call.run], above this interface.
type transport interface {
	// ready waits until an attempt for the call can be made. An error ends the call.
	ready(k *call) error
	// can reports whether a kind of attempt leads to the call over this transport, as it
	// was when ready returned. k.mu is held.
	can(k *call, kind attemptKind) bool
	// attempt makes an attempt, and reads the messages that it brings until the call is
	// answered or no more will come. left reports whether the attempt may have reached the
	// server. An error says how it ended: [errNext] if another attempt follows at once.
	attempt(k *call, kind attemptKind) (left bool, err error)
	// send delivers a message that has no response, and tries again while the server is out
	// of reach, for up to atMost. k is the call that it belongs to, or nil.
	send(ctx context.Context, k *call, raw []byte, atMost time.Duration) error
	// pong delivers the answer to a ping, which came in the call k, or in none.
	pong(ctx context.Context, k *call, raw []byte) error
	// shared reports whether all calls share one connection: then messages differ by their
	// ids alone, and there is no standalone stream to open.
	shared() bool
}

// ways are the ways back to a call that the server has offered, and which of them it has
// refused since.
type ways struct {
	stream   *url.URL // SEP-1335
	token    string   // SEP-975
	tokenFor []byte   // the id of the request that the token is for, as the server knows it
	received position // event ids
	seen     eventIDs
	refused  [attemptKinds]bool
	restarts bool // the call was asked for from its start, see fromStart
}

// found reports whether the server has offered a way back.
func (w *ways) found() bool { return w.stream != nil || w.received.last != "" || w.token != "" }

// refuse notes that the server has refused a kind of attempt: it is not made again.
func (w *ways) refuse(kind attemptKind) {
	if kind == attemptAnswers {
		kind = attemptStream // both have the same URL
	}
	w.refused[kind] = true
}

// tokenAs notes the resume token of the request that was sent under an id.
func (w *ways) tokenAs(token string, id []byte) {
	w.token, w.tokenFor, w.refused[attemptToken] = token, id, false
}

// A position is how far a call's stream was received.
type position struct {
	last string // event id
	// before is, if behind, the event id before the first message that waits for the host: a
	// request that it has not answered, or the response. Another process continues from there.
	before string
	behind bool
}

// advance notes an event id. Until [position.settle] another process continues before it.
func (p *position) advance(id string) {
	if !p.behind {
		p.before, p.behind = p.last, true
	}
	p.last = id
}

// settle notes that no received message waits for the host any more.
func (p *position) settle() { p.behind = false }

// choose returns the best kind of attempt that leads to the call.
func (k *call) choose() attemptKind {
	k.mu.Lock()
	defer k.mu.Unlock()
	for kind := range attemptKinds {
		if k.has(kind) && !k.ways.refused[kind] && (kind == attemptNext || k.transport.can(k, kind)) {
			return kind
		}
	}
	return attemptNone
}

// has reports whether the call has the id, URL, token or request that a kind of attempt takes. k.mu is held.
func (k *call) has(kind attemptKind) bool {
	switch kind {
	case attemptNext:
		return k.next != nil
	case attemptAnswers:
		return k.turns.batch != nil && k.ways.stream != nil
	case attemptWait:
		return k.state == callTaken
	case attemptStream:
		return k.ways.stream != nil
	case attemptEvents:
		return k.ways.received.last != ""
	case attemptToken:
		return k.ways.token != ""
	case attemptRequest:
		return k.body != nil && k.state == callUnsent
	case attemptAgain:
		return k.body != nil && k.state != callUnsent && (k.key != "" || k.safe())
	}
	return false
}

// resumable reports whether the call could be continued if its connection ended now.
func (k *call) resumable() bool { return k.hasWay() || k.safe() }

// hasWay reports whether the call can be continued without being made again: by a way back, or under its key.
func (k *call) hasWay() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kind := range []attemptKind{attemptStream, attemptEvents, attemptToken} {
		if k.has(kind) && !k.ways.refused[kind] {
			return true
		}
	}
	return k.key != ""
}

// noWay says why a call can't be continued.
func (k *call) noWay() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.backoff.last != nil:
		return k.backoff.last
	case k.transport.shared() && k.sends >= mostCuts:
		return errCutOften
	case k.origin.maybeSent:
		return errors.New("the process that was to send the request ended, and the server offers no way to ask for it")
	case k.body == nil && k.transport.shared() && !k.transport.can(k, attemptToken):
		return errors.New("a call cannot be continued over HTTP+SSE: use the URL of the server's Streamable HTTP endpoint")
	case k.ways.found() && !k.transport.shared(), k.ways.refused[attemptAgain]:
		return errForgotten
	case k.state == callTaken:
		return errors.New("the connection ended before the answer, and the server offers no way to ask again")
	}
	return errors.New("the connection was lost before the server answered, and the request may have arrived")
}
