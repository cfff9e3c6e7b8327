package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// hookFlags are the flags of a server that may send webhooks to a test, and soon disconnects its clients.
var hookFlags = []string{"--webhook-secret", hookSecret, "--webhook-allow", "127.0.0.1", "--disconnect-after", "50ms"}

// A hookReceiver receives webhooks, and fails the test if a signature is wrong.
type hookReceiver struct {
	URL string

	mu     sync.Mutex
	status func(path string, try int) int // nil: always 200
	tries  map[string]int                 // by path
	ids    map[string]map[string]bool     // webhook-ids, by path
	taken  map[string]string              // the call's status in the webhook that was accepted, by path
}

func newHookReceiver(t *testing.T, status func(path string, try int) int) *hookReceiver {
	t.Helper()
	library := mcptest.Must(standardwebhooks.NewWebhook(hookSecret))(t)
	r := &hookReceiver{status: status, tries: map[string]int{}, ids: map[string]map[string]bool{}, taken: map[string]string{}}
	r.URL = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return // the sending node was killed
		}
		var event struct{ Data struct{ Status string } }
		if err := library.Verify(body, q.Header); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(body, &event); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tries[q.URL.Path]++
		if r.ids[q.URL.Path] == nil {
			r.ids[q.URL.Path] = map[string]bool{}
		}
		r.ids[q.URL.Path][q.Header.Get("webhook-id")] = true
		if r.status != nil {
			if status := r.status(q.URL.Path, r.tries[q.URL.Path]); status != http.StatusOK {
				w.WriteHeader(status)
				return
			}
		}
		r.taken[q.URL.Path] = event.Data.Status
	}))
	return r
}

// seen returns how often a webhook to a path was tried, and the call's status in the accepted one.
func (r *hookReceiver) seen(path string) (tries int, taken string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tries[path], r.taken[path]
}

// A hookCount counts the tries of a webhook, and its ids.
type hookCount struct{ tries, ids int }

// all returns the counts of all webhooks, by their paths.
func (r *hookReceiver) all() map[string]hookCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]hookCount)
	for path := range r.tries {
		all[path] = hookCount{r.tries[path], len(r.ids[path])}
	}
	return all
}

