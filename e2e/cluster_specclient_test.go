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
	"testing"
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
	c := r.now()
	err := c.Begin(ctx, mcptest.Initialize("2025-11-25", `{"elicitation":{}}`))
	r.session = c.Session
	return err
}

// now returns the client for the next request, which goes to the URL that at returns.
func (r *specClient) now() *mcptest.Client {
	return &mcptest.Client{URL: r.at(), Session: r.session, Revision: "2025-11-25", Header: []string{"User", r.user}, HTTP: r.http}
}

// exchange makes a request, and reads the answer to its end.
func (r *specClient) exchange(t *testing.T, method, body string, header ...string) mcptest.Reply {
	t.Helper()
	answer, err := r.now().Exchange(bounded(t, time.Minute), method, body, header...)
	if err != nil {
		t.Errorf("%s: %v, after %d %q", method, err, answer.Status, answer.Body)
	}
	return answer
}

func (r *specClient) close() { r.http.CloseIdleConnections() }

// listTools asks for the tools. Else a node on a busy machine may not yet know that a tool is retry-safe.
func (r *specClient) listTools(t *testing.T) {
	t.Helper()
	if r := r.exchange(t, "POST", mcptest.Request("tools", "tools/list", "{}")); r.Status != http.StatusOK {
		t.Fatalf("tools/list: %d %s", r.Status, r.Body)
	}
}

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

// newRecord returns the record of a call that has not begun.
func newRecord() *callRecord {
	return &callRecord{ids: make(map[string]bool), retry: 50 * time.Millisecond}
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

// params returns the members of the params, without _meta.
func (q request) params() string {
	args, _ := json.Marshal(q.args)
	return fmt.Sprintf(`"name":%q,"arguments":%s`, q.tool, args)
}

func (q request) body(id int64) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s,"_meta":{"progressToken":%[1]d}}}`, id, q.params())
}

// call makes a call, and resumes it until it has ended.
func (r *specClient) call(ctx context.Context, q request) *callRecord {
	return r.ask(ctx, r.ids.Add(1), q, "")
}

// ask makes a call under an id, or comes back to it after the event last, and resumes it until it has ended.
func (r *specClient) ask(ctx context.Context, id int64, q request, last string) *callRecord {
	s := newRecord()
	s.lastID = last
	r.stay(ctx, s, id, q)
	return s
}

func (r *specClient) stay(ctx context.Context, s *callRecord, id int64, q request) {
	header := []string{"Idempotency-Key", q.key}
	for idle := 0; !s.over() && s.err == nil; {
		before := len(s.ids)
		method, body := "POST", q.body(id)
		if s.lastID != "" {
			method, body, header = "GET", "", []string{"Last-Event-ID", s.lastID}
		}
		resp, err := r.now().Send(ctx, method, body, header...)
		if err == nil {
			err = s.take(id, resp)
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

// take reads a response to its end, or to a cut, and closes it. If the call is not over, the error says why.
func (s *callRecord) take(id int64, resp *http.Response) error {
	defer resp.Body.Close()
	s.link = cmp.Or(resp.Header.Get("Link"), s.link)
	isOK := resp.StatusCode == http.StatusOK
	if isOK && !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		for events := sse.NewReader(resp.Body, 1<<20); !s.over() && s.err == nil; {
			ev, err := events.Next()
			if err != nil {
				return err
			}
			s.event(ev, id)
		}
		return s.err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case isOK && err != nil:
		return err
	case isOK, resp.StatusCode == http.StatusGone && strings.Contains(string(body), "outcome unknown"):
		s.addMessage(body, id)
	case resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s: %s", errRefused, resp.Status, body)
	case resp.StatusCode >= 500:
		return fmt.Errorf("%s: %s", resp.Status, body)
	default:
		s.err = fmt.Errorf("after %q with id %q: %s: %s", s.received, s.lastID, resp.Status, body)
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

// want fails the test unless the call has ended, with its answer or with "outcome unknown", and check finds no fault.
func (s *callRecord) want(t *testing.T, q request, unknown bool) {
	t.Helper()
	if err := s.check(q); err != nil || !s.over() || s.unknown() != unknown {
		t.Errorf("%s %s: %v, received %q", q.tool, q.args.ID, err, tail(s.received))
	}
}

// start has a client begin a call. The record comes when the call has ended.
func start(ctx context.Context, c caller, q request) <-chan *callRecord {
	told := make(chan *callRecord, 1)
	go func() { told <- c.call(ctx, q) }()
	return told
}
