package session

import (
	"errors"
	"strings"
	"testing"
)

// Who lost a call's stream to another follower finds it when that has read the end of
// the call, and has ended the session; then the session is gone.
func TestEndWaitsForFollowers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.able("alice")
	c := begin(t, s, false, request(1))
	token := tokenOf(t, c)
	ready := make(chan struct{}, 1)
	follow := func() *Reader {
		r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, second := follow(), follow()
	if !first.Gone() {
		t.Fatal("two read the stream")
	}
	first.Detach(false, true, false)
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{"the":"result"}}`)
	toEnd(t, second, ready)
	second.Detach(false, true, false)
	h.End(s)
	h.End(s) // as the other does, or a client that was not told
	found, number, err := h.Resumable(token, []byte("1"), "alice")
	if err != nil {
		t.Fatalf("after the other has ended the session: %v", err)
	}
	if said := readAll(t, found, number); !strings.Contains(strings.Join(said, "\n"), `"the":"result"`) {
		t.Errorf("%q", said)
	}
	eventually(t, "the session's end", func() bool {
		_, err := h.FindName(s.Name(), "alice")
		return errors.Is(err, ErrNotFound)
	})
}
