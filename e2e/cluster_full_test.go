package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

const safeTool = `{"jsonrpc":"2.0","id":"light","method":"tools/call","params":{"name":"look","arguments":{"id":"light","steps":0,"ms":1}}}`

// refused checks that a new call and a new session are refused with a 503 that says "full", and that the call has not run.
func (f *fleet) refused(r *specClient, q request) {
	f.t.Helper()
	if said := r.exchange(f.t, "POST", q.body(r.ids.Add(1))); said.Status != http.StatusServiceUnavailable || !strings.Contains(said.Body, "full") {
		f.t.Errorf("a new call: %d: %s", said.Status, said.Body)
	}
	f.wantRuns(q.args.ID, 0, 0)
	r = &specClient{at: r.at, http: r.http}
	if err := r.initialize(bounded(f.t, 20*time.Second)); err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "full") {
		f.t.Errorf("a new session: %v", err)
	}
}

// While JetStream has room only for calls that run, new calls are refused with the reason
// before they run, and running calls end as they should. When it has no room at all, the
// outcome of a running call is unknown. When there is room again, all sessions go on.
func TestClusterFull(t *testing.T) {
	testlong.Only(t, "it fills a store")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		if e.nats == nil {
			t.Skip("for Redis, see its maxmemory")
		}
		url := e.url
		e.url = func(addrs []string) string { return url(addrs) + "&max=16MiB" }
		f := newFleet(t, e, shape{})
		ctx := bounded(t, 100*time.Second)
		js := e.jetstream(t)
		running, other, after := f.client(f.balanced, f.balanced), f.client(f.balanced, f.balanced), f.client(f.balanced, f.balanced)
		long := request{tool: "work", args: workArgs{ID: callID(t, "long"), Steps: 40, MS: 4_000}}
		told := start(ctx, running, long)
		f.running(long)

		e.fill(t, js, e.prefix+".ev.filling", 256<<10, 12<<20+512<<10)
		mcptest.Eventually(t, "new calls are refused", 20*time.Second, func() bool {
			try := request{tool: "work", args: workArgs{ID: callID(t, "try")}}
			return other.exchange(t, "POST", try.body(other.ids.Add(1))).Status == http.StatusServiceUnavailable
		})
		time.Sleep(2 * time.Second) // until all nodes know that the engine is full
		f.refused(other, request{tool: "work", args: workArgs{ID: callID(t, "refused"), Steps: 1, MS: 10}})
		if r := other.exchange(t, "POST", safeTool); r.Status != http.StatusOK {
			t.Errorf("a light call: %d: %s", r.Status, r.Body)
		}
		(<-told).want(t, long, false)

		e.empty(t, js, "filling")
		mcptest.Eventually(t, "there is room again", 20*time.Second, func() bool {
			q := request{tool: "work", args: workArgs{ID: callID(t, "room", time.Now().UnixNano()), Steps: 1, MS: 1}}
			s := after.call(bounded(t, 10*time.Second), q)
			return s.check(q) == nil && s.over() && !s.unknown()
		})
		long = request{tool: "work", args: workArgs{ID: callID(t, "longer"), Steps: 600, MS: 60_000}} // it would run for a minute
		told = start(ctx, running, long)
		f.running(long)
		for size := 256 << 10; size > 0; size /= 8 {
			e.fill(t, js, e.prefix+".ev.filling", size, 64<<20)
		}
		if s := <-told; s.check(long) != nil || !s.unknown() || !strings.Contains(s.last(), "full") {
			t.Errorf("what ran, and found no room: %v, received %q", s.check(long), tail(s.received))
		}
		e.empty(t, js, "filling")
		for i, r := range []*specClient{running, other, after} {
			q := request{tool: "work", args: workArgs{ID: callID(t, "after", i), Steps: 3, MS: 30}}
			mcptest.Eventually(t, "a session goes on", 20*time.Second, func() bool {
				s := r.call(bounded(t, 10*time.Second), q)
				return s.check(q) == nil && s.over() && !s.unknown()
			})
			f.wantRuns(q.args.ID, 1, 1)
		}
	})
}

// jetstream returns a client of the test for the engine.
func (e *sharedEngine) jetstream(t *testing.T) jetstream.JetStream {
	t.Helper()
	url, _, _ := strings.Cut(e.url(e.addrs), "?")
	nc := mcptest.Must(nats.Connect(url, nats.UserInfo(natstest.User, natstest.Password)))(t)
	t.Cleanup(nc.Close)
	return mcptest.Must(jetstream.New(nc))(t)
}

