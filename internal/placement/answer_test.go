package placement

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
)

// heard is a [Sink] that keeps its calls as text.
type heard struct {
	text string
	err  error
}

func (h *heard) Open(head http.Header) { h.text += fmt.Sprintln("open", head) }

func (h *heard) Append(text, id, data []byte) []byte {
	return fmt.Appendf(text, "%q %q\n", id, data)
}

func (h *heard) Write(text []byte) error {
	h.text += string(text) + "."
	return h.err
}

// The text of another node reaches the sink as events, in one write. A comment becomes an empty write, as a sign of life.
func TestTell(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		": keep-alive\n\n":                         ".",
		"id: a\nretry: 5\ndata: \n\n":              "\"a\" \"\"\n.",
		"event: message\nid: b\ndata: {}\n\n":      "\"b\" \"{}\"\n.",
		"event: message\ndata: {}\n\nid: c\n\n":    "\"\" \"{}\"\n\"c\" \"\"\n.",
		"data: 1\n\n: keep-alive\n\ndata: 2\n\n":   "\"\" \"1\"\n\"\" \"2\"\n.",
		"event: endpoint\nid: d\ndata: /m?s=1\n\n": "\"d\" \"/m?s=1\"\n.",
	} {
		h := heard{err: errors.New("the client has left")}
		if err := tell(&h, []byte(text)); !errors.Is(err, h.err) || h.text != want {
			t.Errorf("%q: %q, %v; want %q", text, h.text, err, want)
		}
	}
}

// AppendEvent appends text for an HTTP client, and calls Append of a sink.
func TestAppendEvent(t *testing.T) {
	t.Parallel()
	id, data := []byte("a"), []byte("{}")
	for name, test := range map[string]struct {
		to   *Answer
		want string
	}{
		"text": {&Answer{}, "event: message\nid: a\ndata: {}\n\n"},
		"sink": {&Answer{Events: &heard{}}, "\"a\" \"{}\"\n"},
	} {
		if got := AppendEvent(test.to, nil, id, data); string(got) != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
