package server_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/server"
)

// publicly wraps the handler so that requests seem to come in on an address that is not loopback.
func publicly(s *http.Server) {
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 80}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr)))
	})
}

// requestsOf returns a request for each entry point, with the status of its answer if it is admitted.
func requestsOf() map[*crafted]int {
	return map[*crafted]int{
		{body: callAs(`"d"`, "steps", `{"key":"entry"}`)}: 200,
		{method: "GET"}:                          200,
		{method: "OPTIONS"}:                      204,
		{method: "PUT"}:                          405,
		{method: "GET", target: "/mcp?stream=x"}: 404,
		{method: "GET", target: "/sse"}:          200,
		{method: "POST", target: "/messages?sessionId=x", body: `{}`}:                    404,
		{method: "DELETE", head: map[string]string{"Mcp-Session-Id": "Mcp-Session-Id:"}}: 400,
		{method: "GET", head: map[string]string{
			"Connection": "Connection: Upgrade", "Upgrade": "Upgrade: websocket",
			"Sec-WebSocket-Key":     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
			"Sec-WebSocket-Version": "Sec-WebSocket-Version: 13",
		}}: 101,
	}
}

// admits checks whether all entry points let in a request with a Host and an Origin.
func (p *peer) admits(t *testing.T, host, origin string, ok bool) {
	t.Helper()
	before := p.n.runs("entry")
	for c, want := range requestsOf() {
		head := map[string]string{"Host": "Host: " + host, "Origin": origin}
		for name, line := range c.head {
			head[name] = line
		}
		what := fmt.Sprintf("%s %s, Host %q, %q", c.method, c.target, host, origin)
		w := p.craft(crafted{method: c.method, target: c.target, body: c.body, head: head})
		got := w.head()
		if ok {
			if got.StatusCode != want {
				t.Errorf("%s: %d, want %d", what, got.StatusCode, want)
			}
			if c.method == "" {
				w.all() // then the request's id is free, and the tool has run
			}
			w.c.Close()
			continue
		}
		refused(t, what, w.all(), 403, codeInvalid, "is not allowed")
		if got.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: a script may read the refusal", what)
		}
	}
	if !ok && p.n.runs("entry") != before {
		t.Errorf("Host %q, %q: a call ran that was refused", host, origin)
	}
}

// TestHost is DNS rebinding: on a loopback address, only requests with a Host of this machine are
// served, at any entry point.
func TestHost(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	_, port, _ := net.SplitHostPort(n.addr)
	for host, ok := range map[string]bool{
		n.addr:                         true,
		"127.0.0.1":                    true,
		"127.8.9.1:80":                 true,
		"localhost":                    true,
		"localhost:" + port:            true,
		"tools.localhost:" + port:      true,
		"[::1]:" + port:                true,
		"[::1]":                        true,
		"":                             false,
		"evil.example":                 false,
		"evil.example:" + port:         false,
		"localhost.evil.example":       false,
		"evillocalhost":                false,
		"127.0.0.1.evil.example":       false,
		"127.0.0.1.evil.example:80":    false,
		"0.0.0.0:" + port:              false,
		"[::]:" + port:                 false,
		"169.254.169.254":              false,
		"10.0.0.1:" + port:             false,
		"2130706433":                   false,
		"[::ffff:203.0.113.7]:" + port: false,
	} {
		p.admits(t, host, "", ok)
	}
	p.admits(t, "evil.example:"+port, "Origin: http://evil.example:"+port, false)
	p.works("foreign hosts")

	n = newNode(t, config{server: server.Options{AllowedHosts: []string{"mcp.Example", "other.example:81"}}})
	p = n.connect("2025-11-25", nil)
	for host, ok := range map[string]bool{
		"mcp.example": true, "MCP.example:8080": true, "Other.example:81": true, n.addr: true,
		"other.example:82": false, "evil.mcp.example": false, "mcp.example.evil.example": false,
	} {
		p.admits(t, host, "", ok)
	}
	n = newNode(t, config{server: server.Options{AllowedHosts: []string{"*"}}})
	n.connect("2025-11-25", nil).admits(t, "any.example", "", true)

	// On other addresses any Host is served, unless AllowedHosts is set.
	n = newNode(t, config{http: publicly})
	n.connect("2025-11-25", nil).admits(t, "any.example", "", true)
	n = newNode(t, config{http: publicly, server: server.Options{AllowedHosts: []string{"mcp.example", "127.0.0.1"}}})
	p = n.connect("2025-11-25", nil)
	p.admits(t, "mcp.example:80", "", true)
	p.admits(t, "any.example", "", false)
}

