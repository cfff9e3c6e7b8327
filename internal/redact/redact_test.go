package redact_test

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"holdfast/internal/redact"
)

// The shown text of a URL has no secret, however the URL is written.
func TestText(t *testing.T) {
	t.Parallel()
	for raw, secret := range map[string]string{
		"http://user:hunter2@host/mcp":                  "hunter2",
		"http://hunter2@host/mcp":                       "hunter2",
		"http://user:hunter2/x@host":                    "hunter2/x",
		"http://user:hunter2?x@host":                    "hunter2",
		"http://user:hunter2#x@host":                    "hunter2",
		"http://user:hun%zz@host":                       "hun%zz",
		"http://user:p%40ss%2Fword@host":                "p@ss/word",
		"http://user:hunter2@[::1":                      "hunter2",
		"user:hunter2@host":                             "hunter2",
		"http:user:hunter2@host":                        "hunter2",
		"http:/user:hunter2@host":                       "hunter2",
		"nats://a:hunter2@h1,b:other99@h2":              "other99",
		"nats://h1,nats://b:hunter2@h2":                 "hunter2",
		"http://host/mcp?api_key=hunter2":               "hunter2",
		"http://host/mcp?hunter2":                       "hunter2",
		"http://host/mcp#hunter2":                       "hunter2",
		"http://host/s/AAAAAAAAAABBBBBBBBBB1/mcp":       "AAAAAAAAAABBBBBBBBBB1",
		"redis://h?master=m&sentinel_password=hunter2":  "hunter2",
		"to=http://user:hunter2@host":                   "hunter2",
		"--flag=http://user:hunter2@host":               "hunter2",
		"http://one:hunter2@host http://b:hunter2@host": "hunter2",
	} {
		s := redact.Of([]string{raw})
		for _, text := range []string{
			raw, secret, url.QueryEscape(secret), url.PathEscape(secret),
			fmt.Sprintf("%q", raw), fmt.Sprintf("parse %q: invalid port %q after host", raw, ":"+secret),
		} {
			if got := s.Text(text); strings.Contains(got, secret) || strings.Contains(got, url.QueryEscape(secret)) {
				t.Errorf("%s: %q became %q", raw, text, got)
			}
		}
		if got := redact.URL(raw); strings.Contains(got, secret) {
			t.Errorf("%s: URL is %q", raw, got)
		}
	}
}

