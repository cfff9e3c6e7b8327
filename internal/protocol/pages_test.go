package protocol

import (
	"fmt"
	"strings"
	"testing"
)

// The pages of a list are followed to the end, whatever the cursors look like, and a circle is an error.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pages   []string // from the first; the last one repeats
		cursors string   // the cursors that were followed
		again   bool
		failed  string
	}{
		"one page":                {pages: []string{`{}`}},
		"null":                    {pages: []string{`{"nextCursor":null}`}},
		"text":                    {pages: []string{`{"nextCursor":"a"}`, `{"nextCursor":"b"}`, `{}`}, cursors: `"a" "b"`},
		"numbers":                 {pages: []string{`{"nextCursor":0}`, `{"nextCursor":2.50}`, `{}`}, cursors: `0 2.50`},
		"an empty one":            {pages: []string{`{"x":1,"nextCursor":""}`, `{"x":2}`}, cursors: `""`},
		"the first page again":    {pages: []string{`{"nextCursor":""}`}, cursors: `""`, again: true},
		"one that stands":         {pages: []string{`{"nextCursor":"a"}`}, cursors: `"a"`, failed: `the cursor "a" of page 2 comes again`},
		"a circle":                {pages: []string{`{"nextCursor":"a"}`, `{"nextCursor":"b"}`, `{"nextCursor":"a"}`}, cursors: `"a" "b"`, failed: `the cursor "a" of page 3 comes again`},
		"an empty one, in circle": {pages: []string{`{"x":1,"nextCursor":""}`, `{"x":2,"nextCursor":""}`}, cursors: `""`, failed: `the cursor "" of page 2 comes again`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var followed []string
			pages := NewPages(10)
			for i := 0; ; i++ {
				cursor, again, err := pages.Next([]byte(test.pages[min(i, len(test.pages)-1)]))
				if cursor != nil {
					followed = append(followed, string(cursor))
					continue
				}
				if again != test.again || (err != nil) != (test.failed != "") || !strings.Contains(fmt.Sprint(err), test.failed) {
					t.Errorf("it ends with %v, %v", again, err)
				}
				break
			}
			if got := strings.Join(followed, " "); got != test.cursors {
				t.Errorf("followed %s", got)
			}
		})
	}
	pages := NewPages(10)
	for i := range 10 {
		if cursor, _, err := pages.Next(fmt.Appendf(nil, `{"nextCursor":%d}`, i)); (err != nil) != (i == 9) || (cursor == nil) != (i == 9) {
			t.Errorf("after page %d: %s, %v", i+1, cursor, err)
		}
	}
}
