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
	// soonEnded is how long a request still waits if an unreadable answer can only be for it: the text may be a copy
	// of the answer in a server's log, before the answer itself.
	soonEnded = 500 * time.Millisecond
	// lateEnded is how long the requests in flight still wait if the answer can be for any of them.
	lateEnded = 10 * time.Second

	maxQuote = 200 // characters of an answer that are quoted
)

// A Request is a request that a server has not answered.
type Request interface {
	// Unreadable ends the request with an error, if it has no answer yet: a [jsonrpc.Error] of the server, or an
	// [UnreadableError]. It is called from a goroutine of its own.
	Unreadable(err error)
}

// Requests are the requests in flight at a server. The methods may be called concurrently.
type Requests interface {
	// Named returns the request that has an id, or nil.
	Named(id []byte) Request
	// InFlight returns all requests.
	InFlight() []Request
	// GivenUp reports whether requests were given up before they were answered: a text without an id may be the answer
	// to one of these, from another client.
	GivenUp() bool
}

// An UnreadableError says that a server's answer cannot be read. The outcome of the request is unknown.
type UnreadableError struct {
	Quote string // the beginning of the answer, without secrets; "" if it may be another client's
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

// errAmbiguous is the cause for an answer that is not quoted.
var errAmbiguous = errors.New("it does not say which request it is for")

// CannotRead returns the [UnreadableError] of a text. why says why it is not a message.
func CannotRead(text []byte, why error) error {
	return &UnreadableError{Quote: Quote(text), Cause: why}
}

// Try reports whether a text that is not a message tries to be a response, and returns the ids that could be read in it.
func Try(text []byte) (answer bool, ids [][]byte) {
	var s scanner
	s.take(text)
	return s.answer()
}

// Unreadable takes texts of one server that are not messages, and ends the requests that a text can be the answer to:
// the request with the id in the text; or the only request in flight; or, after ten seconds, all that were in flight
// and are still unanswered. A text that does not try to be an answer, such as a line of a log, ends none. Its methods
// must be called by one goroutine at a time.
type Unreadable struct {
	requests Requests

	text []byte // of the current try at a message, which may have several lines
	scan scanner
	last *suspicion // about the current try

	mu     sync.Mutex
	closed bool
	timers sync.WaitGroup
	open   map[*suspicion]struct{}
}

// A suspicion is the assumption that a text was the answer to one of some requests.
type suspicion struct{ timer *time.Timer }

// NewUnreadable returns an Unreadable for the requests in flight at a server.
func NewUnreadable(requests Requests) *Unreadable { return &Unreadable{requests: requests} }

// Read notes that a message was read: the next text does not continue the text before it.
func (u *Unreadable) Read() {
	if u.text != nil {
		u.text, u.scan, u.last = nil, scanner{}, nil
	}
}

// Take takes a text that is not a message. why says why not.
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

// goesOn reports whether a text can be the rest of the current try. A try that was cut off has no rest: a text that comes
// after its request has ended is another one, and so is a line that tries to be an answer by itself.
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

// longestTry bounds the lines that are taken for one try at a message, in bytes.
const longestTry = 64 << 10

// suspect ends, after a wait, the requests that a text can be the answer to. It returns nil if there are none.
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
			err = &UnreadableError{Cause: errAmbiguous} // without the text: it belongs to only one of them
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

// Close withdraws all suspicions, because the conversation has ended. After it has returned, no request is ended.
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

// errorIn returns the error of an error response if it can be read in the text, or nil.
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

// ErrorOf returns the error with which a request ends after [Request.Unreadable] was called with err.
func ErrorOf(err error) *jsonrpc.Error {
	if own, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return own
	}
	return jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, err)
}
