package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/mcptest"
)

// An answer is the answer to a request, of any revision, with the members that tests read.
type answer struct {
	Status int    `json:"-"` // of HTTP
	text   string // the whole message
	Result struct {
		ResultType, RequestState string
		InputRequests            map[string]json.RawMessage
		Content                  []struct{ Text string }
		TaskID, Status           string      // of a task
		Error                    answerError // of a task that has failed
		Task                     struct{ TaskID, Status string }
		Tasks                    []struct{ TaskID string }
		Meta                     struct {
			Call struct {
				Handle, Status string
				Error          answerError
			} `json:"holdfast/handoff"`
		} `json:"_meta"`
	}
	Error *answerError
}

type answerError struct {
	Code    int
	Message string
	Data    struct{ RequiredCapabilities json.RawMessage }
}

// ask makes a request of a client at a URL.
func ask(ctx context.Context, c *mcptest.Client, url, method, params string) (a answer, err error) {
	c.URL = url
	r, err := c.Ask(ctx, method, params, &a)
	a.Status, a.text = r.Status, r.Message()
	return a, err
}

// askModern is ask for a client without a session.
func askModern(ctx context.Context, url, method, params string, header ...string) (answer, error) {
	return ask(ctx, &mcptest.Client{Header: header}, url, method, params)
}

// settled returns an error also for an answer after which the client should try again.
func settled(a answer, err error) (answer, error) {
	if err == nil && (a.Status >= 500 || a.Status == http.StatusTooManyRequests || a.Status >= 300 && a.Error == nil) {
		err = fmt.Errorf("%d: %s", a.Status, a.text)
	}
	return a, err
}

// poll makes a request again and again, until it has an answer that is the last.
func poll(ctx context.Context, try func() (answer, error), isLast func(a answer) bool) (answer, error) {
	for {
		a, err := try()
		if err == nil && isLast(a) {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, fmt.Errorf("%w, at last %s: %w", ctx.Err(), a.text, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// meta returns the _meta of a client of revision 2026-07-28 without a name.
func meta(capabilities string) string {
	return fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":%s}`, mcptest.Modern, capabilities)
}
