// Package answering answers requests over HTTP: with results, and with what the errors of the floors below mean there. It is the
// only place where an error becomes a status.
package answering

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/outage"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// A Writer answers requests: with results, and with what errors mean. It tells observers of those that are refused.
type Writer struct {
	WriteTimeout time.Duration // how long one write may wait for a slow client
	Outage       *outage.Outage
	Observers    observe.Observers            // nil: nobody is told
	Server       func(context.Context) string // returns the name of the server that a request is for, or ""
	Logger       *slog.Logger
}

// A Form is in which form a client takes the answer to a POST.
type Form uint8

// The forms.
const (
	AnyForm    Form = iota // JSON or a stream of events, as the server chooses
	OnlyJSON               // one JSON text. Nothing can come before the response
	OnlyEvents             // a stream of events
)

// shortAnswer is how many bytes net/http gathers of an answer, to say by itself how long it is.
const shortAnswer = 2 << 10

// Answer writes the responses of a call as JSON, or as events to a client that takes nothing else. A cancelled one has
// none. Nothing is done for the request after that.
func (a *Writer) Answer(w http.ResponseWriter, as Form, answers [][]byte, batch bool) error {
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if as == OnlyEvents {
		return a.answerEvents(w, answers)
	}
	body := answers[0]
	if batch {
		body = Append(nil, answers, true)
	}
	head := w.Header()
	head["Content-Type"] = typeJSON
	if len(body) > shortAnswer {
		head["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	return a.Finish(w, body)
}

// answerEvents writes responses as a stream of events that is over. It cannot be resumed.
func (a *Writer) answerEvents(w http.ResponseWriter, answers [][]byte) error {
	var text []byte
	for _, a := range answers {
		text = placement.AppendEvent(w, text, nil, a)
	}
	OpenEvents(w.Header())
	if to := placement.SinkOf(w); to != nil {
		return to.Write(text)
	}
	return a.Finish(w, text)
}

// Append appends the responses of a light call.
func Append(text []byte, answers [][]byte, batch bool) []byte {
	if !batch {
		return append(text, answers[0]...)
	}
	for i, a := range answers {
		text = append(text, "[,"[min(i, 1)])
		text = append(text, a...)
	}
	return append(text, ']')
}

// surelySent is how many bytes of a response the system takes off our hands
// whether the client reads or not: so few need no bound on the time it takes.
const surelySent = 8 << 10

// Finish writes the body of an answer to its end. The time that it may take is
// bounded, as that of a write to a stream. The last byte goes out when the request was served: a client that closes its
// connection once it has the whole answer has not left before that.
func (a *Writer) Finish(w http.ResponseWriter, body []byte) error {
	if len(body) <= shortAnswer { // which net/http holds until then
		_, err := w.Write(body)
		return err
	}
	body, end := body[:len(body)-1], body[len(body)-1:]
	if len(body) < surelySent {
		if _, err := w.Write(body); err != nil {
			return err
		}
		_, err := w.Write(end)
		return err
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(a.WriteTimeout))
	if _, err := w.Write(body); err != nil {
		return err
	}
	err := c.Flush()
	if err == nil {
		_ = c.SetWriteDeadline(time.Time{}) // the connection may be used for more requests
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err = w.Write(end)
	return err
}

// Error returns an error response; id may be nil: revision 2026-07-28 knows none that is null.
func Error(id []byte, e *jsonrpc.Error) []byte {
	if id != nil {
		return jsonrpc.AppendError(nil, id, e)
	}
	body, _ := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", e})
	return body
}

// Caught answers a request for which code of the user panicked before there was an
// answer. Any other panic is net/http's business.
func (a *Writer) Caught(w http.ResponseWriter) {
	switch p := recover().(type) {
	case nil:
	case *panics.Error:
		a.Fail(w, p)
	default:
		panic(p)
	}
}

var (
	typeJSON   = []string{"application/json"}
	typeSSE    = []string{sse.ContentType}
	noCache    = []string{"no-cache, no-transform"}
	unbuffered = []string{"no"}
)

// OpenEvents says in a header that a stream of events follows.
func OpenEvents(head http.Header) {
	head["Content-Type"] = typeSSE
	head["Cache-Control"] = noCache
	head["X-Accel-Buffering"] = unbuffered // or nginx gathers what should be seen at once
}