// TestOrigin has requests of web pages: pages that are not allowed are refused (2025-11-25,
// Transports, "Security Warning").
func TestOrigin(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	for origin, ok := range map[string]bool{
		"":                                           true, // no browser
		"Origin: http://localhost:5173":              true,
		"Origin: https://127.0.0.1":                  true,
		"Origin: http://[::1]:3000":                  true,
		"Origin: http://" + n.addr:                   true,
		"Origin:":                                    false,
		"Origin: null":                               false,
		"Origin: file://":                            false,
		"Origin: https://evil.example":               false,
		"Origin: http://localhost.evil.example":      false,
		"Origin: http://localhost@evil.example":      false,
		"Origin: https://evil.example/localhost":     false,
		"Origin: chrome-extension://localhostevil":   false,
		"Origin: localhost":                          false,
		"Origin: chrome-extension://localhost":       false,
		"Origin: http://10.0.0.1:5173":               false,
		"Origin: http://localhost, https://evil":     false,
		"Origin: http://localhost\r\nOrigin: null":   false,
		"Origin: %zz":                                false,
		"Origin: https://evil.example:443#localhost": false,
	} {
		p.admits(t, n.addr, origin, ok)
	}
	p.works("foreign origins")

	allow := func(origins ...string) *peer {
		return newNode(t, config{server: server.Options{AllowedOrigins: origins}}).connect("2025-11-25", nil)
	}
	p = allow("HTTPS://app.Example", "https://ports.example:443", "http://ports.example:80/", "null")
	for origin, ok := range map[string]bool{
		"https://app.example": true, "https://APP.example": true, "null": true, "http://localhost": true,
		"https://app.example:443": true, "https://ports.example": true, "http://ports.example": true,
		"https://app.example\r\nSec-Fetch-Site: cross-site": true, "http://ports.example:443": false,
		"https://app.example:444": false, "http://app.example": false, "https://sub.app.example": false,
		"https://app.example.evil.example": false, "https://evil.example": false,
	} {
		p.admits(t, p.n.addr, "Origin: "+origin, ok)
	}
	p = allow("*")
	p.admits(t, p.n.addr, "Origin: https://any.example", true)
	p.admits(t, p.n.addr, "Origin: null", true)
	p.admits(t, "evil.example", "Origin: https://any.example", false) // AllowedOrigins does not concern hosts

	// Away from loopback, a page of this machine is as foreign as any other. A page of the
	// server's own host is admitted only if the host is in AllowedHosts or is an address: another
	// name may have been pointed here by its owner.
	p = newNode(t, config{http: publicly, server: server.Options{AllowedHosts: []string{"mcp.example", "203.0.113.7", "127.0.0.1"}}}).
		connect("2025-11-25", nil)
	for origin, ok := range map[string]bool{
		"https://mcp.example": true, // TLS may end at a proxy
		"http://mcp.example":  true, "https://mcp.example:443": true, "http://mcp.example:80": true,
		"https://mcp.example:80": false, "http://mcp.example:443": false, "https://mcp.example:8443": false,
		"ftp://mcp.example": false, "chrome-extension://mcp.example": false,
	} {
		p.admits(t, "mcp.example", "Origin: "+origin, ok)
	}
	p.admits(t, "mcp.example:443", "Origin: https://mcp.example", true)
	p.admits(t, "mcp.example:443", "Origin: http://mcp.example", false)
	// A browser that sends Sec-Fetch-Site knows whether page and server have the same scheme.
	p.admits(t, "mcp.example", "Origin: https://mcp.example\r\nSec-Fetch-Site: same-origin", true)
	p.admits(t, "mcp.example", "Origin: http://mcp.example\r\nSec-Fetch-Site: cross-site", false)
	p.admits(t, "203.0.113.7:80", "Origin: http://203.0.113.7:80", true)
	p.admits(t, "mcp.example", "Origin: http://localhost", false)
	p.admits(t, "mcp.example", "Origin: https://203.0.113.7", false)
	p = newNode(t, config{http: publicly}).connect("2025-11-25", nil)
	p.admits(t, "203.0.113.7:80", "Origin: http://203.0.113.7:80", true)
	p.admits(t, "rebound.example", "Origin: http://rebound.example", false)
}

