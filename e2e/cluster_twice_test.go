package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// Failure 2 where answers are plain JSON: a node is killed, stopped, or cut off from the
// engine, in the middle of calls that another node has forwarded to it. Tools run once, in a
// batch too, and each request has one answer, as JSON: "outcome unknown".
func TestClusterTwice(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		if e.redis == nil {
			testlong.Only(t, "it takes half a minute")
		}
		f := newFleet(t, e, shape{nodes: 4, wires: true, flags: []string{"--response", "json"}})
		last := f.nodes[3]
		ways := []struct {
			name         string
			lose, regain func(n *node)
		}{
			{"killed", (*node).kill, func(*node) {}},
			{"stopped", func(n *node) { n.signal(syscall.SIGSTOP) }, func(n *node) { n.signal(syscall.SIGCONT) }},
			{"cut off", (*node).deaden, (*node).heal},
		}
		var posts []*plainPost
		var all sync.WaitGroup
		ctx := bounded(t, 2*time.Minute)
		for i, way := range ways {
			for _, batch := range []int{0, 2} {
				x := &plainPost{Client: mcptest.Client{URL: f.nodes[i].url()}, ids: []string{callID(t, way.name, batch)}}
				if batch > 0 {
					x.ids = []string{callID(t, way.name, batch, 1), callID(t, way.name, batch, 2)}
				}
				posts = append(posts, x)
				mcptest.Check(t, x.Begin(ctx, mcptest.Initialize("2025-03-26", "{}")))
				all.Go(func() { x.post(ctx, last.url(), batch > 0) })
			}
		}
		for _, x := range posts {
			for _, id := range x.ids {
				mcptest.Eventually(t, "the calls run", time.Minute, func() bool { return f.runs(id) == 1 })
			}
		}
		for i, way := range ways {
			way.lose(f.nodes[i])
		}
		time.Sleep(6 * time.Second) // as long as the nodes are away
		for i, way := range ways {
			way.regain(f.nodes[i])
		}
		all.Wait()
		for _, x := range posts {
			if x.err != nil {
				t.Errorf("%q: %v", x.ids, x.err)
			}
			for i, id := range x.ids {
				f.wantRuns(id, 1, 1)
				if said := x.got[i+1]; !strings.Contains(said, "outcome unknown") {
					t.Errorf("call %s is answered %q", id, said)
				}
			}
		}
	})
}

// A plainPost is a POST of a client of revision 2025-03-26, with one call or a batch, that is answered with JSON.
type plainPost struct {
	mcptest.Client // its session is at the owner
	ids            []string
	got            map[int]string // the answers, by the ids of the requests
	err            error
}

// post makes the calls at another node.
func (x *plainPost) post(ctx context.Context, url string, batch bool) {
	var calls []string
	for i, id := range x.ids {
		calls = append(calls, mcptest.Call(i+1, "work", fmt.Sprintf(`{"id":%q,"steps":0,"ms":8000}`, id)))
	}
	body := calls[0]
	if batch {
		body = "[" + strings.Join(calls, ",") + "]"
	}
	x.URL = url
	r, err := x.Exchange(ctx, http.MethodPost, body)
	if kind := r.Header.Get("Content-Type"); err != nil || kind != "application/json" {
		x.err = fmt.Errorf("%d, %s, %w: %s", r.Status, kind, err, r.Body)
		return
	}
	if !batch {
		r.Body = "[" + r.Body + "]"
	}
	var answers []struct {
		ID            int
		Result, Error json.RawMessage
	}
	if x.err = json.Unmarshal([]byte(r.Body), &answers); x.err != nil {
		return
	}
	x.got = make(map[int]string)
	for _, a := range answers {
		if x.got[a.ID] != "" {
			x.err = fmt.Errorf("answered twice: %s", r.Body)
		}
		x.got[a.ID] = string(a.Result) + string(a.Error)
	}
}
