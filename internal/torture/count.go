package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"holdfast/jsonrpc"
)

// metaCall is the member of a call's _meta with its tag, by which the proxies and the post know the call.
const metaCall = "holdfast/torture"

// tagIn returns the tag of the call in a message, or "" if the message is not a call of the torture.
func tagIn(message []byte) string {
	if !bytes.Contains(message, []byte(metaCall)) {
		return ""
	}
	m, err := jsonrpc.Parse(bytes.TrimSpace(message))
	if err != nil || m.Kind != jsonrpc.Request || m.Method != "tools/call" {
		return ""
	}
	return jsonrpc.String(jsonrpc.Field(jsonrpc.Field(m.Params, "_meta"), metaCall))
}

// arrivals counts the calls that have reached the server, by their tags. Its methods may be called concurrently.
type arrivals struct {
	mu   sync.Mutex
	of   map[string]int
	kill map[string]bool // calls that kill the server's process when they arrive
	died map[string]bool // calls of kill that have arrived
}

func newArrivals() *arrivals {
	return &arrivals{of: make(map[string]int), kill: make(map[string]bool), died: make(map[string]bool)}
}

// add counts a call that has reached the server, and reports whether the server's process must be killed.
func (a *arrivals) add(tag string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[tag]++
	if !a.kill[tag] {
		return false
	}
	delete(a.kill, tag)
	a.died[tag] = true
	return true
}

// killAt makes the arrival of a call kill the server's process.
func (a *arrivals) killAt(tag string) {
	a.mu.Lock()
	a.kill[tag] = true
	a.mu.Unlock()
}

// count returns how often a call has reached the server, and whether the process that it reached was killed.
func (a *arrivals) count(tag string) (n int, died bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[tag], a.died[tag]
}

// refuse takes back the count of a call that the server has refused, so that it did not run.
func (a *arrivals) refuse(tag string) {
	a.mu.Lock()
	a.of[tag]--
	a.mu.Unlock()
}

// tagsKey is the key for the tags of a request in its context.
type tagsKey struct{}

// counting returns a proxy in front of the server at a URL. It counts the calls of requests, except those that the server
// refuses.
func counting(to *url.URL, header http.Header, a *arrivals) http.Handler {
	next := passing(to, http.DefaultTransport, header)
	next.ModifyResponse = func(answer *http.Response) error {
		if tags, _ := answer.Request.Context().Value(tagsKey{}).([]string); answer.StatusCode >= http.StatusBadRequest {
			for _, tag := range tags {
				a.refuse(tag)
			}
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, ok := readBody(w, r)
			if !ok {
				return
			}
			var tags []string
			for _, one := range messages(body) {
				if tag := tagIn(one); tag != "" {
					a.add(tag)
					tags = append(tags, tag)
				}
			}
			r = r.WithContext(context.WithValue(r.Context(), tagsKey{}, tags))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		next.ServeHTTP(w, r)
	})
}

// messages returns the messages of a body, which may be a batch.
func messages(body []byte) []json.RawMessage {
	if strings.HasPrefix(strings.TrimSpace(string(body)), "[") {
		var batch []json.RawMessage
		_ = json.Unmarshal(body, &batch)
		return batch
	}
	return []json.RawMessage{body}
}
