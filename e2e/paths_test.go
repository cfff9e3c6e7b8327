package e2e

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// passing returns a proxy that passes all requests to the server of a URL.
func passing(t *testing.T, to string) http.Handler {
	t.Helper()
	at := mcptest.Must(url.Parse(to))(t)
	at.Path = ""
	return mcptest.Early(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) }})
}

// stripping returns the URL of a proxy that serves the server at to under a path prefix, and removes the prefix.
func stripping(t *testing.T, to, prefix string) string {
	t.Helper()
	return mcptest.Serve(t, http.StripPrefix(prefix, passing(t, to))) + prefix
}

// TestEndpointEvent is FAILURES 29: clients of revision 2024-11-05 find the URL to which they POST, by the rules of the
// official SDKs, behind a proxy that removes a prefix, with a slash at the end, and for each server of a file.
func TestEndpointEvent(t *testing.T) {
	t.Parallel()
	resolved := func(get *url.URL, endpoint string) string { // TypeScript, Python, Go, C#: RFC 3986
		u := mcptest.Must(get.Parse(endpoint))(t)
		return u.String()
	}
	appended := func(get *url.URL, endpoint string) string { // Java: the server's URL has no path
		return get.Scheme + "://" + get.Host + endpoint
	}
	beside := func(get *url.URL, endpoint string) string { // Kotlin: relative to the URL's directory
		dir := get.String()[:strings.LastIndexByte(get.String(), '/')]
		return dir + "/" + strings.TrimPrefix(endpoint, "/")
	}
	one := serve(t, "--demo")
	many := serve(t, "--config", fileOf(t, fmt.Sprintf(`{"mcpServers":{"one":{"type":"http","url":%q}}}`, serve(t, "--demo").URL)))
	base := strings.TrimSuffix(one.URL, "/mcp")
	fileBase := strings.TrimSuffix(many.URL, "/one/mcp")
	for _, c := range []struct {
		what, get, agent string
		to               func(get *url.URL, endpoint string) string
	}{
		{"RFC 3986", base + "/sse", "node", resolved},
		{"RFC 3986, a slash", base + "/sse/", "node", resolved},
		{"RFC 3986, a query", base + "/sse?key=a/b", "node", resolved},
		{"RFC 3986, a prefix", stripping(t, base, "/api") + "/sse", "python-httpx/0.28", resolved},
		{"RFC 3986, a long prefix", stripping(t, base, "/a/b/c") + "/sse", "Go-http-client/1.1", resolved},
		{"RFC 3986, a prefix and a slash", stripping(t, base, "/api") + "/sse/", "node", resolved},
		{"RFC 3986, a server of a file", fileBase + "/one/sse", "node", resolved},
		{"RFC 3986, a server of a file with a slash", fileBase + "/one/sse/", "node", resolved},
		{"RFC 3986, a server of a file and a prefix", stripping(t, fileBase, "/api") + "/one/sse", "node", resolved},
		{"Java", base + "/sse", "Java-http-client/21.0.2", appended},
		{"Java, of Reactor", base + "/sse", "ReactorNetty/1.2.3", appended},
		{"Java, a server of a file", fileBase + "/one/sse", "Java-http-client/21.0.2", appended},
		{"Java, resolving", base + "/sse", "Java-http-client/21.0.2", resolved},
		{"Kotlin", base + "/sse", "ktor-client", beside},
		{"Kotlin, a prefix", stripping(t, base, "/api") + "/sse", "ktor-client", beside},
	} {
		events := (&mcptest.Client{URL: c.get}).Stream(t, http.MethodGet, "", "User-Agent", c.agent, "Accept", "text/event-stream")
		endpoint := string(mcptest.Must(events.Next())(t).Data)
		to := c.to(mcptest.Must(url.Parse(c.get))(t), endpoint)
		answer, err := mcptest.Exchange(t.Context(), http.MethodPost, to, strings.Replace(mcptest.Initialize("2024-11-05", "{}"), `"id":0`, `"id":"found"`, 1))
		if answer.Status != http.StatusAccepted {
			t.Errorf("%s: the endpoint %s is %s: %d %s, %v", c.what, endpoint, to, answer.Status, answer.Body, err)
			continue
		}
		if ev := events.Until(t, `"found"`); !strings.Contains(string(ev.Data), `"result"`) {
			t.Errorf("%s: the answer is %s", c.what, ev.Data)
		}
		events.Close()
	}
}

// TestSlash requests endpoints with a slash at the end of the path: they are served as without the slash, and not by a redirect.
func TestSlash(t *testing.T) {
	t.Parallel()
	one := serve(t, "--demo", "--path", "/deep/mcp")
	many := serve(t, "--config", fileOf(t, fmt.Sprintf(`{"mcpServers":{"one":{"type":"http","url":%q},"two":{"type":"http","url":%[1]q,"holdfast":{"path":"/other"}}}}`, one.URL)))
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	oneBase, manyBase := strings.TrimSuffix(one.URL, "/deep/mcp"), strings.TrimSuffix(many.URL, "/one/mcp")
	for at, want := range map[string]int{
		one.URL + "/":              200,
		one.URL + "/?x=1":          200,
		one.URL + "//":             404,
		oneBase + "/":              404,
		oneBase + "/deep/":         404,
		manyBase + "/one/mcp/":     200,
		manyBase + "/other/":       200,
		manyBase + "/other/other/": 404,
	} {
		r := (&mcptest.Client{URL: at, HTTP: client}).Post(t, begins)
		if r.Status != want && (want == 200 || r.Status/100 == 2) || want == 200 && !strings.Contains(r.Body, "serverInfo") {
			t.Errorf("%s: %d %s", at, r.Status, r.Body)
		}
	}
}
