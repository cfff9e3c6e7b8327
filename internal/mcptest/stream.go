package mcptest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/sse"
)

// mostEvent bounds an event, in bytes.
const mostEvent = 1 << 20

// A Stream is an answer that is a stream of events. Only Close may be called concurrently with other methods.
type Stream struct {
	Header http.Header // of the answer
	LastID string      // of the last event read that has an id

	body   io.Closer
	events *sse.Reader
}

// NewStream returns the stream of an answer. An answer that is not a stream is an error.
func NewStream(resp *http.Response) (*Stream, error) {
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		r, _ := Read(resp, nil)
		return nil, fmt.Errorf("no stream: %d %s", r.Status, r.Body)
	}
	return &Stream{Header: resp.Header, body: resp.Body, events: sse.NewReader(resp.Body, mostEvent)}, nil
}

// Stream sends a request, and returns the stream that answers it. The end of the test closes the stream.
func (c *Client) Stream(t testing.TB, method, body string, header ...string) *Stream {
	t.Helper()
	resp := c.Open(t, method, body, header...) //nolint:bodyclose // Open sees to it
	s, err := NewStream(resp)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Next returns the next event, and io.EOF at the end of the stream.
func (s *Stream) Next() (sse.Event, error) {
	ev, err := s.events.Next()
	if err == nil && ev.ID != "" {
		s.LastID = ev.ID
	}
	return ev, err
}

// Until reads events until one has a text in its data, and returns that event.
func (s *Stream) Until(t testing.TB, text string) sse.Event {
	t.Helper()
	for {
		ev, err := s.Next()
		if err != nil {
			t.Fatalf("no event with %q: %v", text, err)
		}
		if strings.Contains(string(ev.Data), text) {
			return ev
		}
	}
}

// Close closes the answer, as a client that leaves does.
func (s *Stream) Close() { _ = s.body.Close() }

// Hear calls hear with each message of an answer: with the data of each event, or with the body if the answer is not a stream.
// It closes the answer.
func Hear(resp *http.Response, hear func(message []byte)) {
	defer resp.Body.Close()
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		body, _ := io.ReadAll(resp.Body)
		hear(body)
		return
	}
	for events := sse.NewReader(resp.Body, mostEvent); ; {
		ev, err := events.Next()
		if err != nil {
			return
		}
		if len(ev.Data) > 0 {
			hear(ev.Data)
		}
	}
}
