package modernfront

import "testing"

// A hearing sink passes each message to its function. Append returns text for a message, so that the stream counts as begun, and none for
// an event id alone.
func TestHearing(t *testing.T) {
	t.Parallel()
	var heard []string
	sink := hearing(func(message []byte) { heard = append(heard, string(message)) })
	if text := sink.Append(nil, []byte("id"), nil); len(text) > 0 {
		t.Errorf("an id alone is %q", text)
	}
	if text := sink.Append(nil, nil, []byte(`{}`)); len(text) == 0 {
		t.Error("a message is nothing")
	}
	if len(heard) != 1 || heard[0] != `{}` {
		t.Errorf("heard %q", heard)
	}
}
