package transcripts_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
)

var update = flag.Bool("update", false, "write the transcripts of testdata anew")

// A placement says which node has a client's session, and what happens to that node
// in the middle of the conversation.
type placement struct {
	name  string
	at    int           // the node of the client's connection; the session begins at node 0
	moves func(n *node) // happens to node 0 in the middle; or nil
}

// alone is the index in placements of the node without other nodes.
const alone = 1

var placements = []*placement{
	{"the session is here", 0, nil},
	{"there is one node, with its memory", 0, nil},
	{"the session is on another node", 1, nil},
	{"the session is on another node, which leaves", 1, func(n *node) { n.leave(200 * time.Millisecond) }},
	{"the session is on another node, which is killed", 1, (*node).kill},
	{"the session is here, and the node leaves", 0, func(n *node) { n.leave(200 * time.Millisecond) }},
	{"the session is here, and the node is killed", 0, (*node).kill},
}

// A scenario is a conversation. It is recorded for each placement.
type scenario struct {
	name  string
	stays bool                    // it has no middle in which a node could leave
	never func(p *placement) bool // reports impossible placements; or nil
	o     holdfast.Options
	talk  func(c *client)
}

// record records scenarios, and compares the transcripts with those of testdata.
func record(t *testing.T, all []scenario) {
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", s.name+".txt")
			for range attempts {
				got := summary(s.record(t))
				if testlong.Race || t.Failed() || compare(t, path, got) {
					return
				}
			}
			t.Errorf("%s differs each of %d times", path, attempts)
		})
	}
}

// attempts is how often a scenario is recorded at most until its transcript is right. A
// machine that stands still for a second changes the transcript: after that time the
// connection of a call that waits for input is ended, and a lost call is continued.
const attempts = 3

// record records the scenario for each placement.
func (s *scenario) record(t *testing.T) []string {
	said := make([]string, len(placements))
	t.Run("at", func(t *testing.T) {
		for i, p := range placements {
			if s.stays && p.moves != nil || s.never != nil && s.never(p) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				n := 3
				if p == placements[alone] {
					n = 1
				}
				c := &client{t: t, nodes: newNodes(t, n, s.o), place: p, names: map[string]string{}, counts: map[string]int{}}
				c.node = c.nodes.all[0]
				defer func() { said[i] = c.tape.String() }() // also if the scenario fails midway
				s.talk(c)
			})
		}
	})
	return said
}

const middle = "-- in the middle\n"

// summary joins the transcripts of all placements. If a half is the same as an
// earlier one, it refers to it.
func summary(said []string) string {
	var file strings.Builder
	seen := map[string]string{} // the first placement of each half
	for i, all := range said {
		if all == "" {
			continue
		}
		fmt.Fprintf(&file, "== %s\n", placements[i].name)
		for j, half := range strings.SplitAfter(all, middle) {
			if first, ok := seen[fmt.Sprint(j, half)]; ok {
				fmt.Fprintf(&file, "(as where %s)\n", first)
				if strings.HasSuffix(half, middle) {
					file.WriteString(middle)
				}
				continue
			}
			seen[fmt.Sprint(j, half)] = placements[i].name
			file.WriteString(half)
		}
	}
	return file.String()
}

func compare(t *testing.T, path, got string) (same bool) {
	t.Helper()
	if *update && !t.Failed() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // as git has it
			t.Fatal(err)
		}
		return true
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: go test -update writes it", err)
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			line := func(of []string) string { return strings.Join(of[min(i, len(of)):min(i+3, len(of))], "\n") }
			t.Logf("%s differs from line %d:\ngot\n%s\nwant\n%s\n\nall that was said:\n%s", path, i+1, line(g), line(w), got)
			return false
		}
	}
	return true
}

// client is a client, with the transcript of its messages.
type client struct {
	t     testing.TB
	nodes *nodes
	place *placement
	node  *node // the node of its connection

	session string // of Mcp-Session-Id, or ""
	version string
	who     string // the principal

	tape    strings.Builder
	names   map[string]string // the placeholder for each id
	counts  map[string]int    // of the names
	answers int
	moved   bool
}

// note writes a line of the transcript.
func (c *client) note(format string, args ...any) {
	c.tape.WriteString(c.plain(fmt.Sprintf(format, args...)) + "\n")
}

// named replaces the first group of a pattern with a name and a number.
type named struct {
	name    string
	pattern *regexp.Regexp
}

