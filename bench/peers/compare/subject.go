package main

import (
	"fmt"
	"net/url"
	"slices"

	"holdfast/bench/load"
)

// The sizes of calls and streams.
const (
	echoSize  = 32    // bytes of text
	events    = 10000 // of a stream
	eventSize = 64    // bytes of text in each
	// taskIDSize is the size of a task's id, also of the one that the floor gets.
	taskIDSize = 43
)

// A subject is one server in one configuration. A path is "" if the server cannot do the operation.
type subject struct {
	name   string
	server string   // which of the binaries
	args   []string // of the server
	bare   bool     // takes any request, without a handshake

	twin string // the subject to which this one adds metrics or traces

	plain  string // answers a call with JSON
	modern string // answers a call of revision 2026-07-28 with JSON
	task   string // answers tasks/get of a call that runs
	sse    string // answers a call with a stream that can be resumed
	stream string // streams progress
	replay bool   // replays the stream
	idle   string // has standalone streams
	wait   string // holds a call that waits
	cut    bool   // goes on with a call that waits when its client is gone
}

// eventsPath returns the path at which the floor streams.
func eventsPath(flush int) string {
	return "/events?" + url.Values{
		"n": {fmt.Sprint(events)}, "size": {fmt.Sprint(eventSize)}, "flush": {fmt.Sprint(flush)},
	}.Encode()
}

// The binaries.
const (
	ours       = "holdfast/bench/server"
	oursBefore = "before/" + ours // the same package of another checkout
	peers      = "holdfast/bench/peers/server"
)

var subjects = []subject{
	{
		name: "bare net/http", server: peers, args: []string{"-kind", "floor"}, bare: true,
		plain: "/json", modern: "/modern", task: "/task", sse: "/sse", stream: eventsPath(1), replay: true, idle: "/idle", wait: "/wait",
	},
	{
		name: "bare net/http, one flush in all", server: peers, args: []string{"-kind", "floor"}, bare: true,
		stream: eventsPath(0), replay: true,
	},
	{
		name: "Holdfast, message backend", server: ours, args: []string{"-backend", "message"},
		plain: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse", replay: true, idle: "/mcp", wait: "/mcp", cut: true,
	},
	{
		name: "Holdfast, message backend, metrics and audit", server: ours, args: []string{"-backend", "message", "-metrics"},
		twin: "Holdfast, message backend", plain: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse",
	},
	{
		name: "Holdfast, message backend, traces of 1 %", server: ours, args: []string{"-backend", "message", "-traces", "0.01"},
		twin: "Holdfast, message backend", plain: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse",
	},
	{
		name: "Holdfast, mcp.Server, traces of 1 %", server: ours, args: []string{"-backend", "sdk", "-traces", "0.01"},
		twin: "Holdfast, mcp.Server", plain: "/mcp", modern: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse",
	},
	{
		name: "Holdfast, mcp.Server, metrics and audit", server: ours, args: []string{"-backend", "sdk", "-metrics"},
		twin: "Holdfast, mcp.Server", plain: "/mcp", modern: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse",
	},
	{
		name: "Holdfast, mcp.Server", server: ours, args: []string{"-backend", "sdk"},
		plain: "/mcp", modern: "/mcp", task: "/mcp", sse: "/mcp-sse", stream: "/mcp-sse", replay: true, idle: "/mcp", wait: "/mcp", cut: true,
	},
	{
		name: "go-sdk", server: peers, args: []string{"-kind", "go-sdk"},
		plain: "/mcp-json", modern: "/mcp-stateless", stream: "/mcp-sse", idle: "/mcp-sse", wait: "/mcp-sse",
	},
	{
		name: "go-sdk, event store", server: peers, args: []string{"-kind", "go-sdk"},
		sse: "/mcp-store", stream: "/mcp-store", replay: true, idle: "/mcp-store", wait: "/mcp-store", cut: true,
	},
	{
		name: "mcp-go", server: peers, args: []string{"-kind", "mcp-go"},
		plain: "/mcp", stream: "/mcp", idle: "/mcp", wait: "/mcp",
	},
	{
		name: "mcp-go, event store", server: peers, args: []string{"-kind", "mcp-go"},
		stream: "/mcp-store", replay: true, idle: "/mcp-store", wait: "/mcp-store",
	},
}

// addBefore adds to each of Holdfast's subjects the same subject of another checkout.
func addBefore() {
	var all []subject
	for _, s := range subjects {
		if s.server == ours {
			was := s
			was.name, was.server, was.twin = beforeName(s.name), oursBefore, ""
			all = append(all, was)
		}
		all = append(all, s)
	}
	subjects = all
}

// beforeName returns the name of a subject of the other checkout.
func beforeName(name string) string { return "before: " + name }

// path returns the path at which the subject answers a short call, or "".
func (s *subject) path(what string) string {
	switch what {
	case plainCall:
		return s.plain
	case newCall:
		return s.modern
	case taskCall:
		return s.task
	case sseCall:
		return s.sse
	}
	return ""
}

// A caller is one client of a subject: a connection and a session.
type caller struct {
	*load.Client
	addr, path, session string
	event               string // id of the first event that it has got
}

// call opens n callers of a path.
func (s *subject) call(p *process, path string, n int) ([]*caller, error) {
	var cs []*caller
	for range n {
		c, err := s.dial(p, path)
		if err != nil {
			hangUp(cs)
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		cs = append(cs, c)
	}
	return cs, nil
}

func (s *subject) dial(p *process, path string) (*caller, error) {
	client, err := load.Dial(p.addr)
	if err != nil {
		return nil, err
	}
	c := &caller{Client: client, addr: p.addr, path: path, session: "none"}
	if !s.bare {
		if c.session, err = client.Handshake(path); err != nil {
			_ = client.Close()
			return nil, err
		}
	}
	return c, nil
}

// post returns a POST of a message in the caller's session.
func (c *caller) post(message string) *load.Request {
	return load.Post(c.addr, c.path, c.session, message)
}

func hangUp(cs []*caller) {
	for _, c := range cs {
		_ = c.Close()
	}
}

// servers returns the packages of all servers.
func servers() []string {
	var all []string
	for i := range subjects {
		all = append(all, subjects[i].server)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
