package answering

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"holdfast/internal/limit"
	"holdfast/jsonrpc"
)

// explainLimit is Explain for the refusal of a limit.
func explainLimit(no *limit.Refusal) (status int, e *jsonrpc.Error) {
	if no.Never() {
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", no)
	}
	after := no.RetryAfter()
	e = jsonrpc.Errorf(jsonrpc.CodeServer, "%v: nothing was begun, try again in %d s", no, after)
	e.Data, _ = json.Marshal(map[string]int{"retryAfter": after})
	return http.StatusTooManyRequests, e
}

// SetRetryAfter sets Retry-After for a request that is refused with status 429 or 503.
func SetRetryAfter(w http.ResponseWriter, status int, err error) {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return
	}
	after := 1
	var no *limit.Refusal
	if errors.As(err, &no) {
		after = no.RetryAfter()
	}
	w.Header().Set("Retry-After", strconv.Itoa(after))
}
