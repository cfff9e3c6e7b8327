package e2e

import (
	"context"
	"crypto/x509/pkix"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// TestTLS has clients with certificates: the server's certificate is replaced while a call
// waits for its client, and only the client that began a session can use it.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := authtest.NewCA(t, "ca")
	cert, key := ca.Server("one")
	names := authtest.Files(t, cert, key, ca.PEM)
	p := serve(t, "--demo", "--tls-cert", names[0], "--tls-key", names[1], "--tls-client-ca", names[2])
	web := ca.Browse(ca.Client(pkix.Name{}, "spiffe://example.org/ada"))
	bob := ca.Browse(ca.Client(pkix.Name{CommonName: "bob"}))

	asked, answer := make(chan struct{}), make(chan struct{})
	client := mcp.NewClient(&mcp.Implementation{Name: "tls", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			close(asked)
			select {
			case <-answer:
			case <-ctx.Done():
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "Ada"}}, nil
		},
	})
	s := mcptest.Must(client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.URL, HTTPClient: web}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}))(t)
	defer s.Close()
	said := make(chan string, 1)
	go func() {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"question": "who?"}})
		if err != nil {
			said <- err.Error()
			return
		}
		said <- textOf(r)
	}()
	<-asked
	cert, key = ca.Server("two")
	for i, text := range [][]byte{cert, key} {
		mcptest.Check(t, os.WriteFile(names[i], text, 0o600))
	}
	p.signal(t, syscall.SIGHUP)
	send := func(c *http.Client, method, session, body string) (status int, proto, by string) {
		t.Helper()
		resp, err := (&mcptest.Client{URL: p.URL, Session: session, HTTP: c}).Send(t.Context(), method, body)
		mcptest.Check(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode, resp.Proto, resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	const ping = `{"jsonrpc":"2.0","id":"p","method":"ping"}`
	mcptest.Eventually(t, "the new certificate", time.Minute, func() bool {
		bob.CloseIdleConnections()
		status, proto, by := send(bob, http.MethodPost, s.ID(), ping)
		if status != http.StatusNotFound || proto != "HTTP/2.0" {
			t.Fatalf("another's session: %d %s", status, proto)
		}
		return by == "two"
	})
	if status, _, by := send(web, http.MethodPost, s.ID(), ping); status != http.StatusOK || by != "one" {
		t.Errorf("the own session: %d, by %q", status, by)
	}
	close(answer)
	if got := <-said; !strings.Contains(got, "Ada") {
		t.Errorf("the call said %q", got)
	}
}
