package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A world is a server, a client and the proxy between them.
type world struct {
	t          *testing.T
	way        way
	seed       uint64
	trace      *trace
	server     *mcp.Server
	handler    *holdfast.Handler
	http       *httptest.Server
	faultProxy *faultProxy
	dials      *http.Transport
	session    *mcp.ClientSession
	unknown    atomic.Int64

	mu      sync.Mutex
	calls   []*called
	updates []float64 // the numbers of the updates that the client got
	updated float64   // the number of the last update that the server sent
}

// A called is a call: its plan, and the messages seen of it.
type called struct {
	number int
	plan   plot
	runs   atomic.Int64
	ended  atomic.Int64

	mu       sync.Mutex
	progress []float64
	asked    map[string]int
	answers  map[string]string // as the tool got them
}

// A plot lists the steps of a tool.
type plot []step

type step struct {
	kind rune // p: progress, q: question, w: wait, f: fail, d: disconnect
	size int  // the size of a message
	wait time.Duration
}

func (s plot) asks() int { return s.count('q') }

func (s plot) tells() int { return s.count('p') }

func (s plot) fails() bool { return s.count('f') > 0 }

func (s plot) count(kind rune) (n int) {
	for _, st := range s {
		if st.kind == kind {
			n++
		}
	}
	return n
}

// newPlot draws a plot.
func newPlot(r *rand.Rand) plot {
	var s plot
	if r.IntN(4) == 0 {
		return s // the tool answers at once
	}
	total := time.Duration(r.IntN(200)) * time.Millisecond
	steps := r.IntN(12)
	asks := 0
	for range steps {
		st := step{kind: 'p', size: r.IntN([]int{1, 100, 8000}[r.IntN(3)] + 1), wait: total / time.Duration(steps+1)}
		switch r.IntN(10) {
		case 0:
			if asks < 3 {
				st.kind = 'q'
				asks++
			}
		case 1, 2:
			st.kind = 'w'
		case 3:
			st.kind = 'd'
		}
		s = append(s, st)
	}
	if r.IntN(10) == 0 {
		s = append(s, step{kind: 'f'})
	}
	return s
}

// faulty1000 is how many of 1000 requests are faulty.
const faulty1000 = 250

// patience is how long a call may take. A call that waits for a line waits the longest: for
// [mostRow] lines hit by a fault, one after the other. The pauses after those are 9.5 s at the
// most. To find a line dead takes 3 s in its handshake, and then up to five times the silence: 5 s,
// or 15 s with the race detector. That makes 40 s, or 100 s. The rest is for connections that are
// refused, and for a machine that stands still for some seconds, more than once.
func patience() time.Duration {
	if testlong.Race {
		return 180 * time.Second
	}
	return 90 * time.Second
}

func newWorld(t *testing.T, way way, seed uint64) *world {
	w := &world{t: t, way: way, seed: seed, trace: newTrace()}
	w.trace.addf("world: %s, seed %d", way.name, seed)
	t.Cleanup(func() {
		if t.Failed() {
			w.trace.print(t)
		}
	})
	w.server = mcp.NewServer(impl, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	w.server.AddResource(&mcp.Resource{URI: "x://a", Name: "a"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "x://a", Text: "a"}}}, nil
	})
	mcp.AddTool(w.server, &mcp.Tool{Name: "work"}, w.work)
	mcp.AddTool(w.server, &mcp.Tool{Name: "safe", Annotations: &mcp.ToolAnnotations{IdempotentHint: true}}, w.work)
	o := way.server
	o.Eras = holdfast.ErasBoth
	o.Retry, o.KeepAlive, o.Logger = 10*time.Millisecond, 200*time.Millisecond, w.trace.logger("server")
	w.handler = holdfast.NewHandler(func(*http.Request) *mcp.Server { return w.server }, &o)
	w.http = httptest.NewServer(way.withheld.wrap(mcptest.Endpoints(w.handler)))
	w.faultProxy = newFaultProxy(t, w.http.Listener.Addr().String(), seed, w.trace)
	// A client that cannot send its request again, or not yet, can only wait.
	w.faultProxy.kind = way.withheld.keys
	if way.path == "" {
		w.faultProxy.bad.Store(faulty1000)
	}
	w.connect()
	w.faultProxy.bad.Store(faulty1000) // a client that falls back to HTTP+SSE does not try for long
	return w
}

// answerTimeout is how long the client waits for a server that allows no second
// sending, and may have died without a notice. connectTimeout is how long it waits
// for an HTTP+SSE server to take a request.
const (
	answerTimeout  = 15 * time.Second
	connectTimeout = 3 * time.Second
)

