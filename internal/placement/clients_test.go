package placement

import (
	"testing"
	"time"
)

// What was lost by a client stays lost, until another one comes from its address. Who has all that was written has not left early.
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
	d.forget("a", &over, true)
	d.leaves("a", &over) // after it has read all
	if got := d.of("a"); got != clientUnknown {
		t.Errorf("one who has read all %s", got)
	}
	d.forget("a", &over, false)
	d.leaves("a", &over)
	if got := d.of("a"); got != clientLeaves {
		t.Errorf("another one at its address %s", got)
	}
	for _, c := range d.all {
		c.at = c.at.Add(-clientsFor - time.Second)
		d.all["a"] = c
	}
	if got := d.of("a"); got != clientUnknown {
		t.Errorf("after its time %s", got)
	}
}

// A client that has sent more has read what it was sent before. One that has left is told of what is written later, too.
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
	n.Wrote(v, &second)
	n.far.left("n", "b")
	n.far.left("m", "a")
	n.far.left("n", "a")
	n.Wrote(v, &third)
	if first || !second || !third {
		t.Errorf("told: %v %v %v", first, second, third)
	}
	n.far.silence("n")
	if !n.far.isSilent("n") || n.far.isSilent("m") || c.Unsettled() || c.HasLeft() {
		t.Error("a node that does not answer is asked")
	}
}

type told bool

func (t *told) Disconnected(string, time.Time) { *t = true }