// Text without a secret stays, as far as that can be recognised.
func TestPlain(t *testing.T) {
	t.Parallel()
	s := redact.Of([]string{"http://127.0.0.1:8080/mcp", "nats://h?creds=/etc/nats.creds", "plain words: a@b",
		"@modelcontextprotocol/server-sequential-thinking", "@scope/a-package-with-a-long-name@1.2.3", "./node_modules/@modelcontextprotocol/x.js"}, "creds")
	for _, text := range []string{
		"http://127.0.0.1:8080/mcp: connection refused", "open /etc/nats.creds: no such file", "https://host/@org/name", "mail me@host",
		"npx -y @modelcontextprotocol/inspector", "server-sequential-thinking started", "a-package-with-a-long-name@1.2.3",
	} {
		if got := s.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := (*redact.Secrets)(nil).Text("see ftp://a:b@c@host/x"); got != "see ftp://***@host/x" {
		t.Errorf("of somebody else's URL: %q", got)
	}
	for raw, want := range map[string]string{
		"http://127.0.0.1:8080/mcp":       "http://127.0.0.1:8080/mcp",
		"http://u:hunter2@host/mcp?x=y#z": "http://host/mcp",
		"http://host:80/@org/x":           "http://host:80",
		"http://[::1]:80/a%2Fb":           "http://[::1]:80/a%2Fb",
		"http://a b":                      "",
		"nonsense":                        "",
	} {
		if got := redact.URL(raw); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

// An error without its secrets still matches the original error.
func TestError(t *testing.T) {
	t.Parallel()
	s := redact.Texts("hunter2").With(nil, redact.Of([]string{"http://u:xyzzy1@h"}))
	err := s.Error(fmt.Errorf("of hunter2 and xyzzy1: %w", io.EOF))
	if err.Error() != "of *** and ***: EOF" || !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	if s.Error(nil) != nil || s.Error(io.EOF) != io.EOF { //nolint:errorlint // it is to be the same
		t.Error("an error without secrets is another")
	}
}

// TestCredential has headers with credentials, and headers without.
func TestCredential(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"Authorization": true, "Cookie": true, "Proxy-Authorization": true, "X-Api-Key": true, "X-Auth-Request-Email": true,
		"X-Amz-Security-Token": true, "X-Goog-Iap-Jwt-Assertion": true, "X-Forwarded-Client-Cert": true, "Private-Token": true,
		"Mcp-Session-Id": false, "Idempotency-Key": false, "Sec-Websocket-Key": false, "Last-Event-Id": false,
		"Accept": false, "Traceparent": false, "X-Forwarded-For": false, "User-Agent": false, "Mcp-Protocol-Version": false,
	} {
		if got := redact.Credential(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// FuzzText looks for a URL's password in its shown text.
func FuzzText(f *testing.F) {
	f.Add("http", "user", "hunter2", "@host/mcp")
	f.Add("nats", "", "p%40ss%2Fword", "@h1,h2:4222?x=y")
	f.Add("redis+sentinel", "u", "a/b?c#d@e", "@[::1")
	f.Add("0", "0", "00 000", "@@")
	f.Fuzz(func(t *testing.T, scheme, user, password, rest string) {
		if len(password) < 6 || strings.Contains(scheme, ":") || strings.ContainsAny(user, ":@/?#") || strings.Contains(rest, password) ||
			strings.ContainsAny(password, "@:,/?#") || password == redact.Mark || strings.Contains(scheme+user, password) {
			return
		}
		raw := scheme + "://" + user + ":" + password + "@" + rest
		if got := redact.Of([]string{raw}).Text("of " + password + " in " + raw); strings.Contains(got, password) {
			t.Errorf("%q: %q", raw, got)
		}
		if got := redact.URL(raw); strings.Contains(got, password) {
			t.Errorf("%q: URL %q", raw, got)
		}
	})
}

// A text that is not a URL is shown unchanged, except for parts that may be secrets.
func TestWritten(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"x": "x", "": "", "x y": "x y", "localhost:8080/mcp": "localhost:8080/mcp", "http ://x": "http ://x", "//h/p": "//h/p", "http://": "http://",
		"${URL}": "${URL}", "${BASE}/mcp": "${BASE}/mcp", "{env:URL}": "{env:URL}", "@scope/name": "@scope/name", "x?": "x?",
		"ftp://h/p":                     "ftp://h/p",
		"user:s3cret@host/mcp":          "***@host/mcp",
		"s3cret@host":                   "***@host",
		"http:user:s3cret@host":         "***@host",
		"http:/user:s3cret@host":        "http:/***@host",
		"ftp://u:s3cret@h/p?q=s3cret":   "ftp://***@h/p?***",
		"http://u:a@s3cret@h":           "http://***@h",
		"http://u:a?s3cret@h":           "http://***@h",
		"http://u:a#s3cret@h/p":         "http://***@h/p",
		"h.example/mcp?api_key=s3cret":  "h.example/mcp?***",
		"h.example/mcp?s3cret":          "h.example/mcp?***",
		"localhost/mcp#s3cret":          "localhost/mcp#***",
		"127.0.0.1:80/mcp":              "127.0.0.1:80/mcp",
		"SEKRET not a url":              "***",
		"SEKRET":                        "***",
		"s3cret/with/slashes+and=":      "***",
		"SG.s3cret.s3cret":              "***",
		"http://h/p SEKRET":             "http://h/p ***",
		"${URL} SEKRET":                 "${URL} ***",
		"hunter2@":                      "***@",
		"http:/x?k=s3cret":              "http:/x?***",
		"http://h:port/p?k=${KEY}":      "http://h:port/p?***",
		"${URL:-x?k=s3cret}":            "${URL:-***}",
		"${URL:-s3cret}/p":              "${URL:-***}/p",
		"${A:-${B}s3cret}/p":            "${A:-***}/p",
		"ftp://h/s3crets3crets3crets3c": "ftp://h/***",
		"sk-s3crets3cret":               "***",
		"token=s3cret":                  "***",
	} {
		if got := redact.Written(raw); got != want {
			t.Errorf("%q is shown as %q, want %q", raw, got, want)
		}
	}
}
