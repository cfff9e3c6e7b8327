package session

import (
	"context"
	"encoding/json"
	"slices"

	"holdfast/internal/caller"
	"holdfast/internal/feature/tasktext"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is tasks/list of revision 2025-11-25: the tasks of a principal on all nodes, in
// the order of their sessions and, within a session, of their beginnings. A page costs each
// node no more than a page.

// list answers a tasks/list: the tasks of the principal, or, for an anonymous one, those of the session.
func (l legacyTasks) list(ctx context.Context, m *jsonrpc.Message) []byte {
	s := l.s
	var after tasktext.Place
	if raw := jsonrpc.Field(m.Params, "cursor"); raw != nil {
		var ok bool
		if after, ok = tasktext.ParsePlace(jsonrpc.String(raw)); !ok {
			return taskFailure(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "the cursor is not valid"))
		}
	}
	var list []*tasktext.Legacy
	var in Range
	if s.principal.IsAnonymous() {
		list = tasksOf(ctx, []*Session{s}, after)
	} else {
		done, err := s.m.lists.await(ctx, s.tenant.name)
		if err != nil {
			return taskFailure(m.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "%v: try again", err))
		}
		defer done()
		if list, in, err = s.m.tasksElsewhere(ctx, s.principal, after); err != nil {
			s.m.logger.Warn("tasks not listed", "session", s.Name(), "error", err)
			return taskFailure(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "the tasks on other nodes cannot be listed: try again later"))
		}
		list = append(list, tasksOf(ctx, s.m.listed(s.principal, in), after)...)
	}
	return jsonrpc.AppendResult(nil, m.ID, tasktext.Page(list, string(in.Until)))
}

// tasksElsewhere returns what other nodes know of a page of tasks, and of which sessions that
// is.
func (m *Manager) tasksElsewhere(ctx context.Context, principal caller.Principal, after tasktext.Place) (all []*tasktext.Legacy, in Range, err error) {
	if m.elsewhere == nil {
		return nil, in, nil
	}
	query, _ := json.Marshal(after)
	from := after.Session[:max(0, len(after.Session)-1)] // that session is to be asked for its other tasks
	pages, in, err := m.elsewhere.List(ctx, principal, stream.SessionKey(from), query)
	for _, page := range pages {
		var list []*tasktext.Legacy
		if err := json.Unmarshal(page, &list); err != nil {
			return nil, in, err
		}
		all = append(all, list...)
	}
	return all, in, err
}

// ListHere returns what another node has asked for: the tasks of a page, and one more if there
// are more, in the principal's sessions on this node that are in a range.
func (m *Manager) ListHere(ctx context.Context, principal caller.Principal, in Range, query []byte) []byte {
	var after tasktext.Place
	_ = json.Unmarshal(query, &after) // else it is the first page
	text, _ := json.Marshal(tasksOf(ctx, m.listed(principal, in), after))
	return text
}

// tasksOf returns the tasks of sessions after a place: one more than a page at most.
func tasksOf(ctx context.Context, sessions []*Session, after tasktext.Place) []*tasktext.Legacy {
	list := []*tasktext.Legacy{}
	for _, s := range sessions {
		tasks := legacyTasks{s}
		for _, number := range tasks.numbers() {
			if s.modern != "" || after.Compare(tasktext.Place{Session: string(s.key), Number: number}) >= 0 {
				continue
			}
			if len(list) > tasktext.MostListed {
				return list
			}
			if t, st, err := tasks.state(ctx, number); err == nil {
				list = append(list, tasks.text(number, t.created, &st))
			}
		}
	}
	return list
}

// numbers returns those of the session's tasks, oldest first.
func (l legacyTasks) numbers() []uint64 {
	all := l.s.watched.Load()
	if all == nil {
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	var numbers []uint64
	for number, w := range all.all {
		if w.deferred != nil {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}
