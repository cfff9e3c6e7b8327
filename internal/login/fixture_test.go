package login_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"holdfast/client"
	"holdfast/internal/dpop"
	"holdfast/internal/login"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A world is a server that requires tokens, its authorization server, and a browser with a user who agrees.
type world struct {
	t      *testing.T
	URL    string // of the server
	Issuer string

	mu      sync.Mutex
	life    time.Duration // of tokens; 0: not stated
	scopes  string        // of the challenge
	need    map[string]string
	opened  []string // by the browser
	counts  map[string]int
	access  map[string]grant
	refresh map[string]grant
	codes   map[string]grant
	clients map[string]registration
	meta    map[string]any                 // changes the metadata of the authorization server
	prm     map[string]any                 // changes the metadata of the server
	back    func(url.Values)               // changes the answer of the authorization server to the browser
	token   func(http.ResponseWriter) bool // answers at the token endpoint instead
	agrees  chan struct{}                  // closed when the user agrees; nil: at once
	keys    map[string]any                 // public keys of clients
	pending map[string]chan struct{}       // codes of devices, closed when they are entered
	log     bytes.Buffer                   // all text that was logged, or shown to the user
	binds   bool                           // tokens are bound to keys, and proofs need nonces
	proofs  map[string]bool                // the used ones, by their ids

	deny      string // the error with which devices get no codes, or ""
	distrusts bool   // the server refuses all proofs
	quiet     bool   // the authorization server does not state the granted scopes
	commas    bool   // the authorization server separates the granted scopes by commas
}

type grant struct{ client, redirect, challenge, scope, key string }

type registration struct {
	Redirects []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types"`
	Method    string   `json:"token_endpoint_auth_method"`
	Secret    string   `json:"client_secret"`
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, life: time.Hour, scopes: "read", counts: map[string]int{}, access: map[string]grant{}, refresh: map[string]grant{},
		codes: map[string]grant{}, clients: map[string]registration{}, keys: map[string]any{}, need: map[string]string{}, proofs: map[string]bool{}, pending: map[string]chan struct{}{},
	}
	w.Issuer = mcptest.Serve(t, http.HandlerFunc(w.authorization))
	mcp := httptest.NewServer(http.HandlerFunc(w.server))
	t.Cleanup(mcp.Close)
	w.URL = mcp.URL + "/mcp"
	return w
}

// do calls f with the lock held.
func (w *world) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// windows returns how often a browser was opened for a login.
func (w *world) windows() (n int) {
	w.do(func() { n = w.counts["authorized"] })
	return n
}

func (w *world) counted(want map[string]int) {
	w.t.Helper()
	w.do(func() {
		for name, n := range want {
			if w.counts[name] != n {
				w.t.Errorf("%s: %d times, want %d (%v)", name, w.counts[name], n, w.counts)
			}
		}
	})
}

// Write implements [io.Writer], for the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) said() (text string) {
	w.do(func() { text = w.log.String() })
	return text
}

