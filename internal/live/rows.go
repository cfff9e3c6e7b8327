package live

import (
	"cmp"
	"slices"

	"holdfast/internal/observe"
)

// fold joins the rows that several nodes have for the same call: the state is that of the node that had the
// call last. It does the same for sessions.
func (v *view) fold(nodes map[string]*node) {
	slices.SortFunc(v.Calls, func(a, b callRow) int { return cmp.Or(cmp.Compare(a.Began, b.Began), cmp.Compare(a.UID, b.UID)) })
	last := make(map[string]int, len(v.Calls)) // the row of a key
	gone := make([]bool, len(v.Calls))
	for i := range v.Calls {
		r := &v.Calls[i]
		if before, ok := last[r.Key]; ok && v.Calls[before].goesOnAs(r) {
			was := &v.Calls[before]
			if was.State == "" {
				v.InFlight-- // its node does not know yet that it has lost the call
			}
			r.parts = append(was.parts, r.parts...)
			r.Began, r.Here, r.From = was.Began, cmp.Or(r.Here, r.Began), cmp.Or(r.From, was.Node)
			r.Entries, r.Connections = r.Entries+was.Entries, r.Connections+was.Connections
			if r.Progress == 0 && r.Total == 0 && r.Message == "" { // the later node has got no progress yet
				r.Progress, r.Total, r.Message = was.Progress, was.Total, was.Message
			}
			gone[before] = true
			if n := nodes[was.Node]; n != nil && n.state >= NodeLost {
				n.folded[was.ID] = true
			}
		}
		last[r.Key] = i
	}
	kept := v.Calls[:0]
	for i, r := range v.Calls {
		// A row that was folded before stays away: if the row it was folded into is gone, the call has
		// ended.
		if n := nodes[r.Node]; !gone[i] && (n == nil || !n.folded[r.ID]) {
			kept = append(kept, r)
		}
	}
	v.Calls = kept
	v.foldSessions(nodes)
}

// goesOnAs reports whether a later row with the same key is the same call on another node.
func (r *callRow) goesOnAs(later *callRow) bool {
	if r.Node == later.Node {
		return false
	}
	switch r.State {
	case stateLost, stateSilent, observe.Left.String():
		return true
	case "", observe.Unknown.String(): // a node that was away has told its clients that the outcome is unknown
		return later.Again
	}
	return false
}

// foldSessions leaves one row of each session.
func (v *view) foldSessions(nodes map[string]*node) {
	type key struct{ server, principal, name string }
	slices.SortFunc(v.Sessions, func(a, b sessionRow) int { return cmp.Or(cmp.Compare(a.Began, b.Began), cmp.Compare(a.Node, b.Node)) })
	last := make(map[key]int, len(v.Sessions))
	for i := range v.Sessions {
		s := &v.Sessions[i]
		last[key{s.Server, s.Principal, s.Name}] = i
	}
	kept := v.Sessions[:0]
	for i, s := range v.Sessions {
		if last[key{s.Server, s.Principal, s.Name}] == i {
			kept = append(kept, s)
		} else if n := nodes[s.Node]; n != nil && n.state >= NodeLost {
			delete(n.sessions, s.Name)
		}
	}
	v.Sessions = kept
}

