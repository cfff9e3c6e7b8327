package client

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/rpc"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// A refusal is an error response of HTTP, or the reason why a request was not sent.
type refusal struct {
	status int            // 0: the request was not sent
	rpc    *jsonrpc.Error // the JSON-RPC error in its body; may be nil
	text   string
	auth   bool          // the Authorizer has refused, not the server
	after  time.Duration // how long to wait before the next request; 0: it does not say
	later  bool          // it has a Retry-After
	why    error         // the error of the user's code, if that has failed

	said     string          // its body, without secrets
	response jsonrpc.Message // the JSON-RPC response in its body, if that has an id
	answer   bool            // response is the server's answer to the request
	// instead is the error of the request if its session is not lost: the body cannot be used. Nil: the refusal itself.
	instead error
	page    bool // its body is a web page or the like: a proxy or a login page may stand before the server for a while
}

// forgot reports whether the server says that it does not know the session any more. Other refusals may mean that,
// too: see [call.doubts].
func (e *refusal) forgot() bool { return e.status == http.StatusNotFound }

// certain reports whether the request has certainly not run. A 503 means so (RFC 9110, section
// 15.6.4). But proxies also send it when a server has died with the request (Envoy: "upstream
// connect error or disconnect/reset before headers"): such a 503 has no Retry-After.
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

// passes reports whether the server may take the same request later.
func (e *refusal) passes() bool {
	if e.page {
		return true
	}
	switch e.status {
	case http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusTooEarly:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.status >= 500
}

// shuts reports whether the refusal shuts a way back to a call for good, rather than for now.
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
	case e.status != 0 && !strings.HasSuffix(e.text, fmt.Sprintf("(HTTP %d)", e.status)): // as an Authorizer may say, too
		return fmt.Sprintf("%s (HTTP %d)", e.text, e.status)
	}
	return e.text
}

// accepted closes the response to a message that has no answer, and returns the refusal if the server has not taken the message.
func (s *remote) accepted(r *response) error {
	if r.StatusCode >= 300 {
		return s.refused(r)
	}
	defer r.Close()
	if r.isPage() {
		return &refusal{status: r.StatusCode, page: true, text: "a web page came in the place of the server's answer"}
	}
	return nil
}

// refused reads an error response, and closes it. Many servers repeat the request there, so secrets are removed.
func (s *remote) refused(r *response) *refusal {
	defer r.Close()
	r.events = true // the whole body must come in that time
	r.expect(s.opts.ConnectTimeout)
	e := &refusal{status: r.StatusCode, after: r.retryAfter(), later: r.Header.Get("Retry-After") != ""}
	data, err := r.all(64<<10, nil)
	if err != nil || len(data) == 0 {
		return e
	}
	data = bytes.TrimPrefix([]byte(s.secrets.Text(string(data))), []byte("\xef\xbb\xbf"))
	if r.media() == sse.ContentType {
		data = lastEvent(data)
	}
	e.said = string(data)
	if msgs, err := rpc.Parse(data); err == nil && len(msgs) == 1 && msgs[0].Error != nil {
		e.response, e.rpc = msgs[0], errorOf(msgs[0].Error)
		return e
	}
	if raw := jsonrpc.Field(data, "error"); raw != nil && raw[0] == '{' { // without an id
		e.rpc = errorOf(raw)
		return e
	}
	if strings.HasPrefix(r.media(), "text/plain") {
		text, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		e.text = fmt.Sprintf("%.200s", text)
	}
	return e
}

// lastEvent returns the data of the last event of a text that has data.
func lastEvent(text []byte) (data []byte) {
	events := sse.NewReader(bytes.NewReader(text), len(text))
	for {
		ev, err := events.Next()
		if err != nil {
			return data
		}
		if len(ev.Data) > 0 {
			data = bytes.Clone(ev.Data)
		}
	}
}
