package bridge

import (
	"io"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// What a server says while the host is not ready is kept in bounds.
func TestHeldInBounds(t *testing.T) {
	t.Parallel()
	question := mustParse(jsonrpc.AppendRequest(nil, []byte("1"), "elicitation/create", jsonrpc.Object("message", strings.Repeat("A", 1<<20))))
	b := newBridge("http://127.0.0.1:1", client.Options{}, &host{w: io.Discard, gone: make(chan struct{})})
	defer close(b.stop)
	b.restored = true
	for range 100 {
		b.fromServer(question)
	}
	if n := len(b.held); n < 20 || n > 32 {
		t.Errorf("%d messages of 1 MiB are kept", n)
	}
}
