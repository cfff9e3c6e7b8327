package e2e

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// wantOutage waits for a line with the text back in the log, and checks the lines after the first n: one line of level Warn with
// the text away, and then one of level Info with the text back. Lines with the texts in others may be there too.
func wantOutage(t *testing.T, p *program, n int, away, back string, others ...string) (away1, back1 string) {
	t.Helper()
	mcptest.Eventually(t, back, time.Minute, func() bool { return strings.Contains(strings.Join(p.log.Lines("time=")[n:], ""), back) })
	var rest []string
	for _, line := range p.log.Lines("time=")[n:] {
		switch {
		case strings.Contains(line, "level=WARN") && strings.Contains(line, away) && away1 == "" && back1 == "":
			away1 = line
		case strings.Contains(line, "level=INFO") && strings.Contains(line, back) && away1 != "" && back1 == "":
			back1 = line
		default:
			rest = append(rest, line)
		}
	}
	for _, other := range others {
		if i := slices.IndexFunc(rest, func(line string) bool { return strings.Contains(line, other) }); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		}
	}
	if away1 == "" || back1 == "" || len(rest) > 0 {
		t.Errorf("it went with %q and came with %q, and the log has besides:\n%s", away1, back1, strings.Join(rest, "\n"))
	}
	return away1, back1
}

// TestOutageOfStore kills the store of one or two nodes during calls, and starts it again: each node logs one line when the store
// is away, with the number of waiting calls, and one line when it is back, with the number of refused requests.
func TestOutageOfStore(t *testing.T) {
	testlong.Only(t, "a store is away for seconds")
	t.Parallel()
	engines := map[string]func(t *testing.T) (url, place string, kill, restart func()){
		"redis": func(t *testing.T) (string, string, func(), func()) {
			s := redistest.Start(t, "--appendfsync", "always") // else Redis on a slow disk may lose data that it has acknowledged
			return s.URL(), s.URL(), s.Kill, s.Restart
		},
		"nats": func(t *testing.T) (string, string, func(), func()) {
			s := mcptest.Must(natstest.StartProcesses(t.TempDir(), 1))(t)
			t.Cleanup(s.Close)
			return "nats://" + natstest.User + ":" + natstest.Password + "@" + s.Addr(0), "nats://" + s.Addr(0), func() { s.Kill(0) }, func() {
				if err := s.Restart(0); err != nil {
					t.Error(err)
				}
			}
		},
	}
	for name, start := range engines {
		for nodes := 1; nodes <= 2; nodes++ {
			t.Run(fmt.Sprint(name, ", nodes: ", nodes), func(t *testing.T) {
				t.Parallel()
				url, place, kill, restart := start(t)
				var all []*program
				for range nodes {
					all = append(all, serve(t, "--demo", "--admin", "127.0.0.1:0", "--store", url))
				}
				var calls sync.WaitGroup
				const each = 5
				for i := range each * nodes {
					c := connect(t, all[i%nodes])
					l := c.listen("POST", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":24,"delay_ms":500},"_meta":{"progressToken":1}}}`)
					l.until(1)
					calls.Go(func() {
						if l.rest(); !strings.HasPrefix(l.received[len(l.received)-1], "result ") {
							t.Errorf("a call ended with %q", l.received)
						}
					})
				}
				var before []int
				for _, p := range all {
					before = append(before, len(p.log.Lines("time=")))
				}
				kill()
				var begins sync.WaitGroup
				for _, p := range all {
					begins.Go(func() {
						if r := tryBegin(t, p); r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
							t.Errorf("a new session while the store is away: %d %s", r.Status, r.Body)
						}
					})
				}
				begins.Wait()
				restart()
				calls.Wait()
				for i, p := range all {
					away, back := wantOutage(t, p, before[i], "the store is away: ", "the store is back")
					for _, want := range []string{place, "calls_waiting=5", "since=", "503", "outcome is unknown", "--store"} {
						if !strings.Contains(away, want) {
							t.Errorf("the line lacks %s: %s", want, away)
						}
					}
					if !regexp.MustCompile(`for=\d+(\.\d)?s requests_refused=1$`).MatchString(back) {
						t.Errorf("it is back: %s", back)
					}
					if strings.Contains(away, natstest.Password) {
						t.Errorf("the log has a password: %s", away)
					}
				}
			})
		}
	}
}

// tryBegin makes an initialize request.
func tryBegin(t *testing.T, p *program) mcptest.Reply {
	t.Helper()
	r, err := mcptest.Exchange(t.Context(), http.MethodPost, p.URL, begins)
	if err != nil {
		t.Error(err)
	}
	return r
}

// An outUpstream is a server over HTTP that a test stops and starts again, at the same address. A stop makes it forget its sessions.
type outUpstream struct {
	t       *testing.T
	at      string
	handler func(*mcp.Server) http.Handler
	web     *http.Server
	ended   chan struct{}
	calls   atomic.Int32

	mu    sync.Mutex
	conns []net.Conn // the accepted connections, also those that have become WebSockets
}

func startUpstream(t *testing.T, handler func(*mcp.Server) http.Handler) *outUpstream {
	t.Helper()
	u := &outUpstream{t: t, handler: handler, at: testport.Addr(t)}
	u.start()
	t.Cleanup(u.stop)
	return u
}

