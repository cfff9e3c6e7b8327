package placement

import (
	"encoding/json"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/caller"
	"holdfast/internal/limit"
	"holdfast/stream"
)

// A notice is a message from one node to another. It may be lost, unless it is sent again until it was received
// ([Nodes.owe]).
type notice struct {
	// Taken is a session that the sender has taken over.
	Taken stream.SessionKey `json:"taken,omitempty"`

	// Left is a session. Its client, at the address From, left the sender with bytes unread.
	Left      stream.SessionKey `json:"left,omitempty"`
	Principal []byte            `json:"principal,omitempty"`
	From      string            `json:"from,omitempty"`

	// Request is the name of a request that the sender has forwarded. The client has
	// left, so no connection takes the answer of its light call.
	Request string `json:"request,omitempty"`

	// Name is the sender's number for a notice that it sends again until a notice with that number in Got comes from the
	// receiver. It is 0 for notices that are sent once. Node is the sender.
	Name uint64 `json:"name,omitempty"`
	Got  uint64 `json:"got,omitempty"`

	// Stranded are the keys by which a stranded call of Node is found.
	Stranded []byte `json:"stranded,omitempty"`
	// Returned are the keys of a stranded call that Node does not have any more. Node may have been lost.
	Returned []byte `json:"returned,omitempty"`
	Call     uint64 `json:"call,omitempty"` // Node's number for that call
	// Flights are calls that Node has in flight.
	Flights []again.Flight `json:"flights,omitempty"`

	// Limits are Node's counts for limits that hold across all nodes.
	Node   string         `json:"node,omitempty"`
	Limits []limit.Number `json:"limits,omitempty"`
}

// notify sends a notice to a node. An error is only logged.
func (n *Nodes) notify(node string, what *notice) { n.notifyEach([]string{node}, what) }

// notifyAll sends a notice to all other nodes.
func (n *Nodes) notifyAll(what *notice) { n.notifyEach(n.node.Peers(), what) }

func (n *Nodes) notifyEach(nodes []string, what *notice) {
	text, err := json.Marshal(what)
	if err != nil {
		n.opts.Logger.Error("notice not written", "error", err)
		return
	}
	for _, node := range nodes {
		if err := n.node.Notify(node, text); err != nil {
			n.opts.Logger.Debug("notice not sent", "node", node, "error", err)
		}
	}
}

// noticed handles a notice from another node.
func (n *Nodes) noticed(text []byte) {
	var says notice
	if err := json.Unmarshal(text, &says); err != nil {
		n.opts.Logger.Warn("notice of another node not understood", "error", err)
		return
	}
	if says.Got != 0 {
		n.owed.settle(says.Got)
	}
	if says.Name != 0 {
		defer n.notify(says.Node, &notice{Got: says.Name})
	}
	if says.Taken != "" {
		n.sessions.VerifySession(says.Taken)
	}
	if says.Request != "" {
		n.leavers.requestLeft(says.Request)
	}
	if says.Stranded != nil && !n.opts.Door {
		n.sessions.Flights().Hint(says.Node, says.Stranded, says.Call)
	}
	if says.Flights != nil && !n.opts.Door {
		n.sessions.Flights().HintFlights(says.Node, says.Flights)
	}
	if says.Returned != nil {
		n.sessions.Flights().Unhint(says.Node, says.Returned, says.Call)
	}
	if says.Limits != nil && n.opts.Limits != nil {
		n.opts.Limits.Merge(says.Node, says.Limits)
	}
	if says.From == "" {
		return
	}
	n.leavers.note(says.From)
	n.far.left(says.Node, says.From)
	if says.Left == "" {
		return
	}
	if s, err := n.sessions.FindName(string(says.Left), caller.Parse(string(says.Principal))); err == nil {
		s.Streams().Disconnected(says.From, time.Time{})
	}
}

// A leftNotice tells the node that has a session that the session's client has left this
// node with bytes unread. It is a [watch.Source].
type leftNotice struct {
	nodes *Nodes
	node  string
	left  notice
}

func (p *leftNotice) send() {
	p.nodes.departed.loses(p.left.From)
	p.nodes.owe(p.node, &p.left)
}

// Disconnected implements [watch.Source].
func (p *leftNotice) Disconnected(string, time.Time) { p.send() }

func (p *Placement) leftNotice() *leftNotice {
	return &leftNotice{p.nodes, p.node, notice{Left: p.key, Principal: p.req.Visit.Principal, From: p.req.HTTP.RemoteAddr}}
}

// finished notes that the whole answer was written to the client. It may not have arrived:
// if the client leaves, or has left, with bytes unread, the session's node gets a notice.
func (p *Placement) finished() {
	below := p.req.Conn
	if below == nil {
		return
	}
	gone := below.Gone()
	read := gone && below.HasRead() && (p.out == nil || !p.out.ends) // if ends, net/http has the last event's end still to send
	p.nodes.departed.served(p.req.HTTP.RemoteAddr, &p.written, read)
	switch {
	case read:
	case gone:
		p.leftNotice().send()
	default:
		below.Wrote(p.leftNotice())
	}
}
