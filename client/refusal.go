package client

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"holdfast/jsonrpc"
)

// A refusal is an answer that says that the server did not do what was asked, or
// a reason to think that it was not asked at all.
type refusal struct {
	status int            // 0: the request was not sent
	rpc    *jsonrpc.Error // what the server said in JSON-RPC; may be nil
	text   string
	auth   bool          // it is our authorizer's, not the server's
	after  time.Duration // how long to wait before asking again; 0: not said
	later  bool          // it says when to ask again
	why    error         // where it is code of the user's that failed
}

// forgot says whether the server does not know the session any more. That is 404,
// but many servers made after the TypeScript SDK's example say 400.
func (e *refusal) forgot() bool {
	if e.status == http.StatusNotFound {
		return true
	}
	if e.status != http.StatusBadRequest || e.rpc == nil {
		return false
	}
	said := strings.ToLower(e.rpc.Message)
	return strings.Contains(said, "no valid session") || strings.Contains(said, "session not found") ||
		strings.Contains(said, "invalid session") || strings.Contains(said, "unknown session")
}

// certain says whether the server has certainly not done what it was asked. A 503
// means so (RFC 9110, section 15.6.4), but is also what proxies make of a server
// that has died with the request (Envoy: "upstream connect error or disconnect/reset
// before headers"). Those don't say when to ask again.
func (e *refusal) certain() bool {
	switch e.status {
	case http.StatusGone:
		return false
	case http.StatusServiceUnavailable:
		return e.later
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return e.status >= 400 && e.status < 500
}

// passes says whether the same may be taken later.
func (e *refusal) passes() bool {
	switch e.status {
	case http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusTooEarly:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.status >= 500
}

// shuts says whether a way to come back to a call is closed, rather than out of
// order.
func (e *refusal) shuts() bool {
	switch e.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusGone, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return e.status < 400 && e.status != 0
}

// Error implements error.
func (e *refusal) Error() string {
	switch {
	case e.rpc != nil && e.status != 0:
		return fmt.Sprintf("%s (HTTP %d)", e.rpc.Message, e.status)
	case e.status != 0 && e.text == "":
		return fmt.Sprintf("HTTP %d %s", e.status, http.StatusText(e.status))
	case e.status != 0:
		return fmt.Sprintf("%s (HTTP %d)", e.text, e.status)
	}
	return e.text
}

// refused reads what a response with an error status says, and closes it. Many servers
// repeat there what they were sent.
func (c *Conn) refused(r *response) *refusal {
	defer r.Close()
	r.events = true // all of it is to come in that time
	r.expect(c.opts.ConnectTimeout)
	e := &refusal{status: r.StatusCode, after: r.retryAfter(), later: r.Header.Get("Retry-After") != ""}
	data, err := r.all(64 << 10)
	if err != nil || len(data) == 0 {
		return e
	}
	if said := jsonrpc.Field(data, "error"); said != nil && said[0] == '{' { // with an id or without
		e.rpc = errorOf([]byte(c.remote.secrets.Text(string(said))))
		return e
	}
	if strings.HasPrefix(r.media(), "text/plain") {
		text, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		e.text = fmt.Sprintf("%.200s", c.remote.secrets.Text(text))
	}
	return e
}
