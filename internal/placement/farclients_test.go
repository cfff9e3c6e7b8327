package placement

import (
	"strconv"
	"testing"
	"time"
)

// A client that has lost a message counts as one until another client comes from its address. A client that has read all that was
// written does not count as one that left early.
func TestDeparted(t *testing.T) {
	t.Parallel()
	var d departed
	over := false
	d.leaves("a", &over)
	if got := d.of("a"); got != clientLeaves {
		t.Errorf("one who has left %s", got)
	}
	d.loses("a")
	d.leaves("a", &over)
	if got := d.of("a"); got != clientLost {
		t.Errorf("one who has lost something %s", got)
	}
	d.served("a", &over, false)
	d.leaves("a", &over) // after the client has read all
	if got := d.of("a"); got != clientUnknown {
		t.Errorf("one who has read all %s", got)
	}
	d.returns("a", &over)
	d.leaves("a", &over)
	if got := d.of("a"); got != clientLeaves {
		t.Errorf("another one at its address %s", got)
	}
	d.served("a", &over, true)
	d.leaves("a", &over)
	if got := d.of("a"); got != clientServed {
		t.Errorf("one who has left with all %s", got)
	}
	for i := range mostDeparted + 10 {
		d.loses(strconv.Itoa(i))
	}
	if len(d.all) > mostDeparted || d.of("9") != clientUnknown || d.of("20") != clientLost {
		t.Errorf("%d are remembered", len(d.all))
	}
	d.returns("a", &over)
	d.leaves("a", &over)
	c := d.all["a"]
	c.at = c.at.Add(-clientsFor - time.Second)
	d.all["a"] = c
	if got := d.of("a"); got != clientUnknown {
		t.Errorf("after its time %s", got)
	}
}

// A client that sends another request has read the earlier answers. For a client that has left, later answers are reported too.
func TestFarClients(t *testing.T) {
	t.Parallel()
	n := &Nodes{}
	v := &Visit{Node: "n", From: "a"}
	var first, second, third told
	c := n.ClientOf(v)
	c.Wrote(&first)
	if n.ClientOf(v) != c {
		t.Error("a client is two")
	}
	c.Wrote(&second)
	n.far.left("n", "b")
	n.far.left("m", "a")
	n.far.left("n", "a")
	c.Wrote(&third)
	if first || !second || !third {
		t.Errorf("told: %v %v %v", first, second, third)
	}
	n.far.silence("n")
	if !n.far.isSilent("n") || n.far.isSilent("m") || c.HasLeft() {
		t.Error("a node that does not answer is asked")
	}
}

type told bool

func (t *told) Disconnected(string, time.Time) { *t = true }

// A client that has left is not forgotten before the others because an earlier client of its address left long ago.
func TestDepartedAgain(t *testing.T) {
	t.Parallel()
	var d departed
	var written bool
	d.loses("a")
	d.returns("a", &written)
	d.loses("a")
	for i := range mostDeparted - 1 {
		d.loses(strconv.Itoa(i))
	}
	if got := d.of("a"); got != clientLost {
		t.Errorf("the client counts as %s", got)
	}
	d.loses("one more")
	if got := d.of("a"); got != clientUnknown {
		t.Errorf("the oldest of %d clients counts as %s", mostDeparted+1, got)
	}
	if len(d.all) != mostDeparted || len(d.order) != mostDeparted {
		t.Errorf("%d clients, %d in order", len(d.all), len(d.order))
	}
}
