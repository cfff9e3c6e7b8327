package remote_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
)

// TestRefusedLater has the token of a client expire in the middle of a session. Each kind of request
// then gets the server's status and challenge, and the client sends it again with another token. The
// tool runs once.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for name, o := range map[string]*mcp.StreamableHTTPOptions{"legacy": nil, "modern": {Stateless: true}} {
			for _, form := range []holdfast.Response{holdfast.ResponseAuto, holdfast.ResponseJSON} {
				t.Run(fmt.Sprint(status, name, form), func(t *testing.T) {
					t.Parallel()
					testRefusedLater(t, status, o, form)
				})
			}
		}
	}
}

func testRefusedLater(t *testing.T, status int, o *mcp.StreamableHTTPOptions, form holdfast.Response) {
	const challenge = `Bearer error="insufficient_scope", resource_metadata="https://example.com/resource"`
	w := begin(t, nil, func(s *mcp.Server) http.Handler {
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer old" {
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(status)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	w.url = front(t, w.upstream, &remote.Options{PassAuthorization: true}, &holdfast.Options{Response: form})
	refused := func(what string, r mcptest.Reply) {
		t.Helper()
		if r.Status != status || r.Header.Get("WWW-Authenticate") != challenge {
			t.Errorf("%s: status %d, header %v", what, r.Status, r.Header)
		}
	}
	for _, key := range []string{"", "legacy"} {
		c := open(t, w.url, "Authorization", "Bearer new")
		for i, body := range []string{tool("1", "count", `{"To":0}`), `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"x"}}`} {
			w.runs.Store(0)
			keyed := ""
			if key != "" {
				keyed = fmt.Sprint(key, i)
			}
			refused(fmt.Sprint("legacy ", i, key), c.Post(t, body, "Idempotency-Key", keyed, "Authorization", "Bearer old"))
			if m := response(c.Post(t, body, "Idempotency-Key", keyed)); unknown(m) || i == 0 && (m.Result == nil || w.runs.Load() != 1) {
				t.Errorf("with another token: %s", m.Raw)
			}
		}
	}
	for _, key := range []string{"", "modern"} {
		body := strings.Replace(tool("1", "count", `{"To":0}`), `"_meta":{`, `"_meta":{"`+protocol.MetaProtocolVersion+`":"2026-07-28","`+protocol.MetaClientCapabilities+`":{},`, 1)
		c := clientOf(w.url, "Authorization", "Bearer new")
		if m := response(c.Post(t, body)); m.Result == nil {
			t.Fatalf("modern: %s", m.Raw)
		}
		w.runs.Store(0)
		refused("modern "+key, c.Post(t, body, "Idempotency-Key", key, "Authorization", "Bearer old"))
		if m := response(c.Post(t, body, "Idempotency-Key", key)); m.Result == nil || w.runs.Load() != 1 {
			t.Errorf("modern, with another token: %s", m.Raw)
		}
	}
}
