package server_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A roamer is a client behind a balancer that sends each request to a random node, and does not
// know which nodes live.
type roamer struct {
	f      *farm
	nodes  *atomic.Pointer[[]*farmNode]
	client *http.Client
	id     string
}

// do repeats a request until a node takes it. The tries that failed may have arrived, too.
func (c *roamer) do(method, body string, header ...string) (*http.Response, error) {
	for end := time.Now().Add(time.Minute); ; {
		all := *c.nodes.Load()
		n := all[rand.N(len(all))]
		req, err := mcptest.NewRequest(context.Background(), method, "http://"+n.addr+"/mcp", body, append(header, "Authorization", "Bearer me", "Mcp-Session-Id", c.id)...)
		if err != nil {
			return nil, err
		}
		res, err := c.client.Do(req)
		if err == nil && res.StatusCode != http.StatusServiceUnavailable {
			return res, nil
		}
		if err == nil {
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			err = fmt.Errorf("%d %s", res.StatusCode, text)
		}
		if time.Now().After(end) {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond) // sooner than Retry-After says
	}
}

// call makes one call to its end, and returns its response.
func (c *roamer) call(id, body, key string) (m jsonrpc.Message, err error) {
	f := &follower{p: &peer{version: "2025-11-25"}, seen: map[string]bool{}}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		var res *http.Response
		if f.last == "" {
			res, err = c.do("POST", body, "Idempotency-Key", fmt.Sprintf("%q", key))
		} else {
			res, err = c.do("GET", "", "Last-Event-ID", f.last)
		}
		if err != nil {
			return m, err
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return m, fmt.Errorf("after %q: %d %s", f.last, res.StatusCode, text)
		}
		if err := f.take(reply{header: res.Header, body: text, whole: err == nil}); err != nil {
			return m, err
		}
		if f.done {
			if m = f.got[len(f.got)-1]; string(m.ID) != id {
				err = fmt.Errorf("answered %s", m.Raw)
			}
			return m, err
		}
	}
	return m, fmt.Errorf("hung after %q", f.last)
}

// TestNodesComeAndGo kills and drains nodes and starts others, while clients make calls through
// any of them. Each call ends, with its result after one run or with "outcome unknown", and none
// runs twice.
func TestNodesComeAndGo(t *testing.T) {
	testlong.Only(t, "it takes seconds")
	t.Parallel()
	const clients = 16
	f := newFarm(t, 3, config{})
	var nodes atomic.Pointer[[]*farmNode]
	alive := append([]*farmNode(nil), f.nodes...)
	nodes.Store(&alive)
	stop := make(chan struct{})
	var group, calls sync.WaitGroup
	var done, unknown atomic.Int64
	for i := range clients {
		calls.Go(func() {
			transport := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
			defer transport.CloseIdleConnections()
			c := &roamer{f: f, nodes: &nodes, client: &http.Client{Transport: transport}}
			res, err := c.do("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
			if err != nil {
				t.Errorf("initialize: %v", err)
				return
			}
			_, _ = io.ReadAll(res.Body)
			res.Body.Close()
			c.id = res.Header.Get("Mcp-Session-Id")
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("%d-%d", i, n)
				m, err := c.call(fmt.Sprintf("%q", key), callAs(fmt.Sprintf("%q", key), "steps", fmt.Sprintf(`{"key":%q,"n":%d,"pause":%d}`, key, rand.N(5), rand.N(60))), key)
				runs := f.runs(key)
				switch {
				case err != nil:
					t.Errorf("call %s: %v (%d runs)", key, err, runs)
					return
				case runs > 1:
					t.Errorf("call %s ran %d times", key, runs)
				case m.Error == nil && runs != 1:
					t.Errorf("call %s: %s after %d runs", key, m.Raw, runs)
				case m.Error != nil && !strings.Contains(string(m.Error), "unknown"):
					t.Errorf("call %s: %s", key, m.Raw)
				case m.Error != nil:
					unknown.Add(1)
				default:
					done.Add(1)
				}
			}
		})
	}
	for n := range 5 {
		time.Sleep(time.Duration(500+rand.N(700)) * time.Millisecond)
		all := *nodes.Load()
		next := append([]*farmNode(nil), all[1:]...)
		next = append(next, f.start(config{}))
		nodes.Store(&next)
		if n%2 == 0 {
			all[0].kill()
		} else {
			group.Go(func() {
				_ = all[0].drain(2 * time.Second)
				all[0].close()
			})
		}
	}
	time.Sleep(time.Second)
	close(stop)
	calls.Wait()
	group.Wait()
	t.Logf("%d calls done, %d unknown", done.Load(), unknown.Load())
}
