package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"holdfast/internal/caller"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is tasks/list of revision 2025-11-25: the tasks of a principal on all nodes, in
// the order of their sessions and, within a session, of their beginnings. A page costs each
// node no more than a page.

// mostListed bounds the tasks of one answer to tasks/list.
const mostListed = 50

// A taskPlace is a place in that order: after a task.
type taskPlace struct {
	Session stream.SessionKey `json:"session"`
	Number  uint64            `json:"number"`
}

// parseTaskPlace parses a cursor of a client, or the id of a task.
func parseTaskPlace(text string) (p taskPlace, ok bool) {
	t, ok := ticket.Parse(text)
	return taskPlace{stream.SessionKey(t.Session), t.Number}, ok
}

func (p taskPlace) compare(q taskPlace) int {
	return cmp.Or(cmp.Compare(p.Session, q.Session), cmp.Compare(p.Number, q.Number))
}

// listTasks answers a tasks/list: the tasks of the principal, or, for nobody in particular,
// those of the session.
func (s *Session) listTasks(ctx context.Context, m *jsonrpc.Message) []byte {
	var after taskPlace
	if raw := jsonrpc.Field(m.Params, "cursor"); raw != nil {
		var ok bool
		if after, ok = parseTaskPlace(jsonrpc.String(raw)); !ok {
			return taskFailure(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "the cursor is not valid"))
		}
	}
	var list []*legacyTaskText
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
		list = append(list, tasksOf(ctx, s.m.taskSessions(s.principal, in), after)...)
	}
	slices.SortFunc(list, func(a, b *legacyTaskText) int { return a.place().compare(b.place()) })
	// A session may have moved meanwhile.
	list = slices.CompactFunc(list, func(a, b *legacyTaskText) bool { return a.ID == b.ID })
	result := map[string]any{}
	switch {
	case len(list) > mostListed:
		list = list[:mostListed]
		result["nextCursor"] = list[mostListed-1].ID
	case in.Until != "":
		result["nextCursor"] = ticket.After(string(in.Until))
	}
	result["tasks"] = append(make([]*legacyTaskText, 0, len(list)), list...) // never null
	text, _ := json.Marshal(result)
	return jsonrpc.AppendResult(nil, m.ID, text)
}

func (t *legacyTaskText) place() taskPlace {
	p, _ := parseTaskPlace(t.ID)
	return p
}

// tasksElsewhere returns what other nodes know of a page of tasks, and of which sessions that
// is.
func (m *Manager) tasksElsewhere(ctx context.Context, principal caller.Principal, after taskPlace) (all []*legacyTaskText, in Range, err error) {
	if m.elsewhere == nil {
		return nil, in, nil
	}
	query, _ := json.Marshal(after)
	from := after.Session
	if from != "" {
		from = from[:len(from)-1] // that session is to be asked for its other tasks
	}
	pages, in, err := m.elsewhere.Tasks(ctx, principal, from, query)
	for _, page := range pages {
		var list []*legacyTaskText
		if err := json.Unmarshal(page, &list); err != nil {
			return nil, in, err
		}
		all = append(all, list...)
	}
	return all, in, err
}

// TasksHere returns what another node has asked for: the tasks of a page, and one more if there
// are more, in the principal's sessions on this node that are in a range.
func (m *Manager) TasksHere(ctx context.Context, principal caller.Principal, in Range, query []byte) []byte {
	var after taskPlace
	_ = json.Unmarshal(query, &after) // else it is the first page
	text, _ := json.Marshal(tasksOf(ctx, m.taskSessions(principal, in), after))
	return text
}

// tasksOf returns the tasks of sessions after a place: one more than a page at most.
func tasksOf(ctx context.Context, sessions []*Session, after taskPlace) []*legacyTaskText {
	list := []*legacyTaskText{}
	for _, s := range sessions {
		for _, number := range s.legacyTaskNumbers() {
			if after.compare(taskPlace{s.key, number}) >= 0 {
				continue
			}
			if len(list) > mostListed {
				return list
			}
			created, st, err := s.legacyTaskState(ctx, number)
			if err == nil {
				list = append(list, s.notifyLegacyTask(number, created, &st))
			}
		}
	}
	return list
}

// taskSessions returns the sessions of a named principal on this node that may have tasks.
func (m *Manager) taskSessions(principal caller.Principal, in Range) (all []*Session) {
	m.mu.RLock()
	for s := range m.resumers[principal] {
		if s.modern == "" && in.has(s.key) {
			all = append(all, s)
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Session) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	return all
}

// legacyTaskNumbers returns the numbers of the session's tasks, oldest first.
func (s *Session) legacyTaskNumbers() []uint64 {
	all := s.tasks.Load()
	if all == nil {
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	var numbers []uint64
	for number, t := range all.all {
		if !t.created.IsZero() {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}
