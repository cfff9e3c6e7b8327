package live

import (
	"strconv"
	"strings"
	"time"
)

// A view is a message to the page, with all that it shows at a time. Times are in milliseconds since
// 1970, by the clock of the node that serves the page.
type view struct {
	At       int64        `json:"at"`
	Node     string       `json:"node"` // the node that serves the page
	Nodes    []nodeView   `json:"nodes"`
	Actions  bool         `json:"actions"`
	Calls    []callRow    `json:"calls"`     // newest first
	More     int          `json:"more"`      // calls in flight that are not in Calls
	InFlight int          `json:"in_flight"` // on the nodes that answer
	Sessions []sessionRow `json:"sessions"`  // newest first
	Open     int          `json:"open"`      // sessions in all, on the nodes that answer
	Asleep   int          `json:"asleep"`    // how often a session has fallen asleep on these
	Life     *lifeRow     `json:"life,omitempty"`
	Unheard  int          `json:"unheard"` // nodes without counts: they live, and give no details or do not answer
	parts    []place      // the places of the chosen call, the first one first
}

// States of rows and nodes that the node with the page finds out.
const (
	stateSilent  = "node_silent"
	stateLost    = "node_lost"
	stateAsked   = "asked"
	stateOK      = "ok"
	stateEnded   = "ended"
	stateNothing = "no_details"
)

// nodeView is a node.
type nodeView struct {
	Name     string `json:"name"`
	Self     bool   `json:"self,omitempty"`
	Role     string `json:"role,omitempty"`
	State    string `json:"state"`           // "ok", "asked", "node_silent", "node_lost", "ended" or "no_details"
	Why      string `json:"why,omitempty"`   // why there are no details
	Ready    string `json:"ready,omitempty"` // why the node is not ready; "": it is
	Drain    bool   `json:"drain,omitempty"`
	Heard    int64  `json:"heard,omitempty"` // when its last news came; 0: none has
	InFlight int    `json:"in_flight"`
	Open     int    `json:"open"`
}

// callRow is a call, with all its places so far.
type callRow struct {
	callView
	UID   string  `json:"uid"`
	Node  string  `json:"node"`
	Here  int64   `json:"here,omitempty"` // when the call came to the node, if it began at another one
	Heard int64   `json:"heard"`          // when the last news of the node came
	parts []place // the places where the call was, the last one where it is
}

// sessionRow is a session.
type sessionRow struct {
	sessionView
	Node  string `json:"node"`
	State string `json:"state,omitempty"` // "", "node_silent" or "node_lost"
	Heard int64  `json:"heard"`
}

// uid returns the name of a call for the page.
func (p place) uid() string { return p.node + ":" + strconv.FormatUint(p.id, 10) }

// parsePlace parses a name from [place.uid]. A name without a node stands for a call on this node, which
// is self.
func parsePlace(s, self string) (place, bool) {
	i := strings.LastIndexByte(s, ':')
	id, err := strconv.ParseUint(s[i+1:], 10, 64)
	p := place{node: self, id: id}
	if i > 0 {
		p.node = s[:i]
	}
	return p, err == nil && id != 0
}

// view returns a view for the page, with the life of the chosen call, if that is known.
func (l *Live) view(chosen string) view {
	own, from := l.snapshot(), l.from()
	v := view{At: own.At, Actions: l.opts.Token != "", Calls: []callRow{}, Sessions: []sessionRow{}}
	if from.Nodes != nil {
		v.Node, _ = from.Nodes()
	}
	self := nodeView{
		Name: v.Node, Self: true, Role: own.Role, State: stateOK, Ready: own.Ready, Drain: own.Drain && v.Actions,
		Heard: own.At, InFlight: own.InFlight, Open: own.Open,
	}
	v.Nodes = append(v.Nodes, self)
	v.InFlight, v.Open, v.Asleep = own.InFlight, own.Open, own.Asleep
	for i := range own.Calls {
		v.Calls = append(v.Calls, rowOf(&own.Calls[i], v.Node, own.At, stateOK))
	}
	for i := range own.Sessions {
		v.Sessions = append(v.Sessions, sessionRow{sessionView: own.Sessions[i], Node: v.Node, Heard: own.At})
	}
	o := &l.others
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.nodes {
		n.addTo(&v)
	}
	v.fold(o.nodes)
	v.order()
	if at, ok := parsePlace(chosen, v.Node); ok {
		v.choose(l, at)
	}
	v.bound()
	return v
}

// shown returns the state of a node for the page, and why it gives no details.
func (n *node) shown() (state, why string) {
	switch {
	case n.state == NodeLost:
		return stateLost, ""
	case n.state == NodeEnded:
		return stateEnded, ""
	case n.refused != "":
		return stateNothing, n.refused
	case n.heard.IsZero() && n.state == NodeAlive:
		return stateAsked, ""
	case time.Since(n.heard) > silentAfter, n.state == NodeSilent && time.Since(n.heard) > silentAfter/2:
		return stateSilent, ""
	}
	return stateOK, ""
}

// addTo adds a node, its calls and its sessions to a view. others.mu is held.
func (n *node) addTo(v *view) {
	state, why := n.shown()
	one := nodeView{
		Name: n.name, Role: n.last.Role, State: state, Why: why, Ready: n.last.Ready, Drain: n.last.Drain && v.Actions && state == stateOK,
		InFlight: n.last.InFlight, Open: n.last.Open,
	}
	if !n.heard.IsZero() {
		one.Heard = n.heard.UnixMilli()
	}
	switch state {
	case stateOK:
		v.InFlight += n.last.InFlight
		v.Open += n.last.Open
		v.Asleep += n.last.Asleep
	case stateAsked, stateSilent, stateNothing:
		v.Unheard++
	}
	v.Nodes = append(v.Nodes, one)
	if state == stateNothing {
		return
	}
	for _, c := range n.calls {
		shift(n.skew, &c.Began, &c.Ended, &c.HandedOff)
		v.Calls = append(v.Calls, rowOf(&c, n.name, one.Heard, state))
	}
	for _, s := range n.sessions {
		shift(n.skew, &s.Began)
		row := sessionRow{sessionView: s, Node: n.name, Heard: one.Heard}
		switch state {
		case stateSilent:
			row.State = stateSilent
		case stateLost, stateEnded:
			row.State = stateLost
		}
		v.Sessions = append(v.Sessions, row)
	}
}

// shift converts times of another node's clock, unless they are 0.
func shift(by int64, times ...*int64) {
	for _, t := range times {
		if *t != 0 {
			*t += by
		}
	}
}

// rowOf returns the row of a call on a node with a state.
func rowOf(c *callView, node string, heard int64, state string) callRow {
	r := callRow{callView: *c, Node: node, Heard: heard, parts: []place{{node, c.ID}}}
	r.UID = r.parts[0].uid()
	if c.Again {
		r.Here = c.Began
	}
	if c.State != "" {
		return r
	}
	switch state {
	case stateSilent, stateAsked:
		r.State = stateSilent
	case stateLost, stateEnded:
		r.State = stateLost
	}
	return r
}
