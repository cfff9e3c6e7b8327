package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/panics"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// mostLeft bounds how many sessions without an owner are taken over for one
// answer, and leftAtOnce how many of them at a time.
const (
	mostLeft   = 64
	leftAtOnce = 8
)

// An Inquiry is a request to each other node that has sessions of a principal, which that node
// answers for its own sessions alone.
type Inquiry struct {
	Principal caller.Principal
	After     stream.SessionKey // only sessions after this one
	// Ask prepares a placement of the request, with to as its response. It may be called concurrently.
	Ask func(to *Answer) *Placement
	// Known says that nodes of older builds know the request's method. If not, they may refuse it.
	Known bool
}

// Everywhere makes an inquiry. It returns the other nodes' results, and the range of
// sessions that they cover: it begins after q.After, and ends early where this node has
// taken over mostLeft sessions without an owner. The caller then asks this node for the
// sessions in that range, and makes another inquiry for those after it.
func (n *Nodes) Everywhere(ctx context.Context, q *Inquiry) ([]json.RawMessage, session.Range, error) {
	ctx, stop := context.WithTimeout(ctx, reachFor)
	defer stop()
	gone := func(name string) bool { return n.node.Gone(ctx, name) }
	for {
		at, err := n.sessions.Finder.LocateAll(ctx, q.Principal, q.After, gone, mostLeft)
		if err != nil {
			return nil, at.Range, err
		}
		settled, err := n.takeLeft(ctx, at.Orphans)
		var all []json.RawMessage
		if err == nil && settled {
			all, settled, err = n.askHomes(ctx, q, &at)
		}
		if err != nil || settled {
			return all, at.Range, err
		}
		select { // other nodes have taken sessions over, or a node was lost: the sessions are located again
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, at.Range, ErrUnreached
		}
	}
}

// takeLeft takes over sessions without an owner. settled is false where another node
// was faster, or workers must do it: then the sessions are located again.
func (n *Nodes) takeLeft(ctx context.Context, left []*whereabouts.Record) (settled bool, err error) {
	switch {
	case len(left) == 0:
		return true, nil
	case n.isDraining():
		return false, session.ErrClosing
	case n.opts.Door:
		return false, nil // workers take them over soon
	}
	var mu sync.Mutex
	settled = true
	var work sync.WaitGroup
	places := make(chan struct{}, leftAtOnce)
	for _, at := range left {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			_, fail := n.takeOver(ctx, &session.Remote{Record: *at})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fail == nil, errors.Is(fail, session.ErrNotFound):
			case errors.Is(fail, stream.ErrConflict):
				settled = false
			default:
				err = fail
			}
		})
	}
	work.Wait()
	return settled, err
}

// askHomes makes the inquiry on the nodes at.Owners. settled is false if one of
// them was lost meanwhile.
func (n *Nodes) askHomes(ctx context.Context, q *Inquiry, at *whereabouts.Locations) (all []json.RawMessage, settled bool, err error) {
	var mu sync.Mutex
	settled = true
	var work sync.WaitGroup
	for _, home := range at.Owners {
		work.Go(func() {
			result, gone, fail := n.askHome(ctx, home, q, &at.Range)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fail != nil && gone:
				settled = false
			case fail != nil:
				err = fmt.Errorf("%w: %w", ErrUnreached, fail)
			case result != nil:
				all = append(all, result)
			}
		})
	}
	work.Wait()
	return all, settled, err
}

// askHome makes the inquiry on the node home. The result is nil if that node does not know
// the method. gone says that it is lost.
func (n *Nodes) askHome(ctx context.Context, home string, q *Inquiry, in *session.Range) (result json.RawMessage, gone bool, err error) {
	defer panics.Catch(&err, n.opts.Logger, "a request to another node", "")
	got := &Answer{}
	p := q.Ask(got)
	p.AskLocally(in)
	if err := p.forward(ctx, home, nil, false); err != nil {
		return nil, p.gone != "", err
	}
	text, err := got.Body()
	var refused *jsonrpc.Error
	if errors.As(err, &refused) && refused.Code == jsonrpc.CodeInvalidRequest && !q.Known {
		n.opts.Logger.Debug("a node of an older build was not asked", "node", home, "error", refused)
		return nil, false, nil
	}
	if err != nil {
		return nil, p.gone != "", err
	}
	return jsonrpc.Field(text, "result"), false, nil
}
