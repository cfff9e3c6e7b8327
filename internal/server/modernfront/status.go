package modernfront

import (
	"bytes"
	"errors"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// statusOf returns the HTTP status of a response: some error codes have their own (2026-07-28,
// Streamable HTTP, "Protocol Version Header", "Server Validation"; Overview, "_meta").
func statusOf(x *exchange.Exchange, response []byte) int {
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok { // the usual case: a result
		if rest, ok = bytes.CutPrefix(rest, x.Modern.ID); ok && bytes.HasPrefix(rest, []byte(`,"result":`)) {
			return http.StatusOK
		}
	}
	switch string(jsonrpc.Field(response, "error", "code")) {
	case "-32601":
		return http.StatusNotFound
	case "-32020", "-32021", "-32022":
		return http.StatusBadRequest
	case "-32602":
		if x.Modern.Returns { // the input is not valid, as a bad requestState of Holdfast's is not
			return http.StatusBadRequest
		}
	}
	return http.StatusOK
}

// write answers a modern request with one message: as JSON, or as the only event of a
// stream. An error with a status of its own is always JSON.
func (fr *Front) write(w http.ResponseWriter, x *exchange.Exchange, message []byte) {
	status := statusOf(x, message)
	switch {
	case status != http.StatusOK:
		fr.Answers.RejectAs(w, status, message)
	case fr.Streams && x.Form == answering.AnyForm:
		_ = fr.Answers.Answer(w, answering.OnlyEvents, [][]byte{message}, false) // the client may have left
	default:
		_ = fr.Answers.Answer(w, x.Form, [][]byte{message}, false)
	}
}

// reject answers a modern request with an error. Unlike older revisions, this one has no id null.
func (fr *Front) reject(w http.ResponseWriter, x *exchange.Exchange, status int, e *jsonrpc.Error) {
	fr.Answers.TellRefused(w, status, e)
	fr.Answers.RejectAs(w, status, answering.Error(x.Modern.ID, e))
}

// Fail answers a modern request with the status and the error response that explain err.
func (fr *Front) Fail(w http.ResponseWriter, x *exchange.Exchange, err error) {
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := fr.Answers.Explain(err)
	for _, f := range fr.Features {
		if no := f.NotFound(x.Msgs[0].Method); no != nil && errors.Is(err, session.ErrNotFound) {
			status, e = http.StatusOK, no
		}
	}
	if status == http.StatusTooManyRequests {
		limited := *e
		limited.Code = protocol.CodeRateLimited
		e = &limited
	}
	answering.SetRetryAfter(w, status, err)
	fr.Answers.TellRefused(w, status, err)
	fr.Answers.RejectAs(w, status, answering.Error(x.Modern.ID, e))
}
