// Package torture calls a tool of a server again and again over connections that are cut, held, delayed and repeated, and
// counts the results of the calls: of the server as it is, and behind Holdfast.
//
// The proxies are between the client and the server itself, or a Holdfast handler in this process. Each call has a tag in
// its _meta. The tags are counted at the server's side, without Holdfast: by a proxy in front of a server over HTTP, or
// at the stdin of a process. So a call that ran twice is seen, whatever result the client got.
//
// A call's disturbance depends only on the seed and on the call's number, so that each run has the same cuts.
package torture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/process"
	"holdfast/backend/remote"
	"holdfast/client"
)

var (
	discard = log.New(io.Discard, "", 0)
	quiet   = slog.New(slog.DiscardHandler)
)

// Options say which server and tool to call, and how.
type Options struct {
	// URL is that of a server over HTTP, and Header has the headers that it needs in each request. If URL is "", Command
	// is a server on stdio.
	URL     string
	Header  http.Header
	Command []string
	// Child is a program with arguments that calls [Child], with an address and a command as its further arguments.
	Child []string
	// Choose returns the name of the tool to call, of the server's tools, and its arguments.
	Choose func(tools []*mcp.Tool) (name string, arguments json.RawMessage, err error)
	// Calls is how many calls are made in each way; 0: as many as For has time for.
	Calls int
	// For bounds the time in which calls begin, in all ways together.
	For time.Duration
	// Clients is how many clients call at a time.
	Clients int
	// Limit, plus three times the time of a call without a cut, is how long a call may take before it counts as hung.
	Limit time.Duration
	// Seed decides the plan of each call.
	Seed uint64
	// Progress is called after the end of each call, with how many calls have begun in that way. It may be nil. It is
	// called from several goroutines, one at a time.
	Progress func(way string, calls int)

	pace *pace // nil: usual
}

// A pace has the times for which clients wait for an answer that does not come.
type pace struct {
	// hung replaces Limit for the go-sdk's client; 0: Limit.
	hung time.Duration
	// silence is how long Holdfast's client waits for bytes before it tries another connection. Holdfast's handler sends
	// some every keepAlive, which is shorter.
	silence, keepAlive time.Duration
	// retry is how long Holdfast's client waits before it connects again; 0: as long as the handler says by default.
	retry time.Duration
}

// usual has shorter times than the defaults of Holdfast, with which a silent connection takes a minute.
var usual = pace{silence: 2 * time.Second, keepAlive: 500 * time.Millisecond}

// The ways in which a server is called.
const (
	Bare   = "bare"                  // the server as it is, and the go-sdk's client
	Behind = "behind Holdfast"       // the server behind Holdfast, and the go-sdk's client
	Both   = "Holdfast at both ends" // the server behind Holdfast, and Holdfast's client
)

// Run makes the calls, and reports their results. The error says why it could make none.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.pace == nil {
		o.pace = &usual
	}
	s := &server{o: o, arrivals: newArrivals()}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer s.close()
	r := &Report{Server: s.name(), Seed: o.Seed, Clients: o.Clients, Restarts: len(o.Command) > 0}
	call, err := s.try(ctx, r)
	if err != nil {
		return nil, err
	}
	ways := []struct {
		name   string
		to     *url.URL
		client func(url string) mcp.Transport
	}{
		{Bare, s.bare, official},
		{Behind, s.behind, official},
		{Both, s.behind, o.pace.ours},
	}
	left := o.For
	for i, w := range ways {
		lasts := left / time.Duration(len(ways)-i) // a way that ends early leaves its time to the next ones
		limit := o.Limit
		if w.name != Both {
			limit = cmp.Or(o.pace.hung, limit)
		}
		run := &run{o: &o, way: w.name, prefix: strconv.Itoa(i) + "-", to: w.to, connect: w.client, call: call, limit: limit + 3*call.took, lasts: lasts, arrivals: s.arrivals}
		tally, err := run.all(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.Ways = append(r.Ways, tally)
		left -= min(lasts, time.Duration(tally.Took))
	}
	return r, nil
}

// official returns the go-sdk's transport.
func official(to string) mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: to} }

// ours returns Holdfast's transport.
func (p *pace) ours(to string) mcp.Transport {
	return holdfast.NewClientTransport(to, &holdfast.ClientOptions{Options: client.Options{Logger: quiet, Silence: p.silence, AnswerTimeout: p.silence}})
}

// A server is the server under test, by itself and behind Holdfast.
type server struct {
	o        Options
	arrivals *arrivals
	bare     *url.URL
	behind   *url.URL
	ends     []func()
}

