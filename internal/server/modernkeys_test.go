package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
)

// nobody is an Options.Principal under which no client has a principal.
func nobody(*http.Request) string { return "" }

// by returns the client with a token, or without one if token is "".
func (p *peer) by(token string) *peer {
	q := *p
	q.header = http.Header{}
	if token != "" {
		q.header.Set("Authorization", "Bearer "+token)
	}
	return &q
}

// TestModernKeysOfNobody has clients without a principal that use the same key. Each finds its own
// call by its credential, on any node, and can neither read nor cancel another's.
func TestModernKeysOfNobody(t *testing.T) {
	t.Parallel()
	c := config{server: server.Options{Principal: nobody}}
	setups := map[string]func(t *testing.T) (f *farm, at []*peer){
		"one node": func(t *testing.T) (*farm, []*peer) {
			n := newNode(t, c)
			return &farm{t: t, nodes: []*farmNode{{node: n}}}, []*peer{{n: n}, {n: n}}
		},
		"two nodes": func(t *testing.T) (*farm, []*peer) {
			f := newFarm(t, 2, c)
			return f, []*peer{{n: f.nodes[0].node}, {n: f.nodes[1].node}}
		},
		"a door and another node": func(t *testing.T) (*farm, []*peer) {
			f := newFarm(t, 1, c)
			door := f.start(config{server: server.Options{Principal: nobody, Role: server.RoleDoor}})
			door.meets(1)
			return f, []*peer{{n: door.node}, {n: f.nodes[0].node}}
		},
	}
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, at := setup(t)
			for _, mine := range []string{"a", ""} {
				key := "of-" + mine
				args := func(what string) string { return fmt.Sprintf(`{"key":%q}`, key+what) }
				for i, p := range []*peer{at[0], at[1], at[0]} {
					if r := p.by(mine).under(key).callModern("steps", args("")).all(); !strings.Contains(r.response(), `"done"`) || f.runs(key) != 1 {
						t.Errorf("%q, time %d: %d %s, ran %d times", mine, i, r.status, r.body, f.runs(key))
					}
				}
				for _, other := range []string{"a", "b", ""} {
					if other == mine {
						continue
					}
					for i, p := range at {
						r := p.by(other).under(key).callModern("steps", args("")).all()
						if ran := f.runs(key); r.status != http.StatusGone || !strings.Contains(string(r.body), fmt.Sprint(codeUnknown)) || ran != 1 {
							t.Errorf("%q under the key of %q, node %d: %d %s, ran %d times", other, mine, i, r.status, r.body, ran)
						}
					}
					what := "-by-" + other
					if r := at[1].by(other).under(key).callModern("steps", args(what)).all(); !strings.Contains(r.response(), `"done"`) || f.runs(key+what) != 1 {
						t.Errorf("another request of %q under the key of %q: %d %s", other, mine, r.status, r.body)
					}
				}
			}
			w := at[0].by("a").under("held").callModern("hold", `{"key":"held"}`)
			mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("held") == 1 })
			for _, p := range at {
				for _, other := range []string{"b", ""} {
					p.by(other).under("held").cancelKeyed()
				}
			}
			if n := f.calls(); n != 1 {
				t.Fatalf("others have cancelled: %d calls in flight", n)
			}
			at[1].by("a").under("held").cancelKeyed()
			if r := w.all(); !strings.Contains(r.response(), "cancelled") || f.calls() != 0 {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

// TestModernKeysOfTenants has clients without a principal and a token: their keys are apart if their addresses differ, of IPv6 in the first 64 bits.
func TestModernKeysOfTenants(t *testing.T) {
	t.Parallel()
	inBubble(t, config{server: server.Options{Principal: nobody}}, func(t *testing.T, b *bubble) {
		for i, from := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.1", "2001:db8:0:0:1::2"} {
			a := wish{params: tool("who", "k"), from: from, key: "key"}
			if strings.Contains(from, ":") {
				a.from = "[" + from + "]"
			}
			if is := b.do(a); !strings.HasPrefix(is.text(), "k in ") {
				t.Errorf("%d %s", is.status, is.body)
			}
			if got := b.tools.count(&b.tools.ran, "k"); got != min(i+1, 3) {
				t.Errorf("after request %d, from %s, it ran %d times", i+1, from, got)
			}
		}
	})
}