// order sorts calls and sessions, the newest first, and nodes: this node first, then by name.
func (v *view) order() {
	slices.SortFunc(v.Calls, func(a, b callRow) int { return cmp.Or(cmp.Compare(b.Began, a.Began), cmp.Compare(b.UID, a.UID)) })
	slices.SortFunc(v.Sessions, func(a, b sessionRow) int { return cmp.Or(cmp.Compare(b.Began, a.Began), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(v.Nodes, func(a, b nodeView) int {
		if a.Self != b.Self {
			if a.Self {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// bound drops the oldest rows beyond the bounds of a page, and counts the calls in flight that are not
// shown.
func (v *view) bound() {
	running, ended, light := 0, 0, 0
	kept := v.Calls[:0]
	for _, r := range v.Calls {
		n, most := &running, mostInFlight
		switch {
		case r.Ended != 0 && r.Stream == 0:
			n, most = &light, mostLight
		case r.Ended != 0:
			n, most = &ended, mostEnded
		}
		if *n < most {
			*n++
			kept = append(kept, r)
		}
	}
	v.Calls = kept
	v.More = v.InFlight
	for i := range kept {
		if kept[i].State == "" {
			v.More--
		}
	}
	v.More = max(v.More, 0)
	v.Sessions = v.Sessions[:min(len(v.Sessions), mostSessions)]
}

// lifeRow is the life of a call on all nodes that had it.
type lifeRow struct {
	callRow
	Ticks    []tickView `json:"ticks"`
	Hidden   int        `json:"hidden"`
	Bars     []barView  `json:"bars"`
	BarsGone int        `json:"bars_gone"`
	Moves    []move     `json:"moves,omitempty"`
}

// A move is the moment at which a call went on at another node.
type move struct {
	At      int64  `json:"at"`
	From    string `json:"from"`
	To      string `json:"to"`
	First   uint64 `json:"first"`   // the first entry that was appended there; 0: none yet
	Unknown bool   `json:"unknown"` // the life before the move is not known here
}

// whyLost says that a reader was at a node that is lost.
const whyLost = "node_lost"

// choose adds to the view the life of the call that was at a place. l.others.mu is held.
func (v *view) choose(l *Live, at place) {
	i := slices.IndexFunc(v.Calls, func(r callRow) bool { return slices.Contains(r.parts, at) })
	if i < 0 {
		return
	}
	r := &v.Calls[i]
	v.parts = r.parts
	v.Life = &lifeRow{callRow: *r}
	for i, p := range r.parts {
		if life, n := l.lifeAt(p, v.Node); n == nil {
			v.Life.add(life, i, 0, 0)
		} else {
			v.Life.add(life, i, n.skew, n.heard.UnixMilli())
		}
	}
}

// lifeAt returns the known part of a call's life at a place, and the node; a nil node is this one, or is not
// known any more. others.mu is held.
func (l *Live) lifeAt(p place, self string) (*lifeView, *node) {
	if p.node == self {
		return l.life(p.id), nil
	}
	var life *lifeView
	if f := l.others.feeds[p]; f != nil {
		life = f.life
	}
	return life, l.others.nodes[p.node]
}

// add adds the life of a part at its node. heard is when the last news of that node came; 0: the node is
// this one.
func (v *lifeRow) add(life *lifeView, part int, skew, heard int64) {
	moved := part > 0 || v.From != "" && len(v.parts) == 1
	if life == nil {
		if moved {
			v.Moves = append(v.Moves, move{At: cmp.Or(v.Here, v.Began), From: v.before(part), To: v.parts[part].node, Unknown: true})
		}
		return
	}
	if moved {
		v.Moves = append(v.Moves, move{
			At: life.Began + skew, From: v.before(part), To: v.parts[part].node, First: life.First, Unknown: len(v.Ticks)+len(v.Bars) == 0,
		})
	}
	end := heard
	if part < len(v.parts)-1 && (heard == 0 || heard > v.Here) {
		end = v.Here
	}
	over := part < len(v.parts)-1 || v.State == stateLost
	v.Hidden += life.Hidden
	v.BarsGone += life.BarsGone
	for _, t := range life.Ticks {
		shift(skew, &t.At)
		v.Ticks = append(v.Ticks, t)
	}
	for _, b := range life.Bars {
		shift(skew, &b.Came, &b.Went)
		if b.Went == 0 && over {
			b.Went, b.Why = max(end, b.Came), whyLost
		}
		v.Bars = append(v.Bars, b)
	}
}

// before returns the name of the node that had the call before a part.
func (v *lifeRow) before(part int) string {
	if part > 0 {
		return v.parts[part-1].node
	}
	return v.From
}
