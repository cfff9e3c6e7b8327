package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
)

// A specClient is a client of revision 2025-11-25 that follows the specification and does no
// more: it resumes with Last-Event-ID, after the stream's retry time. Each of its requests goes
// to the URL that at returns. It may make calls concurrently.
type specClient struct {
	at      func() string
	user    string
	session string
	http    *http.Client
	ids     atomic.Int64
	// tries bounds the requests in a row that get no event; 0: no bound but the context.
	tries int
}

// fixed returns a function that always returns url.
func fixed(url string) func() string { return func() string { return url } }

// newSpecClient begins a session.
func newSpecClient(ctx context.Context, at func() string, user string) (*specClient, error) {
	r := &specClient{at: at, user: user, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}}
	for {
		err := r.initialize(ctx)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		time.Sleep(50 * time.Millisecond) // a node may be lost just now
	}
}

func (r *specClient) initialize(ctx context.Context) error {
	r.session = ""
	begun, err := mcptest.Read(r.send(ctx, "POST", nil, mcptest.Initialize("2025-11-25", `{"elicitation":{}}`))) //nolint:bodyclose // Read closes it
	if err != nil || begun.Status != http.StatusOK || !strings.Contains(begun.Body, `"result"`) {
		return fmt.Errorf("initialize: %d, %w: %s", begun.Status, err, begun.Body)
	}
	r.session = begun.Session()
	told, err := mcptest.Read(r.send(ctx, "POST", nil, mcptest.Initialized)) //nolint:bodyclose // Read closes it
	if err == nil && told.Status != http.StatusAccepted {
		err = fmt.Errorf("initialized: %d", told.Status)
	}
	return err
}

// send sends a request to the URL that at returns.
func (r *specClient) send(ctx context.Context, method string, header map[string]string, body string) (*http.Response, error) {
	c := &mcptest.Client{URL: r.at(), Session: r.session, Revision: "2025-11-25", Header: []string{"User", r.user}, HTTP: r.http}
	for name, value := range header {
		c.Header = append(c.Header, name, value)
	}
	return c.Send(ctx, method, body)
}

func (r *specClient) close() { r.http.CloseIdleConnections() }

// A callRecord holds the messages and event ids that a client has received of a call so far.
type callRecord struct {
	received []string // "progress N", "result TEXT", "error TEXT"
	ended    time.Time
	unsure   bool // the client does not know whether the call was delivered, and can't resume it
	why      error
	err      error
	ids      map[string]bool
	first    string // the first event id
	lastID   string
	link     string
	retry    time.Duration
	gaps     []time.Duration // from a cut to the next event
	cutAt    time.Time
}

func (s *callRecord) over() bool { return !s.ended.IsZero() }

// last returns the last message that was received, or "".
func (s *callRecord) last() string {
	if len(s.received) == 0 {
		return ""
	}
	return s.received[len(s.received)-1]
}

// unknown reports whether the call has ended with "outcome unknown".
func (s *callRecord) unknown() bool { return strings.HasPrefix(s.last(), "error outcome unknown") }

// A request is a tool's call.
type request struct {
	tool string
	args workArgs
	key  string // the Idempotency-Key, to send the call again if no event came
}

func (q request) body(id int64) string {
	args, _ := json.Marshal(q.args)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":%d}}}`,
		id, q.tool, args, id)
}

// call makes a call, and resumes it until it has ended.
func (r *specClient) call(ctx context.Context, q request) *callRecord {
	s := &callRecord{ids: make(map[string]bool), retry: 50 * time.Millisecond}
	r.stay(ctx, s, r.ids.Add(1), q)
	return s
}

func (r *specClient) stay(ctx context.Context, s *callRecord, id int64, q request) {
	header := map[string]string{}
	if q.key != "" {
		header["Idempotency-Key"] = q.key
	}
	for idle := 0; !s.over() && s.err == nil; {
		before := len(s.ids)
		method, body := "POST", q.body(id)
		if s.lastID != "" {
			method, body, header = "GET", "", map[string]string{"Last-Event-ID": s.lastID}
		}
		resp, err := r.send(ctx, method, header, body)
		if err == nil {
			err = r.take(s, id, resp)
			resp.Body.Close()
		}
		if s.over() || s.err != nil {
			return
		}
		if ctx.Err() == nil && s.lastID == "" && q.key == "" && !errors.Is(err, errRefused) {
			s.unsure, s.why = true, err
			return
		}
		if s.cutAt.IsZero() {
			s.cutAt = time.Now()
		}
		if idle++; len(s.ids) > before {
			idle = 0
		}
		if r.tries > 0 && idle >= r.tries {
			s.err = fmt.Errorf("gave up after %d tries, with %q, the last: %w", idle, tail(s.received), err)
			return
		}
		select {
		case <-time.After(s.retry):
		case <-ctx.Done():
			s.err = fmt.Errorf("hung after %q: %w, at last: %w", tail(s.received), ctx.Err(), err)
		}
	}
}