var ids = []named{
	{"EVENT", regexp.MustCompile(`(?m)(?:^\[\d+\] id: |Last-Event-ID: )([A-Za-z0-9_.~-]+)`)},
	{"STREAM", regexp.MustCompile(`stream=([A-Za-z0-9_.~-]+)`)},
	{"PAIR", regexp.MustCompile(`sessionId=([A-Za-z0-9_-]+)`)},
	{"SESSION", regexp.MustCompile(`Mcp-Session-Id: ([A-Za-z0-9_-]+)`)},
	{"TOKEN", regexp.MustCompile(`"(?:resumeToken|holdfast/resumeToken)":"([^"]+)"`)},
	{"EVENT", regexp.MustCompile(`"holdfast/(?:lastEventId|eventId)":"([^"]+)"`)},
}

// plain replaces the parts of a line that differ from run to run.
func (c *client) plain(line string) string {
	for _, id := range ids {
		for _, m := range id.pattern.FindAllStringSubmatch(line, -1) {
			if c.names[m[1]] == "" && !strings.HasPrefix(m[1], "made-up") {
				c.counts[id.name]++
				c.names[m[1]] = fmt.Sprint(id.name, c.counts[id.name])
			}
		}
	}
	long := make([]string, 0, len(c.names))
	for id := range c.names {
		long = append(long, id)
	}
	slices.SortFunc(long, func(a, b string) int { return len(b) - len(a) })
	for _, id := range long {
		line = strings.ReplaceAll(line, id, c.names[id])
	}
	for i, n := range c.nodes.all {
		line = strings.ReplaceAll(line, n.addr, fmt.Sprint("NODE", i))
	}
	return line
}

// goOver moves the client to the node of its placement.
func (c *client) goOver() { c.node = c.nodes.all[c.place.at] }

// move makes the session's node leave or die, if the placement says so. A
// client that was connected to that node moves to another one.
func (c *client) move() {
	c.note("-- in the middle")
	if c.place.moves == nil {
		return
	}
	c.place.moves(c.nodes.all[0])
	c.moved = true
	if c.place.at == 0 {
		c.node = c.nodes.all[1]
	}
}

// open opens a gate, so that the calls that wait for it go on.
func (c *client) open(gate string) {
	close(c.nodes.tools.gate(gate))
}

const (
	takesBoth = "Accept: application/json, text/event-stream"
	isJSON    = "Content-Type: application/json"
)

// request sends a request, on a connection of its own.
func (c *client) request(method, target, body string, extra ...string) *answer {
	c.t.Helper()
	return c.exactly(method, target, body, append([]string{takesBoth, isJSON}, extra...)...)
}

// exactly sends a request with the given headers, and the session's.
func (c *client) exactly(method, target, body string, header ...string) *answer {
	c.t.Helper()
	c.answers++
	a := &answer{c: c, number: c.answers}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, c.node.addr)
	shown := ""
	add := func(line string) {
		head += line + "\r\n"
		if line != takesBoth && line != isJSON {
			shown += "\n    " + line
		}
	}
	if c.session != "" {
		add("Mcp-Session-Id: " + c.session)
		if c.version >= "2025-06-18" {
			head += "MCP-Protocol-Version: " + c.version + "\r\n"
		}
	}
	if c.who != "" {
		head += "Authorization: Bearer " + c.who + "\r\n"
	}
	for _, line := range header {
		add(line)
	}
	if body != "" {
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
		shown += "\n    " + body
	}
	c.note("[%d] > %s %s%s", a.number, method, target, shown)
	conn := mcptest.Must(net.Dial("tcp", c.node.addr))(c.t)
	c.t.Cleanup(func() { _ = conn.Close() })
	a.conn = conn.(*net.TCPConn)
	mcptest.Must(io.WriteString(conn, head+"\r\n"+body))(c.t)
	return a
}

// post sends a message and records the whole answer.
func (c *client) post(body string, extra ...string) {
	c.t.Helper()
	a := c.request("POST", "/mcp", body, extra...)
	a.rest()
}

// answer is a response with its connection.
type answer struct {
	c      *client
	number int
	conn   *net.TCPConn
	res    *http.Response
	events *sse.Reader
	last   string // the id of the last event
	link   string // of the stream
}

var link = regexp.MustCompile(`<([^>]+)>; rel="stream"`)

