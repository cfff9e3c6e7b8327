package e2e

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A client that begins as many calls as it can at two nodes at the same time has one rate, within the bound of
// docs/limits.md. Another client is not limited by it, and a running call can be resumed meanwhile.
func TestClusterLimits(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it counts for some seconds")
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		const rate, burst = 20, 10
		f := newFleet(t, e, shape{nodes: 2, flags: []string{"--rate", "20/s", "--rate-burst", "10"}})
		ctx := bounded(t, time.Minute)
		one, other := &limitedClient{t: t, from: "127.0.0.1"}, &limitedClient{t: t, from: "127.0.0.2"}
		sessions := []string{one.begin(ctx, f.nodes[0]), one.begin(ctx, f.nodes[1])}
		apart := other.begin(ctx, f.nodes[1])
		// A call that runs on after its client has read the first event.
		call := one.send(ctx, http.MethodPost, f.nodes[0], sessions[0], "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","arguments":{"id":"resumed","steps":0,"ms":1000}}}`)
		line := make([]byte, 200)
		n := mcptest.Must(call.Body.Read(line))(t)
		_, id, _ := strings.Cut(string(line[:n]), "id: ")
		id, _, _ = strings.Cut(id, "\n")
		call.Body.Close()

		var began, refused atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for i, session := range sessions {
			all.Go(func() {
				for time.Since(start) < 4*time.Second {
					res := one.send(ctx, http.MethodPost, f.nodes[i], session, "", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
					res.Body.Close()
					after, _ := strconv.Atoi(res.Header.Get("Retry-After"))
					switch {
					case res.StatusCode == http.StatusOK:
						began.Add(1)
					case res.StatusCode == http.StatusTooManyRequests && after >= 1:
						refused.Add(1)
						time.Sleep(5 * time.Millisecond)
					default:
						t.Errorf("%s, Retry-After %d", res.Status, after)
						return
					}
				}
			})
		}
		for range 5 {
			time.Sleep(200 * time.Millisecond)
			res := other.send(ctx, http.MethodPost, f.nodes[1], apart, "", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("another client: %s", res.Status)
			}
			res = one.send(ctx, http.MethodGet, f.nodes[1], sessions[0], id, "")
			res.Body.Close()
			if res.StatusCode == http.StatusTooManyRequests {
				t.Errorf("resumed: %s", res.Status)
			}
		}
		all.Wait()
		took := time.Since(start).Seconds()
		// Nodes tell each other their counts every 250 ms. On a slow machine these may come a second late.
		most := burst + rate*took + burst + rate*1.25
		t.Logf("%s: %d calls began in %.1f s, and %d were refused", e.name, began.Load(), took, refused.Load())
		calls := float64(began.Load())
		if few := burst + rate*took; calls > most || calls < rate*took/2 && refused.Load() > began.Load() || calls > few && refused.Load() == 0 {
			t.Errorf("%v calls began in %.1f s, want at most %.0f; %d were refused", calls, took, most, refused.Load())
		}
	})
}

// A limitedClient is a client with its own IP address.
type limitedClient struct {
	t    *testing.T
	from string
}

// send makes a request to a node.
func (c *limitedClient) send(ctx context.Context, method string, n *node, session, last, body string) *http.Response {
	c.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}
	web := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	res, err := (&mcptest.Client{URL: n.url(), Session: session, HTTP: web}).Send(ctx, method, body, "Last-Event-Id", last)
	if err != nil {
		c.t.Error(err)
		return &http.Response{Body: http.NoBody}
	}
	return res
}

// begin begins a session at a node. It reads the response to the end: if a client leaves before that,
// its session ends.
func (c *limitedClient) begin(ctx context.Context, n *node) (session string) {
	c.t.Helper()
	for _, body := range []string{mcptest.Initialize("2025-11-25", "{}"), mcptest.Initialized} {
		for {
			r, err := mcptest.Read(c.send(ctx, http.MethodPost, n, session, "", body), nil) //nolint:bodyclose // Read closes it
			if r.Status == http.StatusServiceUnavailable && ctx.Err() == nil {              // on a busy machine
				time.Sleep(time.Second)
				continue
			}
			if err != nil || r.Status/100 != 2 {
				c.t.Fatalf("%d %s: %v", r.Status, r.Body, err)
			}
			session = cmp.Or(session, r.Session())
			break
		}
	}
	return session
}
