package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// The machine of a node with a file: store loses its power. Messages that a client had received are
// kept, except those of the last second (with sync=always: all are kept). The client gets an error for
// a call that is lost, and no tool runs again because the record of its run is lost. (Failure 1)
//
// For one run of a node, the power is lost at several times: strace has recorded the node's
// system calls on its files, so that the test can make the disk as it may be at any time.
func TestPowerLost(t *testing.T) {
	if testlong.Race {
		t.Skip("a program with the race detector takes its time under strace")
	}
	for _, sync := range []struct {
		name, query string
		most        time.Duration // how much time may be lost
		keys        bool          // a call with a key syncs all messages before it to the disk
	}{{"always", "?sync=always", 0, true}, {"default", "", time.Second + busy, false}, {"keys", "", time.Second + busy, true}} {
		t.Run(sync.name, func(t *testing.T) {
			t.Parallel()
			times, long, seed := 1, 1500*time.Millisecond, rand.Uint64()
			if testlong.Wanted() {
				times, long = 5, 4*time.Second
			}
			p := powered(t, sync.query, sync.keys, long)
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			for i := range times {
				// Right after a client has received the end of a call.
				half := len(p.calls) / 2
				cut := p.calls[half+r.IntN(half)].said.Add(time.Millisecond / 10)
				if i > 0 && i == times-1 {
					cut = p.ended
				}
				p.lose(t, cut, sync.most, r)
			}
		})
	}
}

// busy is how much longer a sync may take on a busy machine: while the disk is slow, messages
// that were acknowledged get older, though no others are acknowledged.
const busy = time.Second

// A poweredNode is a recorded run of a node, with the calls of its clients.
type poweredNode struct {
	query        string
	steps        []step
	dir          string
	traces       string
	begun, ended time.Time // clients made calls between these times
	calls        []*poweredCall
}

type poweredCall struct {
	request
	id         int64
	session    string
	callRecord *callRecord
	opened     time.Time // when the client had the session's id
	said       time.Time // when the client had received the whole call, or had given up
}

// powered runs a node with clients for a while, and kills it.
func powered(t *testing.T, query string, keys bool, long time.Duration) *poweredNode {
	t.Helper()
	p := &poweredNode{query: query, dir: filepath.Join(t.TempDir(), "store")}
	trace := filepath.Join(t.TempDir(), "trace")
	before := recorder(t, trace)
	e := &sharedEngine{name: "file", url: func([]string) string { return "file:" + p.dir + query }}
	f := newFleet(t, e, shape{nodes: 1, library: true, place: func(int) place {
		return place{before: before, listen: "127.0.0.1:0", admin: "127.0.0.1:0", store: e.url(nil)}
	}})
	n := f.nodes[0]
	p.traces = f.traces
	at := fixed(n.url())
	ctx := bounded(t, time.Minute)
	p.begun = time.Now()
	var mu sync.Mutex
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for k := 0; k < 12 || time.Since(p.begun) < long; {
				r, err := newSpecClient(ctx, at, "")
				if err != nil {
					return
				}
				opened := time.Now()
				for range 6 {
					k++
					c := &poweredCall{id: r.ids.Add(1), session: r.session, opened: opened}
					name := callID(t, i, k)
					c.request = request{tool: "work", args: workArgs{ID: name, Steps: 3, MS: 15}}
					if keys && k%2 == 0 {
						c.key = fmt.Sprintf("%q", name)
					}
					c.callRecord = r.ask(ctx, c.id, c.request, "")
					c.said = time.Now()
					mu.Lock()
					p.calls = append(p.calls, c)
					mu.Unlock()
				}
				r.close()
			}
		})
	}
	clients.Wait()
	p.ended = time.Now()
	for _, pid := range children(n.now().cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-n.now().ended
	p.steps = record(t, trace, p.dir)
	whole := 0
	for _, c := range p.calls {
		if c.callRecord.over() && c.callRecord.check(c.request) == nil && !c.callRecord.unknown() {
			whole++
		}
	}
	if whole < 10 || len(p.steps) < 100 {
		t.Fatalf("%d of %d calls and %d steps were recorded", whole, len(p.calls), len(p.steps))
	}
	return p
}

