package load

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// revision is the revision that the benchmarks speak.
const revision = "2025-11-25"

// modern is the revision without sessions.
const modern = "2026-07-28"

// firstID is the lowest id of a request; all ids have as many digits, so that a new id can be
// written over the last one.
const firstID = 10_000_000

// A Request is an HTTP request, ready to be written again and again.
type Request struct {
	raw []byte
	id  int // offset of the id's digits in raw, or 0
	n   int
}

// Post returns a request that posts one JSON-RPC message. If the message has "id":10000000, each
// call of [Request.Next] changes that id.
func Post(addr, path, session, message string) *Request {
	raw := head("POST", addr, path, session)
	raw = fmt.Appendf(raw, "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(message), message)
	r := &Request{raw: raw}
	if at := bytes.Index(raw, []byte(`"id":`+strconv.Itoa(firstID))); at > 0 {
		r.id = at + len(`"id":`)
	}
	return r
}

// PostModern returns a request that calls a tool as a client of revision 2026-07-28.
func PostModern(addr, path, tool, args string) *Request {
	return postModern(addr, path, "tools/call", tool, call(tool, args, modernMeta("{}")))
}

// ModernEcho returns the message of a call of echo in revision 2026-07-28.
func ModernEcho(size int) string { return call("echo", EchoArgs(size), modernMeta("{}")) }

// tasks is the capability of clients that know tasks.
const tasks = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// CreateTask calls a tool as a client that knows tasks, and returns the id of the task that the
// call has become.
func (c *Client) CreateTask(path, tool, args string) (string, error) {
	res, err := c.Do(postModern(c.addr, path, "tools/call", tool, call(tool, args, modernMeta(tasks))))
	if err != nil {
		return "", fmt.Errorf("create a task: %w", err)
	}
	const before = `"taskId":"`
	if err := res.Expect(200, before); err != nil {
		return "", fmt.Errorf("create a task: %w", err)
	}
	_, rest, _ := bytes.Cut(res.Body, []byte(before))
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(id), nil
}

// GetTask returns a request that asks for a task.
func GetTask(addr, path, id string) *Request {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tasks/get","params":{"taskId":%q%s}}`, firstID, id, modernMeta(tasks))
	return postModern(addr, path, "tasks/get", id, message)
}

// modernMeta returns the _meta of a request of revision 2026-07-28, as a further member.
func modernMeta(capabilities string) string {
	return `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + modern + `",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
}

func postModern(addr, path, method, name, message string) *Request {
	headers := fmt.Sprintf("Mcp-Protocol-Version: %s\r\nMcp-Method: %s\r\nMcp-Name: %s\r\n", modern, method, name)
	r := Post(addr, path, "", message)
	at := bytes.Index(r.raw, []byte("Content-Type:"))
	r.raw = slices.Insert(r.raw, at, []byte(headers)...)
	r.id += len(headers)
	return r
}

// Get returns a request for a stream: the standalone one, or the one of the last event id.
func Get(addr, path, session, lastEventID string) *Request {
	raw := head("GET", addr, path, session)
	if lastEventID != "" {
		raw = fmt.Appendf(raw, "Last-Event-ID: %s\r\n", lastEventID)
	}
	return &Request{raw: append(raw, "\r\n"...)}
}

func head(method, addr, path, session string) []byte {
	accept := "application/json, text/event-stream"
	if method == "GET" {
		accept = "text/event-stream"
	}
	raw := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n", method, path, addr, accept)
	if session != "" {
		raw = fmt.Appendf(raw, "Mcp-Session-Id: %s\r\nMcp-Protocol-Version: %s\r\n", session, revision)
	}
	return raw
}

// Next gives the request an id that it did not have before, and returns it.
func (r *Request) Next() *Request {
	if r.id > 0 {
		r.n++
		strconv.AppendInt(r.raw[:r.id], int64(firstID+r.n), 10)
	}
	return r
}

// Handshake initializes a session and returns its id.
func (c *Client) Handshake(path string) (string, error) {
	res, err := c.Do(Post(c.addr, path, "", fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
		firstID, revision)))
	if err != nil {
		return "", fmt.Errorf("initialize: %w", err)
	}
	session := res.Session
	if err := res.Expect(200, `"protocolVersion"`); err != nil {
		return "", fmt.Errorf("initialize: %w", err)
	}
	res, err = c.Do(Post(c.addr, path, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	if err == nil {
		err = res.Expect(202, "")
	}
	if err != nil {
		return "", fmt.Errorf("initialized: %w", err)
	}
	return session, nil
}

// Echo returns the message of a call of echo with a text of size bytes.
func Echo(size int) string { return call("echo", EchoArgs(size), "") }

// EchoArgs returns the arguments of echo with a text of size bytes.
func EchoArgs(size int) string { return fmt.Sprintf(`{"text":%q}`, strings.Repeat("e", size)) }

// Progress returns the message of a call of progress.
func Progress(n, size int) string {
	return call("progress", fmt.Sprintf(`{"n":%d,"size":%d}`, n, size), `,"_meta":{"progressToken":"bench"}`)
}

// Slow returns the message of a call of slow.
func Slow(ms int) string {
	return call("slow", fmt.Sprintf(`{"ms":%d}`, ms), "")
}

func call(tool, args, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`,
		firstID, tool, args, meta)
}

// progressEvent marks an event that reports progress.
var progressEvent = []byte(`"notifications/progress"`)

// Events counts the progress events in a body.
func Events(body []byte) int { return bytes.Count(body, progressEvent) }

// FirstEventID returns the event id of the first progress event in a body, or "".
func FirstEventID(body []byte) string {
	at := bytes.Index(body, progressEvent)
	if at < 0 {
		return ""
	}
	from := bytes.LastIndex(body[:at], []byte("\n\n")) + 1
	end := at + max(bytes.Index(body[at:], []byte("\n\n")), 0)
	for line := range bytes.SplitSeq(body[from:end], []byte("\n")) {
		if id, ok := bytes.CutPrefix(line, []byte("id:")); ok {
			return string(bytes.TrimSpace(id))
		}
	}
	return ""
}
