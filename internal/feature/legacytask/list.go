package legacytask

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"holdfast/internal/caller"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file has tasks/list: the tasks of a principal on all nodes, in the order of their sessions and, within a session, of their
// beginnings. For a page, each node reads no more than a page of tasks.

// list answers a tasks/list: the tasks of the principal, or, for an anonymous client, the tasks of the session.
func (t *tasks) list(ctx context.Context, s *session.Session, m *jsonrpc.Message) []byte {
	var after place
	if !protocol.IsFirstPage(m.Params) {
		var ok bool
		if after, ok = parsePlace(jsonrpc.String(jsonrpc.Field(m.Params, "cursor"))); !ok {
			return failure(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "the cursor is not valid"))
		}
	}
	var list []*told
	var in session.Range
	sessions := []*session.Session{s}
	if principal := s.Caller(); !principal.IsAnonymous() {
		done, err := t.sessions.ListTurn(ctx, principal, "")
		if err != nil {
			return failure(m.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "%v: try again", err))
		}
		defer done()
		if list, in, err = t.elsewhere(ctx, principal, after); err != nil {
			t.logger.Warn("tasks not listed", "session", s.Name(), "error", err)
			return failure(m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "the tasks on other nodes cannot be listed: try again later"))
		}
		sessions = t.sessions.SessionsOf(principal, in)
	}
	list = append(list, listOf(ctx, sessions, after)...)
	return jsonrpc.AppendResult(nil, m.ID, page(list, string(in.Until)))
}

// elsewhere returns the other nodes' tasks for a page, and the range of sessions that the page
// covers.
func (t *tasks) elsewhere(ctx context.Context, principal caller.Principal, after place) (all []*told, in session.Range, err error) {
	ask := t.sessions.Elsewhere()
	if ask == nil {
		return nil, in, nil
	}
	query, _ := json.Marshal(after)
	from := after.Session[:max(0, len(after.Session)-1)] // that session may have more tasks
	pages, in, err := ask.List(ctx, principal, stream.SessionKey(from), query)
	for _, page := range pages {
		var list []*told
		if err := json.Unmarshal(page, &list); err != nil {
			return nil, in, err
		}
		all = append(all, list...)
	}
	return all, in, err
}

// List answers another node: the tasks of a page, and one more if there are more, of the
// principal's sessions on this node that are in a range.
func (t *tasks) List(ctx context.Context, principal caller.Principal, in session.Range, query []byte) []byte {
	var after place
	_ = json.Unmarshal(query, &after) // on an error it is the first page
	text, _ := json.Marshal(listOf(ctx, t.sessions.SessionsOf(principal, in), after))
	return text
}

// listOf returns the tasks of sessions after a place: at most one more than a page.
func listOf(ctx context.Context, sessions []*session.Session, after place) []*told {
	list := []*told{}
	for _, s := range sessions {
		for _, number := range s.Watched.AllDeferred() {
			if after.compare(place{Session: s.Name(), Number: number}) >= 0 {
				continue
			}
			if len(list) > mostListed {
				return list
			}
			if t, st, err := find(ctx, s, number); err == nil {
				list = append(list, t.text(&st))
			}
		}
	}
	return list
}

// mostListed bounds the tasks of one answer to tasks/list.
const mostListed = 50

// A place is a place in the order of tasks: after a task.
type place struct {
	Session string `json:"session"`
	Number  uint64 `json:"number"`
}

// parsePlace parses a cursor of a client, or the id of a task.
func parsePlace(text string) (p place, ok bool) {
	t, ok := ticket.Parse(text)
	return place{t.Session, t.Number}, ok
}

// compare returns -1 if p is before q, 0 if they are the same, 1 if p is after q.
func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.Session, q.Session), cmp.Compare(p.Number, q.Number))
}

// page returns the result of a tasks/list: the first page of the tasks of several nodes. The list has all tasks of the sessions
// up to until, or, if that is "", of all sessions.
func page(list []*told, until string) []byte {
	slices.SortFunc(list, func(a, b *told) int { return a.place().compare(b.place()) })
	// A session may have moved meanwhile.
	list = slices.CompactFunc(list, func(a, b *told) bool { return a.ID == b.ID })
	result := map[string]any{}
	switch {
	case len(list) > mostListed:
		list = list[:mostListed]
		result["nextCursor"] = list[mostListed-1].ID
	case until != "":
		result["nextCursor"] = ticket.After(until)
	}
	result["tasks"] = append(make([]*told, 0, len(list)), list...) // the JSON is never null
	text, _ := json.Marshal(result)
	return text
}