// begin makes a call with a webhook to a path of the receiver, and reads until the server disconnects it. It returns an error if
// the server does not, or answers the call before.
func (r *hookReceiver) begin(ctx context.Context, at, session, tool, arguments, path string) error {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"holdfast/webhook":{"url":%q}}}}`,
		path, tool, arguments, r.URL+path)
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	said, err := (&mcptest.Client{URL: at, Session: session, Revision: "2025-11-25"}).Exchange(ctx, http.MethodPost, body)
	switch { // the client has received all that was written before it was disconnected
	case said.Status == 0:
	case said.Status != http.StatusOK || !strings.HasPrefix(said.Header.Get("Content-Type"), "text/event-stream"):
		err = fmt.Errorf("status %d, %s", said.Status, said.Header.Get("Content-Type"))
	case err == nil && strings.Contains(said.Body, `"jsonrpc"`):
		err = fmt.Errorf("it was answered: %s", said.Body)
	}
	return err
}

// A webhook to a receiver that is away is sent after its server was killed and started again, with the same id, and not again
// after that. A webhook that the receiver refuses with 410 is not sent again.
func TestWebhookFile(t *testing.T) {
	testlong.Only(t, "it waits for another try")
	t.Parallel()
	mcptest.Check(t, build())
	var away atomic.Bool
	away.Store(true)
	r := newHookReceiver(t, func(path string, _ int) int {
		switch {
		case path == "/gone":
			return http.StatusGone
		case path == "/later" && away.Load():
			return http.StatusServiceUnavailable
		case path == "/odd" && away.Load():
			return http.StatusNotFound
		}
		return http.StatusOK
	})
	args := append([]string{"serve", "--demo", "--listen", testport.Addr(t), "--store", "file:" + t.TempDir()}, hookFlags...)
	start := func() *program { return serveBy(t, exec.Command(built, args...)) }
	p := start()
	session := openSession(t, p.URL, "", "{}")
	all := []string{"/later", "/odd", "/gone", "/taken"}
	for _, path := range all {
		mcptest.Check(t, r.begin(t.Context(), p.URL, session, "count", `{"to":1,"delay_ms":300}`, path))
	}
	for _, path := range all {
		mcptest.Eventually(t, path+" to be tried", time.Minute, func() bool { tries, _ := r.seen(path); return tries > 0 })
	}
	mcptest.Eventually(t, "/gone to be given up", time.Minute, func() bool { return strings.Contains(p.log.String(), "webhook given up") })
	_ = p.cmd.Process.Kill()
	_ = p.wait(t, time.Minute)
	away.Store(false)
	p = start()
	for _, path := range []string{"/later", "/odd"} {
		mcptest.Eventually(t, path+" to be sent", time.Minute, func() bool { _, taken := r.seen(path); return taken == "completed" })
	}
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	before := r.all()
	p = start()
	// This call ends later than the webhooks that are sent again after a restart.
	mcptest.Check(t, r.begin(t.Context(), p.URL, session, "count", `{"to":1,"delay_ms":6000}`, "/last"))
	mcptest.Eventually(t, "the last to be sent", time.Minute, func() bool { _, taken := r.seen("/last"); return taken == "completed" })
	after := r.all()
	for path, is := range before {
		if after[path] != is || is.ids != 1 || is.tries > 3 {
			t.Errorf("%s: %+v before the second restart, and %+v after it", path, is, after[path])
		}
	}
	// The kill may come before the server has deleted the webhook.
	if tries, taken := r.seen("/gone"); tries > 2 || taken != "" {
		t.Errorf("410 was taken for %q, after %d tries", taken, tries)
	}
}

// Nodes are killed at random while the calls of clients that have left end: each webhook arrives, and a webhook that comes twice has the same id.
func TestWebhooksKilled(t *testing.T) {
	testlong.Only(t, "it kills nodes for seconds")
	t.Parallel()
	test := func(t *testing.T, e *sharedEngine, nodes int) {
		f := newFleet(t, e, shape{nodes: nodes, remote: true, flags: hookFlags})
		r := newHookReceiver(t, func(_ string, try int) int {
			if rand.IntN(3) == 0 && try < 2 {
				return http.StatusServiceUnavailable
			}
			return http.StatusOK
		})
		const sessions, each = 28, 12
		ctx := bounded(t, 2*time.Minute)
		over, stop := context.WithCancel(ctx)
		var killer sync.WaitGroup
		kills := 0
		killer.Go(func() {
			for over.Err() == nil {
				n := f.nodes[rand.IntN(nodes)]
				n.kill()
				kills++
				if err := n.start(n.address()); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-time.After(time.Duration(300+rand.IntN(700)) * time.Millisecond):
				case <-over.Done():
				}
			}
		})
		var mu sync.Mutex
		begun := map[string]bool{}
		var clients sync.WaitGroup
		for i := range sessions {
			at := f.nodes[i%nodes].url
			session := ""
			mcptest.Eventually(t, "a session", time.Minute, func() bool {
				begun, err := mcptest.Exchange(t.Context(), http.MethodPost, at(), begins)
				session = begun.Session()
				return err == nil && begun.Status == http.StatusOK
			})
			clients.Go(func() {
				for k := 0; k < each && ctx.Err() == nil; {
					path := fmt.Sprintf("/%d-%d-%d", i, k, rand.Uint32())
					tool := []string{"work", "look"}[k%2]
					arguments := fmt.Sprintf(`{"id":%q,"steps":2,"ms":%d}`, callID(t, path[1:]), 200+rand.IntN(1000))
					if err := r.begin(ctx, f.nodes[rand.IntN(nodes)].url(), session, tool, arguments, path); err != nil {
						time.Sleep(50 * time.Millisecond)
						continue
					}
					time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
					mu.Lock()
					begun[path] = true
					mu.Unlock()
					k++
				}
			})
		}
		clients.Wait()
		stop()
		killer.Wait()
		missing := func() (paths []string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for path := range maps.Keys(begun) {
				if r.taken[path] == "" {
					paths = append(paths, path)
				}
			}
			return paths
		}
		began := time.Now()
		for end := began.Add(90 * time.Second); len(missing()) > 0 && time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond)
		}
		if lost := missing(); len(lost) > 0 {
			t.Errorf("%d of %d webhooks did not come: %.10v", len(lost), len(begun), lost)
			r.mu.Lock()
			for _, path := range lost[:min(len(lost), 10)] {
				t.Log(path, r.tries[path], r.ids[path])
			}
			r.mu.Unlock()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		twice := 0
		for path := range begun {
			if len(r.ids[path]) > 1 {
				t.Errorf("%s has %d ids", path, len(r.ids[path]))
			}
			if r.tries[path] > 2 {
				twice++
			}
		}
		t.Logf("%d calls, %d kills, %d of them tried more than twice, the last after %v", len(begun), kills, twice, time.Since(began).Round(time.Millisecond))
	}
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) { test(t, e, 3) })
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, fileEngine(t), 1)
	})
}
