package e2e

import (
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
		begin := func(from *http.Client, n *node) *mcptest.Client {
			c := &mcptest.Client{URL: n.url(), HTTP: from}
			for err := c.Begin(ctx, mcptest.Initialize("2025-11-25", "{}")); err != nil; err = c.Begin(ctx, mcptest.Initialize("2025-11-25", "{}")) {
				if !strings.Contains(err.Error(), "503") {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // the machine is busy
			}
			return c
		}
		one := clientAt(t, "127.0.0.1")
		sessions := []*mcptest.Client{begin(one, f.nodes[0]), begin(one, f.nodes[1])}
		apart := begin(clientAt(t, "127.0.0.2"), f.nodes[1])
		resumes := &mcptest.Client{URL: f.nodes[1].url(), Session: sessions[0].Session, HTTP: one}
		// A call that runs on after its client has read the first event.
		call := sessions[0].Stream(t, http.MethodPost, mcptest.Call(1, "work", `{"id":"resumed","steps":0,"ms":1000}`))
		id := mcptest.Must(call.Next())(t).ID
		call.Close()

		list := mcptest.Request(2, "tools/list", "")
		var began, refused atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for _, session := range sessions {
			all.Go(func() {
				for time.Since(start) < 4*time.Second {
					r, err := session.Exchange(ctx, http.MethodPost, list)
					after, _ := strconv.Atoi(r.Header.Get("Retry-After"))
					switch {
					case r.Status == http.StatusOK:
						began.Add(1)
					case r.Status == http.StatusTooManyRequests && after >= 1:
						refused.Add(1)
						time.Sleep(5 * time.Millisecond)
					default:
						t.Errorf("%d, Retry-After %d, %v", r.Status, after, err)
						return
					}
				}
			})
		}
		for range 5 {
			time.Sleep(200 * time.Millisecond)
			if r := apart.Post(t, list); r.Status != http.StatusOK {
				t.Errorf("another client: %d", r.Status)
			}
			res, err := resumes.Send(ctx, http.MethodGet, "", "Last-Event-Id", id)
			mcptest.Check(t, err)
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
