package mcptest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// accepted are the media types that a client of Streamable HTTP takes.
const accepted = "application/json, text/event-stream"

// Unpooled is an HTTP client that has a connection for each request, so that no connection is open after its test.
var Unpooled = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// NewRequest returns an HTTP request with a message, or without one if body is "". header has names and values of further fields in pairs; a
// value of "" leaves its field out. A message of 2026-07-28 gets the fields of that revision.
func NewRequest(ctx context.Context, method, url, body string, header ...string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accepted)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if strings.Contains(body, `"io.modelcontextprotocol/protocolVersion":"`+Modern+`"`) {
		setModern(req.Header, body)
	}
	set(req.Header, header)
	req.Host = req.Header.Get("Host") // "": the host of the URL
	return req, nil
}

// set sets fields that come in pairs of a name and a value. A value of "" removes a field.
func set(to http.Header, pairs []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			to.Del(pairs[i])
			continue
		}
		to.Set(pairs[i], pairs[i+1])
	}
}

// setModern sets the fields of 2026-07-28 that repeat parts of a message.
func setModern(to http.Header, body string) {
	m, err := jsonrpc.Parse([]byte(body))
	if err != nil {
		return // the test sends a wrong message on purpose
	}
	set(to, []string{"MCP-Protocol-Version", Modern, "Mcp-Method", m.Method})
	for _, member := range []string{"name", "uri", "taskId"} {
		if name := jsonrpc.String(jsonrpc.Field(m.Params, member)); name != "" {
			to.Set("Mcp-Name", name)
		}
	}
}

// Send sends a request from [NewRequest] with http.DefaultClient. The caller closes the body of the answer.
func Send(ctx context.Context, method, url, body string, header ...string) (*http.Response, error) {
	req, err := NewRequest(ctx, method, url, body, header...)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// Exchange is like [Send], and reads the answer to its end.
func Exchange(ctx context.Context, method, url, body string, header ...string) (Reply, error) {
	return Read(Send(ctx, method, url, body, header...))
}

// Post posts a message, and reads the answer to its end.
func Post(t testing.TB, url, body string, header ...string) Reply {
	t.Helper()
	r, err := Exchange(t.Context(), http.MethodPost, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A Reply is an answer that was read to its end.
type Reply struct {
	Status int
	Header http.Header
	Body   string
}

// Read reads an answer to its end, and closes it. Its arguments are the results of http.Client.Do. If the body breaks off, the Reply has the
// bytes that came.
func Read(resp *http.Response, err error) (Reply, error) {
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Reply{resp.StatusCode, resp.Header, string(body)}, err
}

// Session returns the id of the session that the answer begins.
func (r Reply) Session() string { return r.Header.Get("Mcp-Session-Id") }

// Message returns the last message of the answer: the data of its last event with data, else its body.
func (r Reply) Message() string {
	message := ""
	for events := sse.NewReader(strings.NewReader(r.Body), len(r.Body)+1); ; {
		ev, err := events.Next()
		if err != nil {
			break
		}
		if len(ev.Data) > 0 {
			message = string(ev.Data)
		}
	}
	if message == "" {
		return r.Body
	}
	return message
}

// Decode decodes the last message of the answer into a value.
func (r Reply) Decode(v any) error {
	if err := json.Unmarshal([]byte(r.Message()), v); err != nil {
		return fmt.Errorf("%w: %d %q", err, r.Status, r.Body)
	}
	return nil
}

// A Client is a client of one session, over HTTP. Its fields are set before it is used. Its methods may be called concurrently, except Begin,
// and Ask for initialize.
type Client struct {
	URL      string
	Session  string       // set by Begin, or Ask
	Revision string       // "": the requests of the session do not name it
	Header   []string     // names and values of further fields of each request
	HTTP     *http.Client // nil: http.DefaultClient

	ids atomic.Int64 // of the requests of Ask
}

// Send sends a request, with a message if body is not "". The caller closes the body of the answer.
func (c *Client) Send(ctx context.Context, method, body string, header ...string) (*http.Response, error) {
	var session []string
	if c.Session != "" {
		session = []string{"Mcp-Session-Id", c.Session, "MCP-Protocol-Version", c.Revision}
	}
	req, err := NewRequest(ctx, method, c.URL, body, append(append(session, c.Header...), header...)...)
	if err != nil {
		return nil, err
	}
	if c.HTTP == nil {
		return http.DefaultClient.Do(req)
	}
	return c.HTTP.Do(req)
}

// Exchange is like [Client.Send], and reads the answer to its end.
func (c *Client) Exchange(ctx context.Context, method, body string, header ...string) (Reply, error) {
	return Read(c.Send(ctx, method, body, header...))
}

// Open sends a request, and returns the answer. The end of the test closes it.
func (c *Client) Open(t testing.TB, method, body string, header ...string) *http.Response {
	t.Helper()
	resp, err := c.Send(t.Context(), method, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// Post posts a message, and reads the answer to its end.
func (c *Client) Post(t testing.TB, body string, header ...string) Reply {
	t.Helper()
	r, err := c.Exchange(t.Context(), http.MethodPost, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Ask makes a request with a new id, and decodes the last message of the answer; or it sends a notification. The answer to initialize begins
// the session.
func (c *Client) Ask(ctx context.Context, method, params string, into any) (Reply, error) {
	body, notifies := Request(c.ids.Add(1), method, params), strings.HasPrefix(method, "notifications/")
	if notifies {
		body = Note(method, params)
	}
	r, err := c.Exchange(ctx, http.MethodPost, body)
	if err == nil && (!notifies || r.Body != "") {
		err = r.Decode(into)
	}
	if method == "initialize" {
		c.Session = r.Session()
	}
	return r, err
}

// Begin begins the session with an initialize request from [Initialize].
func (c *Client) Begin(ctx context.Context, initialize string) error {
	r, err := c.Exchange(ctx, http.MethodPost, initialize)
	if err != nil {
		return err
	}
	if c.Session = r.Session(); r.Status != http.StatusOK || c.Session == "" {
		return fmt.Errorf("initialize: %d %s", r.Status, r.Body)
	}
	if r, err = c.Exchange(ctx, http.MethodPost, Initialized); err != nil {
		return err
	}
	if r.Status != http.StatusAccepted || r.Body != "" {
		return fmt.Errorf("initialized: %d %s", r.Status, r.Body)
	}
	return nil
}
