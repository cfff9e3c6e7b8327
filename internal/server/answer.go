package server

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/outage"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// An answerer answers requests: with results, and with what errors mean. It tells observers of those that are refused.
type answerer struct {
	response     Response
	writeTimeout time.Duration
	outage       *outage.Outage
	observers    observe.Observers
	logger       *slog.Logger
}

func newAnswerer(opts *Options) answerer {
	return answerer{
		response: opts.Response, writeTimeout: opts.WriteTimeout, outage: opts.Outage, observers: opts.Observers, logger: opts.Logger,
	}
}

// shortAnswer is how many bytes net/http gathers of an answer, to say by itself how long it is.
const shortAnswer = 2 << 10

// answer writes the responses of a call as JSON, or as events to a client that takes nothing else. A cancelled one has
// none. Nothing is done for the request after that.
func (a *answerer) answer(w http.ResponseWriter, as form, answers [][]byte, batch bool) error {
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if as == onlyEvents {
		return a.answerEvents(w, answers)
	}
	body := answers[0]
	if batch {
		body = appendAnswers(nil, answers, true)
	}
	head := w.Header()
	head["Content-Type"] = typeJSON
	if len(body) > shortAnswer {
		head["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	return a.finish(w, body)
}

// answerEvents writes responses as a stream of events that is over. It cannot be resumed.
func (a *answerer) answerEvents(w http.ResponseWriter, answers [][]byte) error {
	var text []byte
	for _, a := range answers {
		text = sse.AppendMessage(text, nil, a)
	}
	head := w.Header()
	head["Content-Type"], head["Cache-Control"], head["X-Accel-Buffering"] = typeSSE, noCache, unbuffered
	return a.finish(w, text)
}

// appendAnswers appends the responses of a light call.
func appendAnswers(text []byte, answers [][]byte, batch bool) []byte {
	if !batch {
		return append(text, answers[0]...)
	}
	for i, a := range answers {
		text = append(text, "[,"[min(i, 1)])
		text = append(text, a...)
	}
	return append(text, ']')
}

// finish writes the body of an answer to its end. The time that it may take is
// bounded, as that of a write to a stream. The last byte goes out when the request was served: a client that closes its
// connection once it has the whole answer has not left before that.
func (a *answerer) finish(w http.ResponseWriter, body []byte) error {
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
	_ = c.SetWriteDeadline(time.Now().Add(a.writeTimeout))
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

// writeModern answers a modern request with one message: as JSON, or as the only event of a
// stream. An error that has a status of its own is JSON.
func (a *answerer) writeModern(w http.ResponseWriter, x *exchange, message []byte) {
	status := x.statusOf(message)
	switch {
	case status != http.StatusOK:
		a.rejectAs(w, status, message)
	case a.response == ResponseSSE && x.form == anyForm:
		_ = a.answer(w, onlyEvents, [][]byte{message}, false) // who has gone does not hear it
	default:
		_ = a.answer(w, x.form, [][]byte{message}, false)
	}
}

// rejectModern answers a modern request with an error. Unlike older revisions this one knows
// no id that is null.
func (a *answerer) rejectModern(w http.ResponseWriter, x *exchange, status int, e *jsonrpc.Error) {
	a.tellRefused(w, status, e)
	a.rejectAs(w, status, modernError(x.modern.ID, e))
}

// modernError returns an error response; id may be nil.
func modernError(id []byte, e *jsonrpc.Error) []byte {
	if id != nil {
		return jsonrpc.AppendError(nil, id, e)
	}
	body, _ := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", e})
	return body
}

// failModern answers a modern request with what an error means.
func (a *answerer) failModern(w http.ResponseWriter, x *exchange, err error) {
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := a.explain(err)
	for _, f := range x.modern.features {
		if no := f.NotFound(x.msgs[0].Method); no != nil && errors.Is(err, session.ErrNotFound) {
			status, e = http.StatusOK, no
		}
	}
	if status == http.StatusTooManyRequests {
		limited := *e
		limited.Code = protocol.CodeRateLimited
		e = &limited
	}
	setRetryAfter(w, status, err)
	a.tellRefused(w, status, err)
	a.rejectAs(w, status, modernError(x.modern.ID, e))
}

// caught answers a request for which code of the user panicked before there was an
// answer. Any other panic is net/http's business.
func (a *answerer) caught(w http.ResponseWriter) {
	switch p := recover().(type) {
	case nil:
	case *panics.Error:
		a.fail(w, p)
	default:
		panic(p)
	}
}