// lose makes the disk as after a loss of power at the time cut, starts a node on it, and has
// the clients read and repeat their calls there.
func (p *poweredNode) lose(t *testing.T, cut time.Time, most time.Duration, r *rand.Rand) {
	t.Helper()
	n := slices.IndexFunc(p.steps, func(s step) bool { return s.at > float64(cut.UnixNano())/1e9 })
	if n < 0 {
		n = len(p.steps)
	}
	line := 0
	if n > 0 {
		line = p.steps[n-1].ended + 1
	}
	was := play(p.steps, line)
	dir := filepath.Join(t.TempDir(), "store")
	was.lose(t, p.dir, dir, r)
	e := &sharedEngine{name: "file", url: func([]string) string { return "file:" + dir + p.query }}
	f := newFleet(t, e, shape{nodes: 1, library: true})
	at := fixed(f.nodes[0].url())
	ctx := bounded(t, time.Minute)
	l := &loss{poweredNode: p, t: t, fleet: f, cut: cut, most: most, disk: was}
	var all sync.WaitGroup
	places := make(chan struct{}, 8)
	sessions := map[string]bool{}
	for _, c := range p.calls {
		if c.opened.After(cut) {
			continue // the session did not exist yet
		}
		if !sessions[c.session] {
			sessions[c.session] = true
			l.anew(ctx, &specClient{at: at, session: c.session, http: http.DefaultClient}, c)
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			client := &specClient{at: at, session: c.session, http: http.DefaultClient}
			if c.callRecord.first != "" && c.callRecord.over() && c.callRecord.ended.Before(cut) {
				l.read(ctx, client, c)
			}
			if c.key != "" {
				l.ask(ctx, client, c)
			}
		})
	}
	all.Wait()
	t.Logf("power lost after %v: of %d calls %d are there, %d are said to be lost or unknown; asked again, %d are unknown",
		cut.Sub(p.begun).Round(time.Millisecond), len(p.calls), l.kept, l.said, l.unknown)
	f.nodes[0].end()
}

// A loss has the results after the power was lost at the time cut.
type loss struct {
	*poweredNode
	t     *testing.T
	fleet *fleet
	cut   time.Time
	most  time.Duration
	disk  *disk

	mu                  sync.Mutex
	kept, said, unknown int
}

// must reports whether all messages of a call must be kept.
func (l *loss) must(c *poweredCall) bool {
	return c.callRecord.over() && c.callRecord.ended.Add(l.most).Before(l.cut)
}

// mtimeStep bounds how far a file's modification time may be behind the clock.
const mtimeStep = 20 * time.Millisecond

// ran returns how often a call has run, before the power was lost and after it.
func (l *loss) ran(name string) (times int) {
	for _, dir := range []string{l.traces, l.fleet.traces} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err == nil && (dir == l.fleet.traces || info.ModTime().Add(mtimeStep).Before(l.cut)) {
			times += int(info.Size())
		}
	}
	return times
}

// isGone reports whether the client got 404 for its session.
func isGone(s *callRecord) bool { return s.err != nil && strings.Contains(s.err.Error(), ": 404 ") }

// read reads a call again, from its first event.
func (l *loss) read(ctx context.Context, client *specClient, c *poweredCall) {
	s := client.ask(ctx, c.id, c.request, c.callRecord.first)
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := s.check(c.request)
	switch {
	case isGone(s) && !l.must(c), s.unknown() && wrong == nil && !l.must(c):
		l.said++
	case wrong != nil || s.unknown():
		l.t.Errorf("%v before the power was lost a client had received all, and now hears %q, %v\n%v", l.cut.Sub(c.callRecord.ended), s.received, s.err, l.disk)
	default:
		l.kept++
	}
}

// anew makes another call in a session that its client knew, and checks that the session is kept.
func (l *loss) anew(ctx context.Context, client *specClient, c *poweredCall) {
	q := request{tool: "look", args: workArgs{ID: c.args.ID + "-anew", Steps: 1, MS: 1}}
	s := client.ask(ctx, 1_000_000, q, "")
	if err := s.check(q); err != nil || s.unknown() {
		l.t.Errorf("%v before the power was lost a session was there, and now a call in it: %v, %q", l.cut.Sub(c.opened), err, s.received)
	}
}

// ask makes a call again with its key, as a client that has received no event of it.
func (l *loss) ask(ctx context.Context, client *specClient, c *poweredCall) {
	before := l.ran(c.args.ID)
	s := client.ask(ctx, c.id, c.request, "")
	after := l.ran(c.args.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch wrong := s.check(c.request); {
	case isGone(s) && l.must(c):
		l.t.Errorf("%v before the power was lost a session was there, and is gone", l.cut.Sub(c.callRecord.ended))
	case wrong != nil && !isGone(s):
		l.t.Errorf("asked again under its key: %v", wrong)
	case s.unknown():
		l.unknown++
	}
	if after > 1 || before > 0 && after != before {
		l.t.Errorf("%v before the power was lost a call had run %d times, and asked again %d times; the client hears %q", l.cut.Sub(c.said), before, after, s.received)
	}
}
