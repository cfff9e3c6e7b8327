package e2e

import (
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/mcptest"
)

var networkFor = flag.Duration("cluster.network", 10*time.Second, "how long TestClusterNetwork has packets vanish")

// silence is how long a client waits without receiving a byte, not even a keep-alive.
const silence = 20 * time.Second

// A lan is a network with a namespace for each node, and a link from each to the test's namespace.
type lan struct {
	t    *testing.T
	name string
}

func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// newLAN makes n namespaces: 10.99.I.1 is the test's end of the link to 10.99.I.2.
func newLAN(t *testing.T, n int) *lan {
	t.Helper()
	l := &lan{t: t, name: fmt.Sprintf("hf%d", time.Now().UnixNano()%10_000)}
	t.Cleanup(func() {
		for i := range n {
			_ = exec.Command("ip", "netns", "del", l.ns(i)).Run() // this deletes the link too
		}
	})
	for i := range n {
		sh(t, fmt.Sprintf(`set -e; ip netns add %[1]s; ip link add %[1]s type veth peer name e0 netns %[1]s
			ip addr add 10.99.%[2]d.1/24 dev %[1]s; ip link set %[1]s up
			ip -n %[1]s addr add 10.99.%[2]d.2/24 dev e0; ip -n %[1]s link set e0 up; ip -n %[1]s link set lo up`, l.ns(i), i))
	}
	return l
}

func (l *lan) ns(i int) string { return fmt.Sprintf("%sn%d", l.name, i) }

// drop drops packets between a node and some ports of this end (or all other ports), both ways,
// for a time. Neither end gets an error, and no connection ends.
func (l *lan) drop(node int, ports string, but bool, long time.Duration) {
	l.t.Helper()
	not := ""
	if but {
		not = "!= "
	}
	sh(l.t, fmt.Sprintf(`ip netns exec %s nft -f - <<'R'
table inet cut {
	chain in { type filter hook input priority 0; iifname "e0" tcp sport %[2]s{ %[3]s } drop; }
	chain out { type filter hook output priority 0; oifname "e0" tcp dport %[2]s{ %[3]s } drop; }
}
R`, l.ns(node), not, ports))
	time.Sleep(long)
	sh(l.t, "ip netns exec "+l.ns(node)+" nft delete table inet cut")
}

// Packets vanish between one node and the engine, and then between one node and its clients: in
// network namespaces, by nftables. No call is lost or run twice; a client of the node comes
// back to it, or goes to another node.
func TestClusterNetwork(t *testing.T) {
	if !*mountsToo {
		t.Skip("it makes networks: -cluster.root runs it, as root")
	}
	mcptest.Check(t, build())
	l := newLAN(t, 3)
	s := redistest.Start(t, "--protected-mode", "no", "--bind", "0.0.0.0")
	port := s.Addr()[strings.LastIndex(s.Addr(), ":")+1:]
	e := &sharedEngine{name: "redis", redis: s, addrs: []string{s.Addr()}}
	e.url = func([]string) string { return "redis://" + s.Addr() + "/0" }
	f := newFleet(t, e, shape{place: func(i int) place {
		return place{
			before: []string{"ip", "netns", "exec", l.ns(i)},
			listen: fmt.Sprintf("10.99.%d.2:0", i),
			admin:  fmt.Sprintf("10.99.%d.2:0", i),
			store:  fmt.Sprintf("redis://10.99.%d.1:%s/0", i, port),
		}
	}})
	for _, cut := range []struct {
		name string
		cut  func(node int, long time.Duration)
	}{
		{"a node is cut off from the engine", func(node int, long time.Duration) { l.drop(node, port, false, long) }},
		{"a node is cut off from its clients", func(node int, long time.Duration) { l.drop(node, port, true, long) }},
	} {
		t.Run(cut.name, func(t *testing.T) {
			f := &fleet{t: t, nodes: f.nodes, front: f.front, traces: f.traces}
			ctx := bounded(t, 2**networkFor+90*time.Second)
			sum := &score{}
			callers := f.callers(6)
			for _, c := range callers {
				if r, ok := c.(*specClient); ok {
					r.http.Timeout = silence
				}
			}
			calling := f.calling(callers, sum)
			// Of the node's own clients, one comes back to it and one goes to another node.
			own := make([]<-chan *callRecord, 2)
			requests := make([]request, len(own))
			for i := range own {
				then := []func() string{fixed(f.nodes[0].url()), fixed(f.nodes[1].url())}[i]
				r := f.client(fixed(f.nodes[0].url()), then)
				r.http.Timeout = silence
				requests[i] = request{tool: "work", args: workArgs{ID: callID(t, "own", i), Steps: 50, MS: 5_000}}
				own[i] = start(ctx, r, requests[i])
			}
			f.running(requests...)
			began := sum.total()
			cut.cut(0, *networkFor)
			t.Logf("%d calls meanwhile", sum.total()-began)
			began = sum.total()
			mcptest.Eventually(t, "all nodes are ready again", 40*time.Second, func() bool {
				for _, n := range f.nodes {
					if n.ready() != 200 {
						return false
					}
				}
				return true
			})
			mcptest.Eventually(t, "calls are made again", 30*time.Second, func() bool { return sum.total() > began+9 })
			healed := time.Now()
			for i := range own {
				s := <-own[i]
				if s.check(requests[i]) != nil || !s.over() {
					t.Errorf("client %d of the node: %v, received %q", i, s.check(requests[i]), tail(s.received))
					continue
				}
				t.Logf("client %d of the node: %q, %v after the end", i, s.last(), s.ended.Sub(healed).Round(100*time.Millisecond))
				f.wantRuns(requests[i].args.ID, 1, 1)
			}
			calling.end()
			sum.report(t, 0)
		})
	}
}
