package idempotency

import (
	"encoding/json"
	"testing"
)

// The note of a call has the same bytes in each build, and decodes to the same values.
func TestNote(t *testing.T) {
	t.Parallel()
	const id, of = `"5BWYXktGS9PSM3mUVrUGGJjfKIZE/3jCo9bEUD+/0X0="`, `"Iw2DWNyOiJC0xY3utikS7g=="`
	named := Key(OfPrincipal("alice"), "k", sum, ID{})
	guest := Key(OfTenant("", "t"), "k", sum, TwinID(OfTenant("", "t"), "k", sum))
	for _, r := range []*Record{nil, named, guest, Forward("s", "n", sum)} {
		note := r.AppendNote([]byte(`{"safe":true`))
		var n Note
		if err := json.Unmarshal(append(note, '}'), &n); err != nil {
			t.Fatal(err)
		}
		was := n.Record()
		if r == nil {
			if was != nil {
				t.Errorf("%s is the note of a key", note)
			}
			continue
		}
		if was == nil || *was != *r {
			t.Errorf("%s is read as %+v, not %+v", note, was, r)
		}
	}
	if got, want := string(named.AppendNote(nil)), `,"key":`+id+`,"sum":`+of; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
