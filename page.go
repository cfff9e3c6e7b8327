package holdfast

import (
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/cluster"
	"holdfast/internal/live"
	"holdfast/internal/session"
)

// startPage serves the live page, if Options.Page is set. The handler's sessions and node must exist by then.
func (h *Handler) startPage(o *Options) {
	if h.page == nil {
		return
	}
	source := live.Source{Ready: h.Ready, Role: string(o.Role)}
	if node := h.node; node != nil {
		source.Nodes = func() (string, []live.Node) { return node.Name(), nodesOf(node.Members()) }
		source.Ask = h.server.AskPage
	}
	find := func(name, server, principal string) (*session.Session, error) {
		return h.sessions.FindName(name, caller.At(server, principal))
	}
	source.Actions = live.Actions{
		Cancel: func(name, server, principal, id string) error {
			s, err := find(name, server, principal)
			if err == nil && !s.CancelByOperator(id) {
				err = session.ErrNotFound
			}
			return err
		},
		Cut: func(name, server, principal string, number uint64) error {
			s, err := find(name, server, principal)
			if err != nil {
				return err
			}
			c := s.CallAt(number)
			if c == nil {
				return session.ErrNotFound
			}
			c.Disconnect(-1)
			return nil
		},
		End: func(name, server, principal string) error {
			s, err := find(name, server, principal)
			if err == nil {
				h.sessions.EndByOperator(s)
			}
			return err
		},
		Drain: o.PageDrain,
	}
	h.page.Register(o.Page, source)
}

// pagePeers returns the handler that answers the live pages of other nodes, or nil.
func (h *Handler) pagePeers() http.Handler {
	if h.page == nil {
		return nil
	}
	return h.page.Peers()
}

// nodesOf returns nodes as the page has them.
func nodesOf(members []cluster.Member) []live.Node {
	all := make([]live.Node, len(members))
	for i, m := range members {
		all[i] = live.Node{Name: m.Name}
		switch {
		case m.Left:
			all[i].State = live.NodeEnded
		case m.Gone:
			all[i].State = live.NodeLost
		case m.Suspected:
			all[i].State = live.NodeSilent
		}
	}
	return all
}
