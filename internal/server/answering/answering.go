// Package answering answers requests over HTTP, with results and with errors. It is the only place where an error of the floors
// below becomes a status.
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
	"holdfast/internal/outagelog"
	"holdfast/internal/panics"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// A Writer answers requests with results and errors, and tells observers of refused requests.
type Writer struct {
	WriteTimeout time.Duration // how long one write may wait for a slow client
	Outage       *outagelog.Outage
	Observers    observe.Observers            // nil: no observer is told
	Server       func(context.Context) string // returns the name of the server that a request is for, or ""
	Logger       *slog.Logger
}

// A Form is the form in which a client takes the answer to a POST.
type Form uint8

// The forms.
const (
	AnyForm    Form = iota // JSON or a stream of events, as the server chooses
	OnlyJSON               // one JSON text: no message can come before the response
	OnlyEvents             // a stream of events
)

// shortAnswer is how many bytes of an answer net/http gathers, and then sets Content-Length itself.
const shortAnswer = 2 << 10

// Answer writes the responses of a call as JSON, or as events to a client that takes only these. Without responses,
// after a cancellation, it writes status 202. It must be the end of the request's handling.
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

// Append appends the responses of a light call to text, as a JSON array for a batch.
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

// surelySent is how many bytes of a response the system takes even if the
// client does not read: writing so few needs no deadline.
const surelySent = 8 << 10

// Finish writes the body of an answer to its end, within WriteTimeout. The last byte is sent when the handler returns,
// so that a client that closes its connection after the whole answer has not left before that.
func (a *Writer) Finish(w http.ResponseWriter, body []byte) error {
	if len(body) <= shortAnswer { // net/http holds them until the handler returns
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

// Error returns an error response. With a nil id it has no id: revision 2026-07-28 does not allow null.
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

// Caught answers a request if the application's code has panicked before an
// answer. It must be deferred. Other panics go on to net/http.
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