// start starts a new server.
func (u *outUpstream) start() {
	u.t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "upstream", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "sleep"}, func(ctx context.Context, _ *mcp.CallToolRequest, in struct{ MS int }) (*mcp.CallToolResult, any, error) {
		u.calls.Add(1)
		select {
		case <-time.After(time.Duration(in.MS) * time.Millisecond):
		case <-ctx.Done():
		}
		return &mcp.CallToolResult{}, nil, nil
	})
	var l net.Listener
	var err error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		l, err = (&net.ListenConfig{}).Listen(u.t.Context(), "tcp", u.at)
		if err == nil {
			break
		} else if time.Now().After(end) {
			u.t.Fatal(err)
		}
	}
	u.web, u.ended = &http.Server{Handler: u.handler(server), ReadHeaderTimeout: time.Minute, ConnState: func(c net.Conn, s http.ConnState) {
		if s == http.StateNew {
			u.mu.Lock()
			u.conns = append(u.conns, c)
			u.mu.Unlock()
		}
	}}, make(chan struct{})
	go func() {
		defer close(u.ended)
		_ = u.web.Serve(l)
	}()
}

// stop closes the server and all connections to it.
func (u *outUpstream) stop() {
	_ = u.web.Close()
	<-u.ended
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.conns {
		_ = c.Close()
	}
	u.conns = nil
}

// socketOf serves servers over WebSockets.
func socketOf(t *testing.T) func(*mcp.Server) http.Handler {
	return func(server *mcp.Server) http.Handler {
		h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
		mcptest.ShutDownAtEnd(t, h, time.Second)
		return h
	}
}

// TestOutageOfUpstream stops an upstream server during calls of several sessions, and starts it again: the log has one line when the server is away,
// and one when it is back, with the numbers of lost calls and sessions, for each transport. If the server is away at the first request, the log has
// the lines too.
func TestOutageOfUpstream(t *testing.T) {
	testlong.Only(t, "a server is away for seconds")
	t.Parallel()
	streamable := func(*testing.T) func(*mcp.Server) http.Handler {
		return func(s *mcp.Server) http.Handler {
			return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
		}
	}
	for name, c := range map[string]struct {
		handler func(t *testing.T) func(*mcp.Server) http.Handler
		path    string
		config  string // a configuration file with the server at %s; empty: --upstream
		scheme  string
		at      string // the path of the endpoint
		tool    string
		first   bool // the server is away at the first request
	}{
		"Streamable HTTP": {handler: streamable},
		"first":           {handler: streamable, first: true},
		"HTTP+SSE": {handler: func(*testing.T) func(*mcp.Server) http.Handler {
			return func(s *mcp.Server) http.Handler {
				return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, nil)
			}
		}},
		"first, a WebSocket": {scheme: "ws", first: true, handler: socketOf},
		"a WebSocket":        {scheme: "ws", handler: socketOf},
		"one of a file":      {handler: streamable, config: `{"mcpServers":{"one":{"url":%q},"two":{"url":%q}}}`},
		"a merged one":       {handler: streamable, config: `{"mcpServers":{"one":{"url":%q},"two":{"url":%q}},"holdfast":{"merge":true}}`, at: "/mcp", tool: "one_sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t, c.handler(t))
			url := cmp.Or(c.scheme, "http") + "://" + u.at
			flags := []string{"--upstream", url}
			if c.config != "" {
				other := startUpstream(t, streamable(t))
				flags = []string{"--config", fileOf(t, fmt.Sprintf(c.config, url, "http://"+other.at))}
			}
			p := serve(t, flags...)
			mcptest.Eventually(t, "the start is logged", time.Minute, func() bool { return strings.Contains(p.log.String(), "msg=serving") })
			before := len(p.log.Lines("time="))
			if c.at != "" {
				p.URL = "http://" + p.Addr + c.at
			}
			const away, back, other = "the upstream server is out of reach: ", "the upstream server is reached again", "a kind of client"
			if c.first {
				u.stop()
				if r := tryBegin(t, p); !strings.Contains(r.Body, `"error":{`) {
					t.Errorf("the first request, to no server: %d %s", r.Status, r.Body)
				}
				u.start()
				connect(t, p)
				went, came := wantOutage(t, p, before, away, back, other)
				if !strings.Contains(went, "url="+url+" calls_waiting=1 since=") || !strings.Contains(came, "calls_failed=1") {
					t.Errorf("it went with %q and came with %q", went, came)
				}
				return
			}
			var calls sync.WaitGroup
			for range 5 {
				peer := connect(t, p)
				calls.Go(func() {
					r, err := peer.Exchange(t.Context(), http.MethodPost, mcptest.Call(1, cmp.Or(c.tool, "sleep"), `{"MS":60000}`))
					if err != nil || !strings.Contains(r.Body, "outcome unknown") {
						t.Errorf("a call was answered with %s, %v", r.Body, err)
					}
				})
			}
			mcptest.Eventually(t, "the calls are at the server", time.Minute, func() bool { return u.calls.Load() == 5 })
			u.stop()
			mcptest.Eventually(t, "it is out of reach", time.Minute, func() bool { return strings.Contains(p.log.String(), away) })
			u.start()
			calls.Wait()
			went, came := wantOutage(t, p, before, away, back, other)
			if !strings.Contains(went, "url="+url) || !strings.Contains(came, "outcome_unknown=5") || !strings.Contains(came, "sessions_lost=") {
				t.Errorf("it went with %q and came with %q", went, came)
			}
		})
	}
}
