package merge

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A place is the position of a client in a server's list. It is a part of cursors, so it is short however long the list is.
type place struct {
	Cursor json.RawMessage `json:"c"`           // as the server spelled it
	Mark   json.RawMessage `json:"m,omitempty"` // a cursor of before, by which a circle is found (R. P. Brent, 1980)
	Count  int             `json:"n"`           // of the pages that came
	First  string          `json:"f,omitempty"` // a hash of the first page, where the cursor is empty
}

// mostPages bounds how many pages a list may have.
const mostPages = 10_000

// errFirstPage says that a page is the first one again: its server means by an empty cursor that there are no more pages.
var errFirstPage = errors.New("the first page comes again")

// next returns the place after a page that was asked for at p; more is false if the page is the last one.
func (p place) next(page []byte) (after place, more bool, err error) {
	if p.First != "" && p.First == hashOf(page) {
		return after, false, errFirstPage
	}
	after.Cursor, after.Mark, after.Count = protocol.NextCursor(page), p.Mark, p.Count+1
	switch {
	case after.Cursor == nil:
		return after, false, nil
	case string(after.Cursor) == string(p.Cursor), string(after.Cursor) == string(p.Mark):
		return after, false, fmt.Errorf("the list has no end: the cursor %.60s of page %d comes again", after.Cursor, after.Count)
	case after.Count >= mostPages:
		return after, false, fmt.Errorf("the list has no end: there is another page after %d", after.Count)
	}
	if after.Count&(after.Count-1) == 0 {
		after.Mark = after.Cursor
	}
	if p.Count == 0 && string(after.Cursor) == `""` {
		after.First = hashOf(page)
	}
	return after, true, nil
}

// hashOf returns a short hash of a page.
func hashOf(page []byte) string {
	sum := sha256.Sum256(page)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// parseCursor returns the places that a client's cursor has.
func parseCursor(raw []byte) (cursors map[string]place, ok bool) {
	text, err := base64.RawURLEncoding.DecodeString(jsonrpc.String(raw))
	if err != nil || json.Unmarshal(text, &cursors) != nil || cursors == nil {
		return nil, false
	}
	for _, at := range cursors {
		if len(at.Cursor) == 0 {
			return nil, false
		}
	}
	return cursors, true
}

func cursorOf(next map[string]place) string {
	text, _ := json.Marshal(next) // the cursors are JSON already
	return base64.RawURLEncoding.EncodeToString(text)
}