// fill writes messages of a size, until most bytes are written or there is no room for more.
func (e *sharedEngine) fill(t *testing.T, js jetstream.JetStream, subject string, size, most int) {
	t.Helper()
	full := false
	for n := 0; n < most && !full; n += size {
		patiently(t, "filling", func(ctx context.Context) error {
			_, err := js.Publish(ctx, subject, make([]byte, size))
			var api *jetstream.APIError
			if full = errors.As(err, &api) && api.ErrorCode == 10077; full {
				return nil
			}
			return err
		})
	}
}

// patiently makes a request to JetStream, and repeats it after an error: the request may be
// lost while servers elect a leader.
func patiently(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		err = do(ctx)
		stop()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// empty removes the messages that fill has written.
func (e *sharedEngine) empty(t *testing.T, js jetstream.JetStream, name string) {
	t.Helper()
	patiently(t, "emptying", func(ctx context.Context) error {
		s, err := js.Stream(ctx, e.prefix+"-events")
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(e.prefix+".ev."+name))
		}
		return err
	})
}

var mountsToo = flag.Bool("cluster.root", false, "run tests that need to be root: they mount file systems, and make networks")

// Other files fill up the disk under a node, though the node's own limit leaves room. New calls
// are refused before the disk is full, and running calls go on. When it is full, the outcome of a running
// call is unknown, the node says that it is not ready, and serves again by itself once there is room.
func TestFileDiskFull(t *testing.T) {
	if !*mountsToo {
		t.Skip("it mounts a file system: -cluster.root runs it, as root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	e := &sharedEngine{name: "file", url: func([]string) string { return "file:" + filepath.Join(dir, "store") }}
	f := newFleet(t, e, shape{nodes: 1})
	n := f.nodes[0]
	ctx := bounded(t, 3*time.Minute)
	client := func() *specClient { return f.client(fixed(n.url()), fixed(n.url())) }
	running, other, short := client(), client(), client()
	long := request{tool: "work", args: workArgs{ID: callID(t, "long"), Steps: 600, MS: 60_000}}
	told := start(ctx, running, long)
	f.running(long)
	ballast := filepath.Join(dir, "ballast")
	fill := func(least int64) {
		out := mcptest.Must(os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
		defer out.Close()
		for size := int64(1 << 20); size > 0; size /= 4 {
			for {
				var disk syscall.Statfs_t
				mcptest.Check(t, syscall.Statfs(dir, &disk))
				if int64(disk.Bavail)*int64(disk.Bsize) < least+size { //nolint:unconvert // their types differ between systems
					break
				}
				if _, err := out.Write(bytes.Repeat([]byte{'x'}, int(size))); err != nil {
					break
				}
			}
		}
	}
	fill(20 << 20)
	time.Sleep(3 * time.Second) // the node looks at the disk every second
	f.refused(other, request{tool: "work", args: workArgs{ID: callID(t, "refused"), Steps: 1, MS: 10}})
	if s := short.call(ctx, request{tool: "look", args: workArgs{ID: callID(t, "light"), Steps: 0, MS: 1}}); !s.over() || s.unknown() {
		t.Errorf("a light call: %v, received %q", s.err, s.received)
	}
	select {
	case s := <-told:
		t.Errorf("what runs has ended: %v, received %q", s.err, tail(s.received))
	default:
	}
	fill(0)
	filled := time.Now()
	s := <-told
	t.Logf("what ran was told after %v: %q, %v", time.Since(filled).Round(time.Millisecond), s.last(), s.err)
	s.want(t, long, true)
	mcptest.Eventually(t, "it is not ready", 20*time.Second, func() bool { return n.ready() == http.StatusServiceUnavailable })
	mcptest.Check(t, os.Remove(ballast))
	works := func() bool {
		r, err := newSpecClient(bounded(t, 5*time.Second), fixed(n.url()), "")
		if err != nil {
			return false
		}
		defer r.close()
		q := request{tool: "work", args: workArgs{ID: callID(t, "after", time.Now().UnixNano()), Steps: 3, MS: 30}}
		s := r.call(bounded(t, 8*time.Second), q)
		return s.check(q) == nil && s.over() && !s.unknown()
	}
	mcptest.Eventually(t, "it goes on by itself", 100*time.Second, works) // it took 2 s, but each try may take 8 s
}
