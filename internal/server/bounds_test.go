package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// The texts that are kept of a request while it is in flight, or of a client while its session
// lives, are bounded. A client that sends longer ones gets an error that says so.
func TestWordsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	stranger := &peer{n: n}
	most := strings.Repeat("x", jsonrpc.MaxName-2)
	initialize := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"%s"}}}`
	for _, c := range []struct {
		what   string
		p      *peer
		body   string
		status int
		says   string
	}{
		{"an id", p, `{"jsonrpc":"2.0","id":"` + most + `","method":"ping"}`, 200, "result"},
		{"an id", p, `{"jsonrpc":"2.0","id":"` + most + `x","method":"ping"}`, 400, "longer than 1024 bytes"},
		{"an id", p, `{"jsonrpc":"2.0","id":` + strings.Repeat("1", 1025) + `,"method":"ping"}`, 400, "longer than 1024 bytes"},
		{"an answer's id", p, `{"jsonrpc":"2.0","id":"` + most + `x","result":{}}`, 400, "longer than 1024 bytes"},
		{"a method", p, `{"jsonrpc":"2.0","id":1,"method":"` + most + `x"}`, 400, "longer than 1024 bytes"},
		{"a notification's method", p, `{"jsonrpc":"2.0","method":"` + most + `x"}`, 400, "longer than 1024 bytes"},
		{"a token", p, `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"_meta":{"progressToken":"` + most + `"}}}`, 200, "result"},
		{"a token", p, `{"jsonrpc":"2.0","id":3,"method":"ping","params":{"_meta":{"progressToken":"` + most + `x"}}}`, 400, "longer than 1024 bytes"},
		{"after them", p, `{"jsonrpc":"2.0","id":3,"method":"ping"}`, 200, "result"},
		{"initialize", stranger, fmt.Sprintf(initialize, strings.Repeat("n", session.MaxInitialize-1000)), 200, "result"},
		{"initialize", stranger, fmt.Sprintf(initialize, strings.Repeat("n", session.MaxInitialize)), 413, "larger than 65536 bytes"},
	} {
		r := c.p.post(c.body)
		if r.status != c.status || !strings.Contains(string(r.body), c.says) {
			t.Errorf("%s of %d bytes: %d %.200s", c.what, len(c.body), r.status, r.body)
		}
	}
	if got := n.sessions.Sessions(); got != 2 {
		t.Errorf("%d sessions are open: one was opened for an initialize that was refused", got)
	}
	if got := n.sessions.Calls(); got != 0 {
		t.Errorf("%d calls are counted as in flight", got)
	}
	// The pair of endpoints of 2024-11-05 has the same bound, in a session that is open already.
	pair := stranger.open("GET", "/sse", "")
	endpoint := "/" + string(pair.message().Data)
	r := stranger.open("POST", endpoint, fmt.Sprintf(initialize, strings.Repeat("n", session.MaxInitialize))).all()
	if r.status != http.StatusRequestEntityTooLarge {
		t.Errorf("initialize at the pair: %d %.200s", r.status, r.body)
	}
}
