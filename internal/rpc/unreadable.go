package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

const (
	// soonEnded is how long a request still waits if it alone can be meant by an answer that cannot be read: what was
	// read may be a copy of the answer in a server's log, with the answer to follow.
	soonEnded = 500 * time.Millisecond
	// lateEnded is how long the requests in flight still wait if any of them can be meant.
	lateEnded = 10 * time.Second

	maxQuote = 200 // characters of an answer that are quoted
)

// A Request is one that a server has not answered.
type Request interface {
	// Unreadable ends the request with an error, if it has no answer yet: a [jsonrpc.Error] of the server, or an
	// [UnreadableError]. It is called from a goroutine of its own.
	Unreadable(err error)
}

// Requests are those in flight at a server. Their methods may be called concurrently.
type Requests interface {
	// Named returns the request that has an id, or nil.
	Named(id []byte) Request
	// InFlight returns all of them.
	InFlight() []Request
	// GivenUp reports whether there were others that were given up before they were answered: a text without an id may
	// be the answer to one of these, which another client made.
	GivenUp() bool
}

// An UnreadableError says that a server's answer cannot be read. What the request has done is not known.
type UnreadableError struct {
	Quote string // how the answer begins, without secrets; "" if it may be another client's
	Cause error
}

// Error implements error.
func (e *UnreadableError) Error() string {
	if e.Quote == "" {
		return fmt.Sprintf("an answer of the server cannot be read, and may be the one to this request: %v", e.Cause)
	}
	return fmt.Sprintf("the server's answer cannot be read (%v): %s", e.Cause, e.Quote)
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.Cause }

// errAmbiguous says why an answer is not quoted.
var errAmbiguous = errors.New("it does not say which request it is for")

// CannotRead returns the [UnreadableError] of a text, and why it is no message.
func CannotRead(text []byte, why error) error {
	return &UnreadableError{Quote: Quote(text), Cause: why}
}

// Try reports whether a text that is no message is a try at a response, and returns the ids that could be read in it.
func Try(text []byte) (answer bool, ids [][]byte) {
	var s scanner
	s.take(text)
	return s.answer()
}

// Unreadable takes what one server says that is no message, and ends the requests whose answer it can be: the request
// whose id can be read in it; else the only one in flight; else, after ten seconds, all that were in flight and are
// unanswered. A text that is no try at an answer, such as a line of a log, ends none. Its methods must be called by one
// goroutine at a time.
type Unreadable struct {
	requests Requests

	text []byte // of the present try at a message, which may have several lines
	scan scanner
	last *suspicion // that was made of it

	mu     sync.Mutex
	closed bool
	timers sync.WaitGroup
	open   map[*suspicion]struct{}
}

// A suspicion is that a text was the answer to one of some requests.
type suspicion struct{ timer *time.Timer }

// NewUnreadable returns an Unreadable for the requests in flight at a server.
func NewUnreadable(requests Requests) *Unreadable { return &Unreadable{requests: requests} }

// Read says that a message was read: what follows is not the rest of a text before it.
func (u *Unreadable) Read() {
	if u.text != nil {
		u.text, u.scan, u.last = nil, scanner{}, nil
	}
}

// Take takes a text, and why it is no message.
func (u *Unreadable) Take(text []byte, why error) {
	if u.text != nil && !u.goesOn(text) {
		u.Read()
	}
	u.scan.take(text)
	switch {
	case u.text != nil || u.scan.begun():
		u.text = append(append(u.text, text...), '\n')
	default:
		u.text = bytes.Clone(text)
	}
	answer, ids := u.scan.answer()
	whole := u.text
	if answer {
		u.drop(u.last) // more is known now
		u.last = u.suspect(whole, ids, why)
	}
	if !u.scan.begun() {
		u.text, u.scan, u.last = nil, scanner{}, nil
	}
}

// goesOn reports whether a text can be the rest of the present try. A try that was cut off has no rest: what comes when its
// request has ended is something else, and so is an answer in one line.
func (u *Unreadable) goesOn(text []byte) bool {
	if len(u.text) > longestTry || u.last != nil && !u.waits(u.last) {
		return false
	}
	var alone scanner
	alone.take(text)
	answer, _ := alone.answer()
	return !answer
}

// waits reports whether a suspicion may still be withdrawn.
func (u *Unreadable) waits(s *suspicion) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.open[s]
	return ok
}

// longestTry bounds, in bytes, how many lines are taken for one try at a message.
const longestTry = 64 << 10

// suspect has the requests end that a text can be the answer to. It returns nil if there are none.
func (u *Unreadable) suspect(text []byte, ids [][]byte, why error) *suspicion {
	var all []Request
	for _, id := range ids {
		if rq := u.requests.Named(id); rq != nil {
			all = append(all, rq)
		}
	}
	wait := soonEnded
	err := CannotRead(text, why)
	if len(ids) == 0 {
		all = u.requests.InFlight()
		own := errorIn(text)
		switch {
		case len(all) > 1:
			wait = lateEnded
			err = &UnreadableError{Cause: errAmbiguous} // without the text: all but one of them must not have it
		case u.requests.GivenUp():
			err = &UnreadableError{Cause: errAmbiguous}
		case own != nil:
			err = own
		}
	}
	if len(all) == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	s := &suspicion{}
	u.timers.Add(1)
	if u.open == nil {
		u.open = make(map[*suspicion]struct{})
	}
	u.open[s] = struct{}{}
	s.timer = time.AfterFunc(wait, func() {
		defer u.timers.Done()
		u.mu.Lock()
		_, ok := u.open[s]
		delete(u.open, s)
		u.mu.Unlock()
		for _, rq := range all {
			if ok {
				rq.Unreadable(err)
			}
		}
	})
	return s
}

// drop withdraws a suspicion, which may be nil.
func (u *Unreadable) drop(s *suspicion) {
	if s == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.open, s)
	if s.timer.Stop() {
		u.timers.Done()
	}
}

// Close withdraws all suspicions, because the conversation has ended. No request is ended when it has returned.
func (u *Unreadable) Close() {
	u.mu.Lock()
	u.closed = true
	for s := range u.open {
		delete(u.open, s)
		if s.timer.Stop() {
			u.timers.Done()
		}
	}
	u.mu.Unlock()
	u.timers.Wait()
}

// errorIn returns the error of an error response, if the text is JSON that has one.
func errorIn(text []byte) *jsonrpc.Error {
	raw := jsonrpc.Field(text, "error")
	code, err := strconv.Atoi(string(jsonrpc.Field(raw, "code")))
	if err != nil {
		return nil
	}
	return &jsonrpc.Error{Code: code, Message: jsonrpc.String(jsonrpc.Field(raw, "message")), Data: bytes.Clone(jsonrpc.Field(raw, "data"))}
}

// Quote returns the beginning of a text, without secrets, as a quoted string.
func Quote(text []byte) string {
	whole := strings.TrimSpace(strings.ToValidUTF8(string(text[:min(len(text), 8*maxQuote)]), "\uFFFD"))
	var secrets *redact.Secrets
	runes := []rune(secrets.Text(whole))
	if len(runes) > maxQuote {
		return strconv.Quote(string(runes[:maxQuote])) + "…"
	}
	return strconv.Quote(string(runes))
}

// ErrorOf returns the error that a request ends with of which [Request.Unreadable] was called.
func ErrorOf(err error) *jsonrpc.Error {
	if own, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return own
	}
	return jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, err)
}