// lineSilence is how long a line may be silent.
func lineSilence() time.Duration {
	if testlong.Race {
		return 3 * time.Second
	}
	return time.Second
}

// connect connects the client.
func (w *world) connect() {
	path := w.way.path
	if path == "" {
		path = "/mcp"
	}
	scheme := "http://"
	if w.way.ws {
		scheme = "ws://"
	}
	r := rand.New(rand.NewPCG(w.seed, 1))
	var mu sync.Mutex
	w.dials = http.DefaultTransport.(*http.Transport).Clone()
	w.dials.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		refused := uint64(r.IntN(2000)) < w.faultProxy.bad.Load()/2
		mu.Unlock()
		if refused {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	silence := 3 * time.Second
	switch {
	case w.way.path != "", w.way.ws:
		silence = lineSilence()
	case testlong.Race, w.way.name == "nothing":
		silence = 8 * time.Second
	}
	opts := &holdfast.ClientOptions{Options: client.Options{
		HTTPClient: &http.Client{Transport: w.dials}, Logger: w.trace.logger("client"),
		Silence: silence, ConnectTimeout: connectTimeout, AnswerTimeout: answerTimeout, NoListen: w.way.lossy,
	}}
	c := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: w.onProgress,
		ElicitationHandler:          w.onQuestion,
		ResourceUpdatedHandler:      w.onUpdate,
	})
	ctx, stop := context.WithTimeout(w.t.Context(), patience())
	defer stop()
	for w.session == nil {
		transport := holdfast.NewClientTransport(scheme+w.faultProxy.Addr()+path, opts)
		s, err := c.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: w.way.revision})
		switch {
		case err == nil:
			w.session = s
		case ctx.Err() != nil || !strings.Contains(err.Error(), "out of reach for") && !strings.Contains(err.Error(), "did not begin to answer"):
			w.t.Fatalf("connect: %v", err)
		default:
			// The client does not try for long to send its first request: its user tries
			// again. A request that came too late may have begun a session.
			w.faultProxy.mu.Lock()
			w.faultProxy.orphans++
			w.faultProxy.mu.Unlock()
		}
	}
}

type workArgs struct {
	K int `json:"k"`
}

// work is the tool: it takes the steps in the plot of its call.
func (w *world) work(ctx context.Context, req *mcp.CallToolRequest, args workArgs) (*mcp.CallToolResult, any, error) {
	w.mu.Lock()
	c := w.calls[args.K]
	w.mu.Unlock()
	c.runs.Add(1)
	defer c.ended.Add(1)
	n := 0.0
	for i, st := range c.plan {
		select {
		case <-time.After(st.wait):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		switch st.kind {
		case 'p':
			n++
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: req.Params.GetProgressToken(), Progress: n, Message: strings.Repeat("x", st.size)})
			if err != nil {
				return nil, nil, fmt.Errorf("progress: %w", err)
			}
		case 'q':
			question := fmt.Sprintf("%d/%d", args.K, i)
			res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: question, RequestedSchema: map[string]any{
				"type": "object", "properties": map[string]any{"answer": map[string]any{"type": "string"}}}})
			if err != nil {
				return nil, nil, fmt.Errorf("question %s: %w", question, err)
			}
			c.mu.Lock()
			c.answers[question], _ = res.Content["answer"].(string)
			c.mu.Unlock()
		case 'd':
			if w.way.name != "nothing" { // a client that cannot come back is not sent away
				holdfast.Disconnect(ctx, 0)
			}
		case 'f':
			return nil, nil, errors.New("so planned")
		}
	}
	return nil, args.K, nil
}

func (w *world) onProgress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	k, _ := req.Params.ProgressToken.(string)
	c := w.callOf(k)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = append(c.progress, req.Params.Progress)
}

// callOf finds the call that a token or question names.
func (w *world) callOf(text string) *called {
	var k int
	if _, err := fmt.Sscanf(text, "%d", &k); err != nil {
		w.t.Errorf("neither token nor question: %q", text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[k]
}

func (w *world) onQuestion(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	c := w.callOf(req.Params.Message)
	c.mu.Lock()
	c.asked[req.Params.Message]++
	c.mu.Unlock()
	time.Sleep(time.Duration(len(req.Params.Message)%4) * 5 * time.Millisecond)
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "to " + req.Params.Message}}, nil
}

func (w *world) onUpdate(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
	n, _ := req.Params.Meta["n"].(float64)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updates = append(w.updates, n)
}