// server is the MCP server. It wants scope "write" for the tool write.
func (w *world) server(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	meta := strings.TrimSuffix(w.URL, "/mcp") + "/.well-known/oauth-protected-resource/mcp"
	if strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource") {
		doc := map[string]any{"resource": w.URL, "authorization_servers": []string{w.Issuer}, "scopes_supported": []string{"read"}}
		for k, v := range w.prm {
			doc[k] = v
		}
		answer(rw, 200, doc)
		return
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	g, ok := w.access[token]
	body, _ := io.ReadAll(r.Body)
	if ok = ok && (scheme == "DPoP") == (g.key != ""); ok && g.key != "" {
		if code := w.proof(rw, r, "server", g.key, token, body); code != "" {
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`DPoP error=%q, resource_metadata=%q`, code, meta))
			answer(rw, http.StatusUnauthorized, map[string]any{"error": code})
			return
		}
	}
	if !ok {
		w.counts["refused"]++
		if w.binds {
			rw.Header().Add("WWW-Authenticate", "DPoP")
		}
		rw.Header().Add("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata=%q, scope=%q`, meta, w.scopes))
		answer(rw, http.StatusUnauthorized, map[string]any{"error": "invalid_token"})
		return
	}
	id, method := jsonrpc.Field(body, "id"), jsonrpc.String(jsonrpc.Field(body, "method"))
	name := jsonrpc.String(jsonrpc.Field(body, "params", "name"))
	if scope := w.need[name]; scope != "" && !slices.Contains(strings.Fields(g.scope), scope) {
		w.counts["forbidden"]++
		rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q, resource_metadata=%q`, scope, meta))
		answer(rw, http.StatusForbidden, map[string]any{"error": "insufficient_scope"})
		return
	}
	var result any
	switch method {
	case "initialize":
		result = map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "serverInfo": map[string]any{"name": "x", "version": "1"}}
	case "tools/call":
		w.counts["call"]++
		result = map[string]any{"content": []any{map[string]any{"type": "text", "text": name}}}
	default:
		rw.WriteHeader(http.StatusAccepted)
		return
	}
	answer(rw, 200, map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "result": result})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// authorization is the authorization server.
func (w *world) authorization(rw http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/oauth-authorization-server":
		doc := map[string]any{
			"issuer": w.Issuer, "authorization_endpoint": w.Issuer + "/authorize", "token_endpoint": w.Issuer + "/token",
			"registration_endpoint": w.Issuer + "/register", "revocation_endpoint": w.Issuer + "/revoke",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		}
		for k, v := range w.meta {
			doc[k] = v
			if v == nil {
				delete(doc, k)
			}
		}
		answer(rw, 200, doc)
	case "/register":
		w.counts["registered"]++
		var reg registration
		_ = json.NewDecoder(r.Body).Decode(&reg)
		id := rand.Text()
		if reg.Method != "none" {
			reg.Secret = "secret-" + rand.Text()
		}
		w.clients[id] = reg
		answer(rw, 201, map[string]any{"client_id": id, "client_secret": reg.Secret, "token_endpoint_auth_method": reg.Method, "redirect_uris": reg.Redirects})
	case "/authorize":
		w.authorize(rw, r)
	case "/token":
		w.counts["token"]++
		if w.token == nil || !w.token(rw) {
			w.tokens(rw, r)
		}
	case "/device":
		w.counts["device"]++
		switch reg, ok := w.clients[r.Form.Get("client_id")]; {
		case w.deny != "":
			answer(rw, 400, map[string]any{"error": w.deny})
			return
		case !ok:
			answer(rw, 401, map[string]any{"error": "invalid_client"})
			return
		case !slices.Contains(reg.Grants, "urn:ietf:params:oauth:grant-type:device_code"):
			answer(rw, 400, map[string]any{"error": "unauthorized_client"})
			return
		}
		code := "device-" + rand.Text()
		w.pending[code] = make(chan struct{})
		w.codes[code] = grant{client: r.Form.Get("client_id"), scope: r.Form.Get("scope")}
		answer(rw, 200, map[string]any{"device_code": code, "user_code": "ABCD-1234", "verification_uri": w.Issuer + "/enter", "expires_in": 600, "interval": "0.05"})
	case "/revoke":
		w.counts["revoked"]++
		delete(w.access, r.Form.Get("token"))
		delete(w.refresh, r.Form.Get("token"))
	default:
		http.NotFound(rw, r)
	}
}

func (w *world) authorize(rw http.ResponseWriter, r *http.Request) {
	q := r.Form
	w.counts["authorized"]++
	if q.Get("resource") != w.URL || q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" {
		http.Error(rw, "wrong request", http.StatusBadRequest)
		w.t.Errorf("authorize: %v", q)
		return
	}
	if reg, ok := w.clients[q.Get("client_id")]; ok && !slices.Contains(reg.Redirects, q.Get("redirect_uri")) {
		http.Error(rw, "wrong redirect", http.StatusBadRequest)
		return
	}
	agrees := w.agrees
	if agrees != nil {
		w.mu.Unlock()
		select {
		case <-agrees:
		case <-r.Context().Done():
		}
		w.mu.Lock()
	}
	code := rand.Text()
	key := ""
	if w.binds {
		if key = q.Get("dpop_jkt"); key == "" {
			w.t.Error("a code is not bound to a key")
		}
	}
	w.codes[code] = grant{q.Get("client_id"), q.Get("redirect_uri"), q.Get("code_challenge"), q.Get("scope"), key}
	back := url.Values{"code": {code}, "state": {q.Get("state")}}
	if w.back != nil {
		w.back(back)
	}
	http.Redirect(rw, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// tokens is the token endpoint.
func (w *world) tokens(rw http.ResponseWriter, r *http.Request) {
	f := r.Form
	refuse := func(code string) { answer(rw, 400, map[string]any{"error": code, "error_description": "no"}) }
	id := w.clientOf(r)
	if id == "" {
		refuse("invalid_client")
		return
	}
	if f.Get("resource") != w.URL {
		w.t.Errorf("token: resource %q", f.Get("resource"))
	}
	if w.binds {
		if code := w.proof(rw, r, "issuer", "", "", nil); code != "" {
			refuse(code)
			return
		}
	}
	w.counts[f.Get("grant_type")]++
	var g grant
	var ok bool
	switch f.Get("grant_type") {
	case "authorization_code":
		g, ok = w.codes[f.Get("code")]
		delete(w.codes, f.Get("code"))
		sum := sha256.Sum256([]byte(f.Get("code_verifier")))
		ok = ok && g.redirect == f.Get("redirect_uri") && g.challenge == base64.RawURLEncoding.EncodeToString(sum[:])
	case "refresh_token":
		g, ok = w.refresh[f.Get("refresh_token")]
		delete(w.refresh, f.Get("refresh_token"))
	case "client_credentials":
		g, ok = grant{client: id, scope: f.Get("scope")}, true
	default:
		g, ok = w.codes[f.Get("device_code")]
		select {
		case <-w.pending[f.Get("device_code")]:
		default:
			refuse("authorization_pending")
			return
		}
	}
	key := ""
	if p, err := dpop.Parse(r.Header.Get("DPoP")); err == nil && w.binds {
		key = p.Key
	}
	if !ok || g.client != id || g.key != "" && g.key != key {
		refuse("invalid_grant")
		return
	}
	g.key = key
	access, refresh := "access-"+rand.Text(), "refresh-"+rand.Text()
	w.access[access], w.refresh[refresh] = g, g
	kind := "Bearer"
	if key != "" {
		kind = "DPoP"
	}
	got := map[string]any{"access_token": access, "token_type": kind, "refresh_token": refresh, "scope": g.scope}
	if f.Get("grant_type") == "client_credentials" {
		delete(got, "refresh_token")
	}
	if w.quiet {
		delete(got, "scope")
	} else if w.commas {
		got["scope"] = strings.ReplaceAll(g.scope, " ", ",")
	}
	if w.life > 0 {
		got["expires_in"] = w.life.Seconds()
		time.AfterFunc(w.life, func() { w.do(func() { delete(w.access, access) }) })
	}
	answer(rw, 200, got)
}

// proof checks the proof of a request at one of the servers, each of which has nonces of its own. It returns an error's code, or "".
func (w *world) proof(rw http.ResponseWriter, r *http.Request, at, key, token string, body []byte) string {
	p, err := dpop.Parse(r.Header.Get("DPoP"))
	nonce := fmt.Sprint(at, "-", w.counts["proofs of "+at]/5) // changes from time to time
	rw.Header().Set("DPoP-Nonce", nonce)
	if err != nil {
		return "invalid_dpop_proof"
	}
	digest, err := p.Digest()
	switch {
	case err != nil || p.Method != r.Method || !p.IsFor("http://"+r.Host+r.URL.Path) || key != "" && p.Key != key || token != "" && !p.Covers(token),
		w.proofs[p.ID], (digest == nil) != (token == "" || len(body) == 0):
		w.t.Errorf("%s: a wrong proof for %s: %+v %v", at, r.URL.Path, p, err)
		return "invalid_dpop_proof"
	case w.distrusts && at == "server":
		w.counts["distrusted"]++
		return "invalid_dpop_proof"
	case p.Nonce != nonce:
		w.counts["nonces of "+at]++
		return "use_dpop_nonce"
	}
	if digest != nil {
		if _, _ = digest.Write(body); !digest.Holds() {
			w.t.Errorf("%s: the digest of another body", at)
		}
	}
	w.proofs[p.ID] = true
	w.counts["proofs of "+at]++
	return ""
}

// clientOf returns the authenticated client of a request, or "".
func (w *world) clientOf(r *http.Request) string {
	if id, secret, ok := r.BasicAuth(); ok {
		if reg := w.clients[id]; reg.Secret == secret && reg.Method == "client_secret_basic" {
			return id
		}
		return ""
	}
	id := r.Form.Get("client_id")
	if key := w.keys[id]; key != nil {
		signed, err := jose.ParseSigned(r.Form.Get("client_assertion"), []jose.SignatureAlgorithm{jose.ES256, jose.RS256, jose.EdDSA})
		if err != nil {
			return ""
		}
		claims, err := signed.Verify(key)
		if err != nil || !bytes.Contains(claims, fmt.Appendf(nil, `"aud":%q`, w.Issuer)) {
			return ""
		}
		return id
	}
	if reg := w.clients[id]; reg.Secret != r.Form.Get("client_secret") {
		return ""
	}
	return id
}

// browse plays a browser with a user who agrees. It follows all redirects.
func (w *world) browse(to string) error {
	w.do(func() { w.opened = append(w.opened, to) })
	go func() {
		resp, err := http.Get(to) //nolint:noctx // as browsers do
		if err == nil {
			_, _ = io.Copy(w, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	return nil
}

// enters plays a user who enters the code in a text, if there is one.
func (w *world) enters(text string) {
	if !strings.Contains(text, "ABCD-1234") {
		return
	}
	w.do(func() {
		for _, code := range w.pending {
			select {
			case <-code:
			default:
				close(code)
			}
		}
	})
}

// source returns a login.Source, with options that change may change.
func (w *world) source(dir string, change func(*login.Options)) *login.Source {
	w.t.Helper()
	opts := &login.Options{
		Dir: dir, Open: w.browse, Logger: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Tell: func(text string) { fmt.Fprintln(w, text) },
	}
	if change != nil {
		change(opts)
	}
	s := mcptest.Must(login.New(w.URL, opts))(w.t)
	w.t.Cleanup(s.Close)
	return s
}

// A host has a session with the server.
type host struct {
	w    *world
	conn *client.Conn
	id   int
	told chan string // gets the texts for requests that wait for a login, as far as there is room; nil: they are dropped
}

func (w *world) host(s *login.Source) *host {
	w.t.Helper()
	conn := mcptest.Must(client.New(w.URL, &client.Options{Auth: s, NoListen: true, Transport: client.HTTP, Logger: slog.New(slog.DiscardHandler)}))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	return &host{w: w, conn: conn}
}

// goes calls a tool in a goroutine. The channel gets the result of call.
func (h *host) goes(name string) <-chan string {
	done := make(chan string, 1)
	go func() { done <- h.call(name) }()
	return done
}

// waits calls a tool, and returns when the call waits for a login. The channel gets the result of call.
func (h *host) waits(name string) <-chan string {
	h.w.t.Helper()
	h.told = make(chan string, 1)
	done := h.goes(name)
	select {
	case <-h.told:
	case got := <-done:
		h.w.t.Fatalf("%s does not wait: %q", name, got)
	}
	return done
}

// call begins a session and calls a tool. It returns the text of the result, or of the error.
func (h *host) call(name string) string {
	if h.id == 0 {
		if text := h.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`); text != "" {
			return text
		}
	}
	return h.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{}}`, name))
}

func (h *host) request(method, params string) string {
	h.id++
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, fmt.Append(nil, h.id), method, []byte(params)))
	if err != nil {
		return err.Error()
	}
	ctx, stop := context.WithTimeout(h.w.t.Context(), time.Minute)
	defer stop()
	waiter := login.Waiter{Tell: func(text string) {
		select {
		case h.told <- text:
		default:
		}
	}}
	if err := h.conn.Send(login.With(ctx, waiter), m); err != nil {
		return err.Error()
	}
	for {
		m, err := h.conn.Receive(ctx)
		switch {
		case err != nil:
			return err.Error()
		case m.Kind != jsonrpc.Response:
		case m.Error != nil:
			return jsonrpc.String(jsonrpc.Field(m.Error, "message"))
		case method == "initialize":
			return ""
		default:
			var got struct{ Content []struct{ Text string } }
			_ = json.Unmarshal(m.Result, &got)
			return got.Content[0].Text
		}
	}
}

// noSecrets fails the test if the log contains a token or secret.
func (w *world) noSecrets() {
	w.t.Helper()
	for _, word := range []string{"access-", "refresh-", "secret-"} {
		if said := w.said(); strings.Contains(said, word) {
			w.t.Errorf("it says a secret:\n%s", said)
		}
	}
}
