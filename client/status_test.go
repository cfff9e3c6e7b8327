package client_test

import (
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A client can get the status of a call without taking its messages.
func TestStatus(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	a := newRaw(t, g.url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	s := a.State()
	a.Detach()
	mcptest.Eventually(t, "the server to write nothing more", soon, func() bool { return g.serving.Load() == 0 })
	s = client.State{URL: s.URL, Revision: s.Revision, Calls: s.Calls}
	ask := func() client.Status {
		t.Helper()
		b := newRaw(t, s.URL, client.Options{State: &client.State{URL: s.URL, Revision: s.Revision}, NoListen: true})
		return mcptest.Must(b.Status(t.Context(), s.Calls[0]))(t)
	}
	if got := ask(); got.Status != "processing" || got.HasInputRequest {
		t.Errorf("%+v", got)
	}
	close(g.open)
	for ask().Status == "processing" {
		time.Sleep(time.Millisecond) // there is no event to wait on
	}
	if got := ask(); got.Status != "completed" || !got.HasPendingMessage {
		t.Errorf("%+v", got)
	}
}
