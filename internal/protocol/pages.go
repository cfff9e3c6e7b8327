package protocol

import (
	"crypto/sha256"
	"fmt"

	"holdfast/jsonrpc"
)

// NextCursor returns the cursor of the page after a page of a list, as the server spelled it; nil after the last
// page. An empty string is a cursor (2026-07-28, Pagination), and a number is taken for one.
func NextCursor(page []byte) []byte {
	switch c := jsonrpc.Field(page, "nextCursor"); string(c) {
	case "", "null", "false":
		return nil
	default:
		return c
	}
}

// Pages follows a list from one page to the next.
type Pages struct {
	most  int
	count int
	first [sha256.Size]byte // of the first page
	sent  map[string]bool   // the cursors that were followed
	last  string            // the newest of those cursors
}

// NewPages returns a Pages that follows a list for at most so many pages.
func NewPages(most int) *Pages { return &Pages{most: most, sent: make(map[string]bool)} }

// Next takes a page, and returns the cursor of the next page; nil after the last. again reports that the page is the
// first page once more: many servers mean by an empty cursor that there is no other page. An error says that the list
// has no end.
func (p *Pages) Next(page []byte) (cursor []byte, again bool, err error) {
	sum := sha256.Sum256(page)
	switch p.count++; {
	case p.count == 1:
		p.first = sum
	case p.last == `""` && sum == p.first:
		return nil, true, nil
	}
	cursor = NextCursor(page)
	switch {
	case cursor == nil:
		return nil, false, nil
	case p.sent[string(cursor)]:
		return nil, false, fmt.Errorf("the list has no end: the cursor %.60s of page %d comes again", cursor, p.count)
	case p.count >= p.most:
		return nil, false, fmt.Errorf("the list has no end: there is another page after %d", p.count)
	}
	p.last = string(cursor)
	p.sent[p.last] = true
	return cursor, false, nil
}

// IsFirstPage reports whether the params of a list request ask for the first page of a list of ours: some clients send a cursor that is null,
// or an empty text. Of servers, an empty text is a cursor.
func IsFirstPage(params []byte) bool {
	switch string(jsonrpc.Field(params, "cursor")) {
	case "", "null", `""`:
		return true
	}
	return false
}
