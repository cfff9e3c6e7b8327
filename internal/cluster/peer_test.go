package cluster

import "testing"

// Each sign has, in each state, the result in the table of peerState.
func TestPeerStates(t *testing.T) {
	t.Parallel()
	signs := []sign{signMessage, signSilence, signNoName, signNoAnswer, signFarewell, signAwake}
	for from, want := range map[peerState][6]peerState{
		unknown:   {alive, unknown, gone, gone, left, unknown},
		alive:     {alive, suspected, suspected, gone, left, alive},
		suspected: {alive, suspected, suspected, gone, left, alive},
		gone:      {alive, gone, gone, gone, left, suspected},
		left:      {left, left, left, left, left, left},
	} {
		for i, g := range signs {
			p := &peer{asked: 1, nameless: 1}
			p.state.Store(int32(from))
			was, is := p.take(g)
			if was != from || is != want[i] || p.is() != want[i] {
				t.Errorf("%v, sign %d: %v, want %v", from, g, is, want[i])
			}
			if is == alive && (p.asked != 0 || p.nameless != 0) {
				t.Errorf("%v, sign %d: a peer that lives is asked", from, g)
			}
		}
	}
}

// A node's messages and its clock lead to each of the states.
func TestPeerSigns(t *testing.T) {
	t.Parallel()
	n, d := alone(t)
	want := func(name string, s peerState) {
		t.Helper()
		p := n.use(name)
		defer n.release(p)
		if p.is() != s {
			t.Errorf("%s is %v, want %v", name, p.is(), s)
		}
	}
	want("a", unknown)
	n.hears(from("a", kindBeat).bytes(0))
	want("a", alive)
	(*receiver)(n).Gone("a")
	want("a", suspected)
	n.hears(from("a", kindPong))
	want("a", alive)
	p := n.use("a")
	defer n.release(p)
	c := clock{node: n, due: n.now()}
	p.seen.Store(int64(n.now() - n.o.late(false)))
	c.ask()
	want("a", suspected)
	d.expect(t, kindPing)
	n.wake(0)
	want("a", alive)
	n.lose(p, signNoAnswer, "does not answer")
	want("a", gone)
	n.wake(0)
	want("a", suspected) // the peer may have come back meanwhile
	n.hears(from("a", kindBeat).bytes(0))
	want("a", alive)
	n.hears(from("a", kindBye))
	want("a", left)
	n.hears(from("a", kindBeat).bytes(0))
	want("a", left)
	want("b", unknown)
	(*receiver)(n).Gone("b")
	want("b", gone)
}