// A page of another site can send a GET without an Origin: a fetch in no-cors mode, an image, a
// frame, a link. The browser's Sec-Fetch-Site tells it, and the server refuses it.
func TestFetchSite(t *testing.T) {
	t.Parallel()
	site := func(p *peer, host string, values map[string]bool) {
		t.Helper()
		for value, ok := range values {
			p.admits(t, host, "Sec-Fetch-Site: "+value, ok)
		}
	}
	foreign := map[string]bool{
		"cross-site": false, "same-site": false, "": false, "other": false,
		"same-origin\r\nSec-Fetch-Site: cross-site": false,
		"none": true, // the user typed it
	}
	p := newNode(t, config{}).connect("2025-11-25", nil)
	site(p, p.n.addr, foreign)
	site(p, p.n.addr, map[string]bool{"same-origin": true})
	p = newNode(t, config{server: server.Options{AllowedOrigins: []string{"https://app.example"}}}).connect("2025-11-25", nil)
	site(p, p.n.addr, foreign) // Sec-Fetch-Site does not tell which site
	p = newNode(t, config{server: server.Options{AllowedOrigins: []string{"*"}}}).connect("2025-11-25", nil)
	site(p, p.n.addr, map[string]bool{"cross-site": true, "same-site": true})

	// On other addresses, a page of the same origin may have a name that its owner pointed here.
	p = newNode(t, config{http: publicly}).connect("2025-11-25", nil)
	site(p, "any.example", foreign)
	site(p, "any.example", map[string]bool{"same-origin": false})
	site(p, "203.0.113.7:80", map[string]bool{"same-origin": true})
	p = newNode(t, config{http: publicly, server: server.Options{AllowedHosts: []string{"mcp.example", "127.0.0.1"}}}).connect("2025-11-25", nil)
	site(p, "mcp.example", map[string]bool{"same-origin": true, "cross-site": false})
	p = newNode(t, config{http: publicly, server: server.Options{AllowedOrigins: []string{"https://mcp.example"}}}).connect("2025-11-25", nil)
	site(p, "mcp.example:443", map[string]bool{"same-origin": true, "cross-site": false})
	site(p, "any.example", map[string]bool{"same-origin": false})
}