func (s *server) name() string {
	if s.o.URL != "" {
		return s.o.URL
	}
	return fmt.Sprint(s.o.Command)
}

func (s *server) close() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
}

// open starts the endpoints in front of the server, and the proxy or the post that counts its calls.
func (s *server) open() (err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	var inner backend.Backend
	if s.o.URL != "" {
		to, err := url.Parse(s.o.URL)
		if err != nil {
			return err
		}
		if s.bare, err = s.serve(counting(to, s.o.Header, s.arrivals), nil, to.RequestURI()); err != nil {
			return err
		}
		inner = remote.New(s.bare.String(), &remote.Options{Logger: quiet})
	} else {
		post, err := newPost(s.arrivals)
		if err != nil {
			return err
		}
		s.ends = append(s.ends, post.close)
		command := append(append(append([]string{}, s.o.Child...), post.addr()), s.o.Command...)
		bridge := &bridge{command: command, sessions: make(map[string]*mcp.StreamableServerTransport), ends: make(map[string]func())}
		s.ends = append(s.ends, bridge.close)
		if s.bare, err = s.serve(bridge, nil, "/mcp"); err != nil {
			return err
		}
		b, err := process.New(command, &process.Options{Logger: quiet})
		if err != nil {
			return err
		}
		s.ends = append(s.ends, func() { _ = b.Close() })
		inner = b
	}
	handler := holdfast.NewBackendHandler(inner, &holdfast.Options{Logger: quiet, Eras: holdfast.ErasAuto, KeepAlive: s.o.pace.keepAlive, Retry: s.o.pace.retry, MaxShare: 1})
	s.ends = append(s.ends, func() {
		ctx, stop := context.WithCancel(context.Background())
		stop() // as all clients have left: calls that hang are given up
		_ = handler.Shutdown(ctx)
	})
	s.behind, err = s.serve(handler, handler.Listener, "/mcp")
	return err
}

// serve serves a handler and returns its URL.
func (s *server) serve(h http.Handler, wrap func(net.Listener) net.Listener, path string) (*url.URL, error) {
	at, server, err := serve(h, wrap)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, func() { _ = server.Close() })
	return url.Parse("http://" + at + path)
}

// A call is the tool that is called, and its times without a cut.
type call struct {
	tool      string
	arguments json.RawMessage
	took      time.Duration // how long the call takes
	entered   time.Duration // how long the session took to begin
}

// try chooses the tool, and calls it without a cut.
func (s *server) try(ctx context.Context, r *Report) (c call, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	session, err := connect(ctx, official(s.bare.String()))
	if err != nil {
		return c, fmt.Errorf("the server cannot be reached without a cut: %w", err)
	}
	defer session.Close()
	c.entered = time.Since(began)
	var tools []*mcp.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return c, fmt.Errorf("tools/list: %w", err)
		}
		tools = append(tools, tool)
	}
	if c.tool, c.arguments, err = s.o.Choose(tools); err != nil {
		return c, err
	}
	began = time.Now()
	result, err := session.CallTool(ctx, c.params("try"))
	if err == nil && result.IsError {
		text := "an error"
		if len(result.Content) > 0 {
			if t, ok := result.Content[0].(*mcp.TextContent); ok {
				text = t.Text
			}
		}
		err = errors.New(text)
	}
	if err != nil {
		return c, fmt.Errorf("%s fails without a cut, so it says nothing about cuts: %w\nChoose another tool with --tool NAME, or give its arguments with --arg NAME=VALUE", c.tool, err)
	}
	c.took = time.Since(began)
	r.Tool, r.Arguments, r.Call = c.tool, c.arguments, Seconds(c.took)
	return c, nil
}

// params returns the params of the call with a tag.
func (c *call) params(tag string) *mcp.CallToolParams {
	p := &mcp.CallToolParams{Meta: mcp.Meta{metaCall: tag}, Name: c.tool, Arguments: c.arguments}
	p.SetProgressToken(tag)
	return p
}

// connect begins a session.
func connect(ctx context.Context, t mcp.Transport) (*mcp.ClientSession, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "holdfast-torture", Version: "1"}, &mcp.ClientOptions{Logger: quiet})
	return c.Connect(ctx, t, nil)
}

// A run is all calls in one way.
type run struct {
	o        *Options
	way      string
	prefix   string // of tags
	to       *url.URL
	connect  func(string) mcp.Transport
	call     call
	limit    time.Duration
	lasts    time.Duration // from the time at which all clients have a session
	arrivals *arrivals

	mu    sync.Mutex
	begun int
	end   time.Time
	tally *Tally
}

