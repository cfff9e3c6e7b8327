package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
)

// A boundClient has a token that is bound to its key.
type boundClient struct {
	t      *testing.T
	ctx    context.Context
	at     string
	token  string
	prover *authtest.Prover
	nonce  any
}

// request returns a request with a new proof, with some claims changed.
func (c *boundClient) request(method, session, body string, change authtest.Claims) *http.Request {
	c.t.Helper()
	claims := authtest.Claims{"nonce": c.nonce}
	for name, value := range change {
		claims[name] = value
	}
	header := []string{"Mcp-Session-Id", session}
	for name, values := range c.prover.Header(method, c.at, c.token, claims) {
		header = append(header, name, values[0])
	}
	return mcptest.Must(mcptest.NewRequest(c.ctx, method, c.at, body, header...))(c.t)
}

// send makes a request, and reads the answer. It keeps a nonce in the answer for the next request.
func (c *boundClient) send(req *http.Request) mcptest.Reply {
	c.t.Helper()
	r := mcptest.Must(mcptest.Read(http.DefaultClient.Do(req)))(c.t) //nolint:bodyclose // Read closes it
	if nonce := r.Header.Get("DPoP-Nonce"); nonce != "" {
		c.nonce = nonce
	}
	return r
}

// dial opens a WebSocket with the headers of a request.
func (c *boundClient) dial(head http.Header) (*websocket.Conn, int) {
	c.t.Helper()
	ws, resp, err := websocket.Dial(c.ctx, strings.Replace(c.at, "http", "ws", 1), &websocket.DialOptions{HTTPHeader: head, Subprotocols: []string{"mcp"}}) //nolint:bodyclose // "you never need to"
	if resp == nil {
		c.t.Fatal(err)
	}
	if err == nil {
		c.t.Cleanup(func() { _ = ws.CloseNow() })
	}
	return ws, resp.StatusCode
}

func digestOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// TestAuthBound makes all kinds of requests with a token that is bound to a key, and others that misuse the token or a proof, as
// a client could that has seen them.
func TestAuthBound(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	p := serveGuarded(t, as, "--auth-dpop-nonce", "--eras", "both")
	prover := authtest.NewProver(t)
	c := &boundClient{t: t, ctx: bounded(t, 2*time.Minute), at: p.URL, prover: prover}
	fresh := func(prover *authtest.Prover) string {
		return as.Token(authtest.Claims{"aud": p.URL, "scope": "mcp", "cnf": prover.Binds()})
	}
	c.token = fresh(prover)

	if got := c.send(c.request(http.MethodPost, "", begins, nil)); got.Status != http.StatusUnauthorized || c.nonce == nil ||
		!strings.Contains(got.Header.Get("WWW-Authenticate"), `DPoP resource_metadata="`) || !strings.Contains(got.Header.Get("WWW-Authenticate"), `error="use_dpop_nonce"`) {
		t.Fatalf("without a nonce: %d %v", got.Status, got.Header)
	}
	begun := c.send(c.request(http.MethodPost, "", begins, authtest.Claims{"content_digest": digestOf(begins)}))
	session := begun.Header.Get("Mcp-Session-Id")
	if begun.Status != http.StatusOK || session == "" {
		t.Fatalf("initialize: %d %s", begun.Status, begun.Body)
	}

	// A request with a body for which its proof was not made is refused, whether its length is known or not.
	for what, change := range map[string]func(*http.Request){
		"its length is known":     func(*http.Request) {},
		"its length is not known": func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(counts("1", 2))) },
	} {
		req := c.request(http.MethodPost, session, counts("1", 2), authtest.Claims{"content_digest": digestOf(counts("1", 3))})
		change(req)
		if got := c.send(req); got.Status != http.StatusUnauthorized || !strings.Contains(got.Header.Get("WWW-Authenticate"), `error="invalid_dpop_proof"`) {
			t.Errorf("another body, and %s: %d %v %s", what, got.Status, got.Header, got.Body)
		}
		req = c.request(http.MethodPost, session, counts("1", 2), authtest.Claims{"content_digest": digestOf(counts("1", 2))})
		change(req)
		if got := c.send(req); got.Status != http.StatusOK || !strings.Contains(got.Body, `"result"`) {
			t.Errorf("the body, and %s: %d %s", what, got.Status, got.Body)
		}
	}

	// A call goes on under a new token of the same principal, with another key.
	resp, err := http.DefaultClient.Do(c.request(http.MethodPost, session, counts("2", 100), nil))
	if err != nil {
		t.Fatal(err)
	}
	ev, err := sse.NewReader(resp.Body, 1<<20).Next()
	_ = resp.Body.Close()
	if err != nil || ev.ID == "" {
		t.Fatalf("the call: %s %+v %v", resp.Status, ev, err)
	}
	seen := c.request(http.MethodGet, session, "", nil)
	seen.Header.Set("Last-Event-ID", ev.ID)
	c.prover = authtest.NewProver(t)
	c.token = fresh(c.prover)
	resume := c.request(http.MethodGet, session, "", nil)
	resume.Header.Set("Last-Event-ID", ev.ID)
	if got := c.send(resume.Clone(c.ctx)); got.Status != http.StatusOK || !strings.Contains(got.Body, `"result"`) {
		t.Errorf("the call with another key: %d %s", got.Status, got.Body)
	}
	if got := c.send(resume); got.Status != http.StatusUnauthorized {
		t.Errorf("the same request again: %d", got.Status)
	}
	if got := c.send(seen); got.Status != http.StatusOK && got.Status != http.StatusNoContent {
		t.Errorf("the call with the first key: %d %s", got.Status, got.Body)
	}

	// WebSockets.
	handshake := c.request(http.MethodGet, "", "", nil).Header
	ws, _ := c.dial(handshake)
	if ws == nil {
		t.Fatal("no WebSocket")
	}
	for _, message := range []string{begins, `{"jsonrpc":"2.0","id":"p","method":"ping"}`} {
		mcptest.Check(t, ws.Write(c.ctx, websocket.MessageText, []byte(message)))
		if _, text, err := ws.Read(c.ctx); err != nil || !strings.Contains(string(text), `"result"`) {
			t.Errorf("over a WebSocket: %s %v", text, err)
		}
	}
	plain := handshake.Clone()
	plain.Set("Authorization", "Bearer "+c.token)
	for what, head := range map[string]http.Header{
		"the same proof":      handshake,
		"as a bearer token":   plain,
		"the proof of a POST": c.request(http.MethodPost, "", "", nil).Header,
		"a nonce of an hour":  c.request(http.MethodGet, "", "", authtest.Claims{"nonce": "x"}).Header,
		"another URL":         c.request(http.MethodGet, "", "", authtest.Claims{"htu": p.URL + "2"}).Header,
	} {
		if _, status := c.dial(head); status != http.StatusUnauthorized {
			t.Errorf("a WebSocket with %s: %d", what, status)
		}
	}

	// 2026-07-28, and the pair of 2024-11-05.
	if got := c.send(c.request(http.MethodPost, "", callsModern("echo"), nil)); got.Status != http.StatusOK {
		t.Errorf("2026-07-28: %d %s", got.Status, got.Body)
	}
	pair := strings.Replace(p.URL, "/mcp", "/sse", 1)
	old := &boundClient{t: t, ctx: c.ctx, at: pair, prover: prover, nonce: c.nonce}
	old.token = as.Token(authtest.Claims{"aud": pair, "scope": "mcp", "cnf": prover.Binds()})
	stream, err := http.DefaultClient.Do(old.request(http.MethodGet, "", "", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	ev, err = sse.NewReader(stream.Body, 1<<20).Next()
	if err != nil {
		t.Fatalf("the pair: %s %v", stream.Status, err)
	}
	to := mcptest.Must(stream.Request.URL.Parse(string(ev.Data)))(t)
	old.at = to.String() // the URL has a query
	if got := old.send(old.request(http.MethodPost, "", begins, nil)); got.Status != http.StatusAccepted {
		t.Errorf("a message of the pair: %d %s", got.Status, got.Body)
	}

	if got := c.send(c.request(http.MethodDelete, session, "", nil)); got.Status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", got.Status, got.Body)
	}
	about := mcptest.Must(mcptest.Exchange(c.ctx, http.MethodGet, strings.Replace(p.URL, "/mcp", "/.well-known/oauth-protected-resource/mcp", 1), ""))(t)
	var says map[string]any
	if err := about.Decode(&says); err != nil || says["dpop_signing_alg_values_supported"] == nil || says["dpop_bound_access_tokens_required"] != nil {
		t.Errorf("metadata: %v %v", says, err)
	}
}