// head reads the header.
func (a *answer) head() *http.Response {
	a.c.t.Helper()
	if a.res != nil {
		return a.res
	}
	a.wait()
	res, err := http.ReadResponse(bufio.NewReader(a.conn), nil)
	if err != nil {
		a.c.t.Fatalf("[%d]: no response: %v", a.number, err)
	}
	a.res = res
	a.c.note("[%d] < %s", a.number, res.Status)
	var lines []string
	for name, values := range res.Header {
		if name == "Date" || name == "Content-Length" || name == "Connection" {
			continue
		}
		for _, v := range values {
			lines = append(lines, fmt.Sprintf("    %s: %s", name, v))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		a.c.note("%s", line)
	}
	if m := link.FindStringSubmatch(res.Header.Get("Link")); m != nil {
		a.link = "/mcp" + m[1]
	}
	if id := res.Header.Get("Mcp-Session-Id"); id != "" && a.c.session == "" {
		a.c.session = id
	}
	return res
}

// wait sets a deadline for the next read: a machine may stand still.
func (a *answer) wait() { _ = a.conn.SetReadDeadline(time.Now().Add(2 * time.Minute)) }

func (a *answer) isStream() bool {
	a.c.t.Helper()
	if !strings.HasPrefix(a.head().Header.Get("Content-Type"), "text/event-stream") {
		return false
	}
	if a.events == nil {
		a.events = sse.NewReader(a.res.Body, 1<<20)
	}
	return true
}

// event reads up to the next event with data, and returns the data. It fails the
// test if the stream ends before.
func (a *answer) event() (data string) {
	a.c.t.Helper()
	if !a.isStream() {
		a.rest()
		a.c.t.Fatalf("[%d] is no stream", a.number)
	}
	for {
		ev, err := a.next()
		if err != nil {
			a.c.t.Fatalf("[%d]: %v", a.number, err)
		}
		if len(ev.Data) > 0 {
			return string(ev.Data)
		}
	}
}

// next records one event. An event without data is left out when the session has
// moved, as the number of such events then depends on when a node notices.
func (a *answer) next() (sse.Event, error) {
	a.wait()
	ev, err := a.events.Next()
	if err != nil {
		return ev, err
	}
	if ev.ID != "" {
		a.last = ev.ID
	}
	if a.c.moved && len(ev.Data) == 0 {
		return ev, nil
	}
	if ev.Name != "" && ev.Name != "message" {
		a.c.note("[%d] event: %s", a.number, ev.Name)
	}
	if ev.ID != "" {
		a.c.note("[%d] id: %s", a.number, ev.ID)
	}
	if ev.Retry > 0 {
		a.c.note("[%d] retry: %v", a.number, ev.Retry)
	}
	a.c.note("[%d] data: %s", a.number, ev.Data)
	return ev, nil
}

// rest records the remaining part of the answer.
func (a *answer) rest() {
	a.c.t.Helper()
	if !a.isStream() {
		a.wait()
		body, err := io.ReadAll(a.res.Body)
		if text := strings.TrimSpace(string(body)); text != "" {
			a.c.note("    %s", text)
		}
		if err != nil {
			a.c.note("[%d] is cut", a.number)
		}
	} else {
		for {
			if _, err := a.next(); err != nil {
				a.c.note("[%d] %s", a.number, ending(err))
				break
			}
		}
	}
	_ = a.conn.Close()
}

func ending(err error) string {
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "ends"
	}
	return "is cut"
}

// follow records the stream up to the response to a request. If the connection ends
// before, the client resumes with the last event id.
func (a *answer) follow() {
	a.c.t.Helper()
	for {
		if !a.isStream() {
			a.rest()
			return
		}
		for {
			ev, err := a.next()
			if err != nil {
				a.c.note("[%d] ends before the response", a.number)
				break
			}
			if bytes.Contains(ev.Data, []byte(`"result":`)) || bytes.Contains(ev.Data, []byte(`"error":`)) {
				a.rest()
				return
			}
		}
		_ = a.conn.Close()
		next := a.c.request("GET", "/mcp", "", "Last-Event-ID: "+a.last)
		next.last = a.last
		a = next
	}
}

// cut closes the connection.
func (a *answer) cut() {
	a.c.note("[%d] the client hangs up", a.number)
	_ = a.conn.SetLinger(0)
	_ = a.conn.Close()
}

// begin initializes a session at node 0, and moves the client to the node of the
// placement. The transcript of "light" shows the answers to these requests.
func (c *client) begin(version, capabilities string) {
	c.t.Helper()
	before, answers := c.tape.String(), c.answers
	c.greet(version, capabilities)
	c.tape.Reset()
	c.tape.WriteString(before)
	c.answers = answers
	c.note("a session of revision %s with capabilities %s begins: %s", version, capabilities, c.session)
	c.goOver()
}

// greet initializes a session.
func (c *client) greet(version, capabilities string) {
	c.t.Helper()
	c.version = version
	c.post(initialize(version, capabilities))
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.post(`{"jsonrpc":"2.0","id":"tools","method":"tools/list"}`)
}

func initialize(version, capabilities string) string {
	if capabilities == "{}" { // the servers of the transcripts send requests to their clients
		capabilities = `{"elicitation":{}}`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"c","version":"1"}}}`, version, capabilities)
}

// call is a tools/call.
func call(id, name, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":%s}}}`, id, name, args, id)
}

var idOf = regexp.MustCompile(`"id":("[^"]*"|\d+)`)

// accept returns the answer to a server's request.
func accept(question string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{}}}`, idOf.FindStringSubmatch(question)[1])
}