// all makes all calls.
func (r *run) all(ctx context.Context) (*Tally, error) {
	r.tally = &Tally{Way: r.way, Kinds: make(map[string]*Count)}
	var (
		all  sync.WaitGroup
		once sync.Once
		why  error
	)
	ready, start := make(chan struct{}, r.o.Clients), make(chan struct{})
	for range r.o.Clients {
		all.Go(func() {
			if err := r.client(ctx, ready, start); err != nil {
				once.Do(func() { why = err })
			}
		})
	}
	for range r.o.Clients {
		<-ready
	}
	began := time.Now()
	r.end = began.Add(r.lasts)
	close(start)
	all.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if why != nil {
		return nil, why
	}
	r.tally.sum()
	r.tally.Took = Seconds(time.Since(began))
	return r.tally, nil
}

// take returns the number of the next call, or false if the run is over.
func (r *run) take() (n int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.o.Calls > 0 && r.begun >= r.o.Calls || !time.Now().Before(r.end) {
		return 0, false
	}
	r.begun++
	return r.begun - 1, true
}

// client begins a session and sends to ready. After start it makes one call at a time, until the run is over.
func (r *run) client(ctx context.Context, ready chan<- struct{}, start <-chan struct{}) error {
	p, err := newProxy(r.to)
	if err != nil {
		ready <- struct{}{}
		return err
	}
	defer p.close()
	c := &caller{run: r, proxy: p}
	defer c.leave()
	_ = c.enterWithin(ctx) // on an error the first call tries again
	ready <- struct{}{}
	<-start
	for {
		n, ok := r.take()
		if !ok || ctx.Err() != nil {
			return nil
		}
		c.one(ctx, n)
	}
}

// A caller is one client.
type caller struct {
	run     *run
	proxy   *proxy
	session *mcp.ClientSession
}

// enter begins a session, if the caller has none.
func (c *caller) enter(ctx context.Context) (err error) {
	if c.session == nil {
		c.session, err = connect(ctx, c.run.connect(c.proxy.url))
	}
	return err
}

// leave ends the session.
func (c *caller) leave() {
	if c.session == nil {
		return
	}
	session := c.session
	c.session = nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = session.Close()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second): // Close may wait for an answer that does not come
	}
}

// one makes a call, and counts its outcome.
func (c *caller) one(ctx context.Context, n int) {
	r := c.run
	plan := planOf(r.o.Seed, n, len(r.o.Command) > 0)
	tag := r.prefix + strconv.Itoa(n)
	c.proxy.next(plan)
	if err := c.enterWithin(ctx); err != nil { // the connections were not disturbed: the server itself has changed
		r.count(plan.kind, outcome{lost: true, why: err})
		return
	}
	if plan.kind == killed {
		r.arrivals.killAt(tag)
	}
	began := time.Now()
	err := c.callWithin(ctx, tag)
	if ctx.Err() != nil {
		return
	}
	arrived, died := r.arrivals.count(tag)
	disturbed := c.proxy.disturbed()
	if died {
		disturbed = began
	}
	o := outcome{twice: arrived > 1, why: err}
	var refusal *sdkrpc.Error
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded):
		o.hung = true
	case died && errors.As(err, &refusal):
		o.told = true
	default:
		o.lost = true
	}
	switch {
	case err != nil:
		c.recover(ctx, tag)
	case died: // the result was faster, but the session's process has ended
		c.leave()
	}
	if !disturbed.IsZero() {
		o.recovered = time.Since(disturbed)
	}
	r.count(plan.kind, o)
}

// recover makes calls without cuts until one has a result.
func (c *caller) recover(ctx context.Context, tag string) {
	for i := 1; ctx.Err() == nil && i <= maxTries; i++ {
		c.proxy.next(plan{})
		if i > 1 { // the session does not work any more
			c.leave()
		}
		if c.enterWithin(ctx) == nil && c.callWithin(ctx, tag+"+"+strconv.Itoa(i)) == nil {
			return
		}
	}
}

// maxTries is how many calls a client makes in recover.
const maxTries = 5

func (c *caller) enterWithin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.run.limit+10*c.run.call.entered) // many processes may start at once
	defer cancel()
	return c.enter(ctx)
}

func (c *caller) callWithin(ctx context.Context, tag string) error {
	ctx, cancel := context.WithTimeout(ctx, c.run.limit)
	defer cancel()
	_, err := c.session.CallTool(ctx, c.run.call.params(tag))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// count adds the outcome of a call to the tally.
func (r *run) count(k kind, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.add(k, o)
	if r.o.Progress != nil {
		r.o.Progress(r.way, r.begun)
	}
}