// tail returns the last messages of received.
func tail(received []string) []string { return received[max(0, len(received)-10):] }

// errRefused says that a request was refused before it had an effect.
var errRefused = errors.New("refused")

// take reads a response to its end, or to a cut. The caller closes it. If the call is not over, the error says
// why.
func (r *specClient) take(s *callRecord, id int64, resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests:
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%w: %s: %s", errRefused, resp.Status, body)
	case resp.StatusCode >= 500:
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s", resp.Status, body)
	default:
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusGone && strings.Contains(string(body), "outcome unknown") {
			s.addMessage(body, id)
			return nil
		}
		s.err = fmt.Errorf("after %q with id %q: %s: %s", s.received, s.lastID, resp.Status, body)
		return s.err
	}
	if link := resp.Header.Get("Link"); link != "" {
		s.link = link
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		body, err := io.ReadAll(resp.Body)
		if err == nil {
			s.addMessage(body, id)
		}
		return err
	}
	for events := sse.NewReader(resp.Body, 1<<20); !s.over() && s.err == nil; {
		ev, err := events.Next()
		if err != nil {
			return err
		}
		s.event(ev, id)
	}
	return s.err
}

func (s *callRecord) event(ev sse.Event, id int64) {
	if ev.Retry >= 0 {
		s.retry = ev.Retry
	}
	if ev.ID != "" {
		if s.ids[ev.ID] {
			s.err = fmt.Errorf("event %s came twice, after %q: %s", ev.ID, s.received, ev.Data)
			return
		}
		s.first = cmp.Or(s.first, ev.ID)
		s.ids[ev.ID] = true
		s.lastID = ev.ID
		if !s.cutAt.IsZero() {
			s.gaps = append(s.gaps, time.Since(s.cutAt))
			s.cutAt = time.Time{}
		}
	}
	if len(ev.Data) > 0 {
		s.addMessage(ev.Data, id)
	}
}

// A shortMessage has the members of a message that tests read.
type shortMessage struct {
	ID     json.RawMessage
	Method string
	Params struct{ Progress float64 }
	Result *toolResult
	Error  *struct{ Message string }
	text   string // "progress N", "result TEXT", "error TEXT", or the whole message
}

func inShort(data []byte) (m shortMessage, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%w in %s", err, data)
	}
	switch m.text = string(data); {
	case m.Method == "notifications/progress":
		m.text = fmt.Sprintf("progress %v", m.Params.Progress)
	case m.Result != nil && len(m.Result.Content) == 1:
		m.text = "result " + m.Result.Content[0].Text
	case m.Error != nil:
		m.text = "error " + m.Error.Message
	}
	return m, nil
}

// addMessage records a message.
func (s *callRecord) addMessage(data []byte, id int64) {
	m, err := inShort(data)
	switch {
	case err != nil:
		s.err = err
		return
	case m.Method != "" && m.Method != "notifications/progress":
		m.text = m.Method
	case m.Method == "" && m.Error == nil && string(m.ID) != fmt.Sprint(id):
		s.err = fmt.Errorf("the response of %s came to call %d: %s", m.ID, id, data)
		return
	}
	s.received = append(s.received, m.text)
	if m.Method == "" {
		s.ended = time.Now()
	}
}

// check returns an error unless each message of the call came once and in order. A retry-safe
// call may have run again, but its client does not see that: progress never goes back.
func (s *callRecord) check(q request) error {
	if s.err != nil {
		return s.err
	}
	if !s.over() {
		return nil // the client is unsure
	}
	want := counted(0, q.args.Steps)
	want[q.args.Steps] = "result did " + q.args.ID
	n := len(s.received)
	failed := s.unknown() && n <= len(want) && slices.Equal(s.received[:n-1], want[:n-1])
	if !slices.Equal(s.received, want) && !failed {
		return fmt.Errorf("received %q", s.received)
	}
	return nil
}
