package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// TestPriorKnowledge has a client speak HTTP/2 without TLS from its first byte on: it is served like other clients, also with
// many streams on a connection. Clients with HTTP/1.1 are served too.
func TestPriorKnowledge(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo")
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	h2 := &http.Client{Transport: transport}
	post := func(client *http.Client, id, body string, header ...string) (res http.Response, data []byte) {
		t.Helper()
		got, err := (&mcptest.Client{URL: p.URL, Session: id, HTTP: client}).Send(t.Context(), http.MethodPost, body, header...)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if data, err = io.ReadAll(got.Body); err != nil {
			t.Fatal(err)
		}
		return *got, data
	}
	initialize := mcptest.Initialize("2025-11-25", "{}")
	for what, client := range map[string]*http.Client{"HTTP/2.0": h2, "HTTP/1.1": http.DefaultClient} {
		res, data := post(client, "", initialize)
		id := res.Header.Get("Mcp-Session-Id")
		if res.Proto != what || res.StatusCode != http.StatusOK || id == "" {
			t.Fatalf("%s: %s %s %s", what, res.Proto, res.Status, data)
		}
		post(client, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if res, data := post(client, id, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); res.StatusCode != http.StatusOK || !bytes.Contains(data, []byte(`"tools"`)) {
			t.Errorf("%s: %s %s", what, res.Status, data)
		}
		if res, data := post(client, id, `{"jsonrpc":"2.0","id":3,"method":"ping"}`); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", what, res.Status, data)
		}
	}
	// Many streams, each of its own session.
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var streams []io.Closer
	for i := range 120 {
		res, _ := post(h2, "", initialize)
		listener := &mcptest.Client{URL: p.URL, Session: res.Header.Get("Mcp-Session-Id"), HTTP: h2}
		stream, err := listener.Send(ctx, http.MethodGet, "") //nolint:bodyclose // all are closed below
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		streams = append(streams, stream.Body)
		if line, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil || stream.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: %s %q %v", i, stream.Status, line, err)
		}
	}
	for _, s := range streams {
		_ = s.Close()
	}
	// A request in HTTP/1.1 that asks for an upgrade to HTTP/2 is answered in HTTP/1.1.
	if res, data := post(http.DefaultClient, "", initialize, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAAP__"); res.StatusCode != http.StatusOK || res.Proto != "HTTP/1.1" {
		t.Errorf("an upgrade: %s %s", res.Status, data)
	}
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
}
