package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// auditOf returns the complete lines of an audit file that have the message msg.
func auditOf(t *testing.T, file, msg string) (all []map[string]any) {
	t.Helper()
	text := mcptest.Must(os.ReadFile(file))(t)
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // the last line is still being written
		}
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if one["msg"] == msg {
			all = append(all, one)
		}
	}
	return all
}

// TestAuthAudit checks the audit's lines about refused requests: they name the reason, and the principal
// if it is proven, but not the token. Of a flood of such requests few get a line; the others are counted.
func TestAuthAudit(t *testing.T) {
	t.Parallel()
	as, files := authtest.New(t), recordTokens(t)
	audit := filepath.Join(t.TempDir(), "audit.jsonl")
	base := serveFile(t, fmt.Sprintf(`{"mcpServers": {"files": {"url": %q, "holdfast": {"auth": {"tools": {"write_*": ["w"]}}}}}}`, files.URL),
		"--auth-issuer", as.URL, "--auth-resource", "http://$ADDR", "--auth-scopes", "mcp", "--audit", audit)
	at := base + "/files/mcp"
	var tokens []string
	token := func(change authtest.Claims) string {
		claims := authtest.Claims{"aud": at, "scope": "mcp"}
		for name, v := range change {
			claims[name] = v
		}
		one := as.Token(claims)
		tokens = append(tokens, one)
		return one
	}
	ada := as.URL + " ada"
	good := token(nil)
	session := post(t, at, good, "", begins).Header.Get("Mcp-Session-Id")
	var want []map[string]any
	for _, c := range []struct {
		token, session, body string
		reason               string
		status               int
		more                 map[string]any
	}{
		{"wrong-token", "", begins, "invalid_token", http.StatusUnauthorized, nil},
		{token(authtest.Claims{"exp": time.Now().Add(-time.Minute).Unix()}), session, calls("read_it"), "invalid_token", http.StatusUnauthorized, nil},
		{token(authtest.Claims{"aud": base + "/other/mcp"}), session, calls("read_it"), "invalid_token", http.StatusUnauthorized, nil},
		{token(authtest.Claims{"scope": "other"}), "", begins, "insufficient_scope", http.StatusForbidden, map[string]any{"principal": ada}},
		{good, session, calls("write_it"), "insufficient_scope", http.StatusForbidden, map[string]any{"principal": ada, "method": "tools/call", "tool": "write_it"}},
		{good, "", callsModern("write_it"), "insufficient_scope", http.StatusForbidden, map[string]any{"principal": ada, "method": "tools/call", "tool": "write_it"}},
		{good, session, calls("read_it"), "", http.StatusOK, nil},
	} {
		if r := post(t, at, c.token, c.session, c.body); r.Status != c.status {
			t.Errorf("%d %s, want %d", r.Status, r.Body, c.status)
		}
		if c.reason == "" {
			continue
		}
		line := map[string]any{"level": "INFO", "msg": "refused", "server": "files", "http_method": "POST", "reason": c.reason, "status": float64(c.status), "remote": "127.0.0.1"}
		for name, v := range c.more {
			line[name] = v
		}
		want = append(want, line)
	}
	mcptest.Eventually(t, "the lines", time.Minute, func() bool {
		return len(auditOf(t, audit, "refused")) >= len(want) && len(auditOf(t, audit, "call")) > 0
	})
	lines := auditOf(t, audit, "refused")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %v", len(lines), len(want), lines)
	}
	for i, line := range lines {
		if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(line["time"])); err != nil || time.Since(at) > time.Hour {
			t.Errorf("%v: %v", line, err)
		}
		delete(line, "time")
		if !reflect.DeepEqual(line, want[i]) {
			t.Errorf("got  %v\nwant %v", line, want[i])
		}
	}

	const flood = 60
	began := time.Now()
	for range flood {
		if r := post(t, at, "wrong-token", "", begins); r.Status != http.StatusUnauthorized {
			t.Errorf("%d", r.Status)
		}
	}
	most := 10 * (2 + int(time.Since(began).Seconds())) // 10 lines in a second that begins with a line
	few := 0
	mcptest.Eventually(t, "all are counted", time.Minute, func() bool {
		left, single := 0, 0
		for _, line := range auditOf(t, audit, "refused") {
			if n, ok := line["left_out"].(float64); ok {
				left += int(n)
				continue
			}
			single++
		}
		few = single - len(want)
		return left+single == len(want)+flood
	})
	if few > most {
		t.Errorf("%d of %d requests got a line, want %d at most", few, flood, most)
	}
	text := mcptest.Must(os.ReadFile(audit))(t)
	for _, one := range append(tokens, "wrong-token") {
		if strings.Contains(string(text), one) {
			t.Errorf("a token is in the audit: %s", one)
		}
	}
}
