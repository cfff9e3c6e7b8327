package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

var churned = flag.Int("cluster.churn", 300, "how many sessions TestClusterChurn opens; FAILURES asks for 100000")

// Failure 12: many sessions are opened, used once, and left. Their resources are released:
// goroutines and memory of the nodes, and the sessions' records in the engine. A session in a
// call does not count as idle.
func TestClusterChurn(t *testing.T) {
	testlong.Only(t, "it takes half a minute")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		const ttl = 4 * time.Second // the engine keeps a record three times as long, as a machine may stall for a while
		f := newFleet(t, e, shape{library: true, flags: []string{"--session-ttl", ttl.String(), "--keep", "2s"}})
		f.churn(60) // so that pools and caches are filled
		before := f.settled()
		busy := request{tool: "work", args: workArgs{ID: callID(t, "busy"), Steps: 3, MS: int((2*ttl + time.Second).Milliseconds())}}
		told := start(bounded(t, time.Minute), f.client(f.balanced, f.balanced), busy)
		f.churn(*churned)
		most := e.records(t)
		(<-told).want(t, busy, false)
		mcptest.Eventually(t, "the sessions' records are gone", time.Minute, func() bool { return e.records(t) == 0 })
		if t.Logf("%d records in the engine at most", most); most == 0 {
			t.Error("nothing was ever on record")
		}
		after := f.settled()
		for i, n := range f.nodes {
			t.Logf("node %s: %d goroutines and %d KiB, then %d and %d KiB", n.name,
				before[i].goroutines, before[i].heap>>10, after[i].goroutines, after[i].heap>>10)
			if after[i].goroutines > before[i].goroutines+20 || after[i].heap > before[i].heap+4<<20+uint64(*churned)*200 {
				t.Errorf("node %s did not give back what it took", n.name)
			}
		}
	})
}

// churn opens sessions, makes a call in each, and leaves it without ending it.
func (f *fleet) churn(sessions int) {
	limit := make(chan struct{}, 16)
	own := &http.Transport{MaxIdleConnsPerHost: 16}
	defer own.CloseIdleConnections()
	var all sync.WaitGroup
	ctx, stop := context.WithTimeout(f.t.Context(), time.Minute+time.Duration(sessions)*20*time.Millisecond)
	defer stop()
	for i := range sessions {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			r := &specClient{at: f.balanced, http: &http.Client{Transport: own}}
			err := r.initialize(ctx)
			for ; err != nil && strings.Contains(err.Error(), "503"); err = r.initialize(ctx) {
				time.Sleep(50 * time.Millisecond) // the machine stalled, and the engine with it
			}
			if err != nil {
				f.t.Error(err)
				return
			}
			q := request{tool: []string{"work", "look"}[i%2], args: workArgs{ID: callID(f.t, sessions, i)}}
			r.call(ctx, q).want(f.t, q, false)
		})
	}
	all.Wait()
}

type usage struct {
	goroutines int
	heap       uint64 // bytes
}

// settled returns the usage of each node once it does not shrink any more.
func (f *fleet) settled() []usage {
	all := make([]usage, len(f.nodes))
	for i, n := range f.nodes {
		for same, tries := 0, 0; same < 3 && tries < 40; tries++ {
			u := n.usage()
			if same++; all[i].goroutines == 0 || u.goroutines < all[i].goroutines || u.heap < all[i].heap-all[i].heap/50 {
				all[i], same = u, 0
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return all
}

func (n *node) usage() (u usage) {
	n.t.Helper()
	said, err := mcptest.Exchange(context.Background(), http.MethodGet, "http://"+n.now().admin+"/", "")
	if err == nil {
		_, err = fmt.Sscan(said.Body, &u.goroutines, &u.heap)
	}
	if err != nil {
		n.t.Error(err)
	}
	return u
}

// records returns how many sessions have a record in the engine.
func (e *sharedEngine) records(t *testing.T) int {
	t.Helper()
	if e.redis != nil {
		var n int
		for key := range strings.FieldsSeq(e.redis.MustDo("KEYS", "*")) {
			if strings.HasSuffix(strings.TrimSpace(key), ":v:s") {
				n++
			}
		}
		return n
	}
	js := e.jetstream(t)
	n := 0
	patiently(t, "counting records", func(ctx context.Context) error {
		n = 0
		streams := js.ListStreams(ctx)
		for s := range streams.Info() {
			if !s.Config.AllowMsgTTL || !strings.HasPrefix(s.Config.Name, e.prefix) {
				continue
			}
			st, err := js.Stream(ctx, s.Config.Name)
			if err != nil {
				return err
			}
			info, err := st.Info(ctx, jetstream.WithSubjectFilter(e.prefix+".kv.s.>"))
			if err != nil {
				return err
			}
			n += len(info.State.Subjects)
		}
		return streams.Err()
	})
	return n
}
