package tasktext

import (
	"cmp"
	"encoding/json"
	"slices"

	"holdfast/internal/ticket"
)

// What follows is the order of tasks/list of revision 2025-11-25: that of their sessions and, within a session, of their
// beginnings.

// MostListed bounds the tasks of one answer to tasks/list.
const MostListed = 50

// A Place is a place in that order: after a task.
type Place struct {
	Session string `json:"session"`
	Number  uint64 `json:"number"`
}

// ParsePlace parses a cursor of a client, or the id of a task.
func ParsePlace(text string) (p Place, ok bool) {
	t, ok := ticket.Parse(text)
	return Place{t.Session, t.Number}, ok
}

// Compare returns -1 if p is before q, 0 if they are the same, 1 if p is after q.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Session, q.Session), cmp.Compare(p.Number, q.Number))
}

// Page returns the result of a tasks/list from the tasks of several nodes: the first page of them. They are all there are up to
// a session, or, if that is "", in all.
func Page(list []*Legacy, until string) []byte {
	slices.SortFunc(list, func(a, b *Legacy) int { return a.Place().Compare(b.Place()) })
	// A session may have moved meanwhile.
	list = slices.CompactFunc(list, func(a, b *Legacy) bool { return a.ID == b.ID })
	result := map[string]any{}
	switch {
	case len(list) > MostListed:
		list = list[:MostListed]
		result["nextCursor"] = list[MostListed-1].ID
	case until != "":
		result["nextCursor"] = ticket.After(until)
	}
	result["tasks"] = append(make([]*Legacy, 0, len(list)), list...) // never null
	text, _ := json.Marshal(result)
	return text
}