// TestCORS is failure 14: a preflight and all other responses, errors too, have the headers that
// a browser's script needs.
func TestCORS(t *testing.T) {
	t.Parallel()
	const app = "https://app.example"
	n := newNode(t, config{server: server.Options{AllowedOrigins: []string{app}}})
	p := n.connect("2025-11-25", nil)
	preflight := func(target, origin, ask string) reply {
		return p.craft(crafted{method: "OPTIONS", target: target, head: map[string]string{
			"Origin": "Origin: " + origin, "Mcp-Session-Id": "", "Accept": "", "Content-Type": "",
			"Access-Control-Request-Method":  "Access-Control-Request-Method: POST",
			"Access-Control-Request-Headers": "Access-Control-Request-Headers: " + ask,
		}}).all()
	}
	lists := func(r reply, header string, names ...string) {
		t.Helper()
		list := ", " + strings.ToLower(r.header.Get(header)) + ","
		for _, name := range names {
			if !strings.Contains(list, ", "+strings.ToLower(name)+",") {
				t.Errorf("%s does not list %s: %s", header, name, list)
			}
		}
	}
	needed := []string{
		"accept", "authorization", "content-type", "last-event-id", "mcp-session-id",
		"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-path",
		"x-api-key", "baggage", "traceparent", "tracestate", "x-requested-with", "x-custom.header_1", "ngrok-skip-browser-warning",
	}
	for _, target := range []string{"/mcp", "/mcp?stream=x", "/sse", "/messages?sessionId=x"} {
		r := preflight(target, app, strings.Join(needed, ",")+", X-Bad Name,x-bad;name,x-bad\"name, ,*,")
		if r.status != 204 || len(r.body) > 0 || r.header.Get("Access-Control-Allow-Origin") != app || r.header.Get("Vary") != "Origin" {
			t.Errorf("preflight of %s: %d %v", target, r.status, r.header)
		}
		lists(r, "Access-Control-Allow-Headers", needed...)
		lists(r, "Access-Control-Allow-Methods", "GET", "POST")
		if got := strings.Contains(r.header.Get("Access-Control-Allow-Methods"), "DELETE"); got != strings.HasPrefix(target, "/mcp") {
			t.Errorf("preflight of %s allows DELETE: %v", target, got)
		}
		if got := r.header.Get("Access-Control-Allow-Headers"); strings.Contains(got, "x-bad") || strings.ContainsAny(got, "\";") {
			t.Errorf("what is no name is allowed: %s", got)
		}
		r = preflight(target, app, strings.Repeat(strings.Repeat("x", 30)+",", 10)+strings.Repeat("y,", 1000))
		if got := r.header.Get("Access-Control-Allow-Headers"); r.status != 204 || got != strings.Repeat("x", 30)+", y" {
			t.Errorf("the same names many times: %d %s", r.status, got)
		}
		var many []string
		for i := range 2000 {
			many = append(many, fmt.Sprintf("x-%d", i))
		}
		r = preflight(target, app, strings.Join(many, ","))
		if got := r.header.Get("Access-Control-Allow-Headers"); r.status != 204 || strings.Count(got, ",") != 99 || len(got) > 4<<10 {
			t.Errorf("2000 names: %d, %d bytes, %d names", r.status, len(got), strings.Count(got, ",")+1)
		}
		r = preflight(target, "https://evil.example", "content-type")
		refused(t, "a foreign preflight", r, 403, codeInvalid, "Origin")
		for name := range r.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("a foreign preflight is told %s", name)
			}
		}
	}
	lists(preflight("/mcp", app, "x evil"), "Access-Control-Allow-Headers", "mcp-session-id", "last-event-id")

	origin := map[string]string{"Origin": "Origin: " + app}
	with := func(name, line string) map[string]string {
		return map[string]string{"Origin": "Origin: " + app, name: line}
	}
	for what, tc := range map[string]struct {
		crafted
		status int
	}{
		"initialize":     {crafted{head: with("Mcp-Session-Id", ""), body: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`}, 200},
		"JSON":           {crafted{head: origin, body: call("echo", `{}`)}, 200},
		"a stream":       {crafted{head: origin, body: callAs("1", "steps", `{"n":1}`)}, 200},
		"no answer":      {crafted{head: origin, body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}, 202},
		"listening":      {crafted{method: "GET", head: origin}, 200},
		"bad JSON":       {crafted{head: origin, body: "{"}, 400},
		"bad Accept":     {crafted{head: with("Accept", "Accept: text/html"), body: "{}"}, 406},
		"bad type":       {crafted{head: with("Content-Type", ""), body: "{}"}, 415},
		"too much":       {crafted{head: with("Content-Length", "Content-Length: 99999999"), raw: true}, 413},
		"no session":     {crafted{method: "GET", head: with("Mcp-Session-Id", "Mcp-Session-Id: x")}, 404},
		"bad cursor":     {crafted{method: "GET", head: with("Last-Event-ID", "Last-Event-ID: x")}, 400},
		"bad method":     {crafted{method: "PUT", head: origin}, 405},
		"2024-11-05":     {crafted{method: "GET", target: "/sse", head: origin}, 200},
		"2024-11-05 404": {crafted{target: "/messages?sessionId=x", head: origin, body: "{}"}, 404},
	} {
		w := p.craft(tc.crafted)
		head := w.head()
		r := reply{status: head.StatusCode, header: head.Header}
		if r.status != tc.status || r.header.Get("Access-Control-Allow-Origin") != app || r.header.Get("Vary") != "Origin" {
			t.Errorf("%s: %d, want %d; %v", what, r.status, tc.status, r.header)
		}
		lists(r, "Access-Control-Expose-Headers", "Mcp-Session-Id", "MCP-Protocol-Version", "Link", "Retry-After", "WWW-Authenticate")
		if what == "initialize" && r.header.Get("Mcp-Session-Id") == "" {
			t.Error("no session id")
		}
		w.c.Close()
	}
	if r := p.post(call("echo", `{}`)); r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("CORS for no browser: %v", r.header)
	}
}
