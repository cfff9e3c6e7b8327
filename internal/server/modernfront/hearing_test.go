package modernfront

import "testing"

// A stream that only we hear has begun once something is said in it: else its response would be one without a stream, which nobody hears.
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
