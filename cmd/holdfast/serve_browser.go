package main

import (
	"fmt"
	"html"
	"net/http"
	"strings"
)

// inBrowser answers a person who opens the address of the server, or of an endpoint, in a browser: with a page about the address
// and its use. MCP clients ask for JSON and events, and pass. at is the path of the endpoint that the page at "/" shows.
func inBrowser(served func(path string) bool, at string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accept := strings.Join(r.Header.Values("Accept"), ",")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead,
			!strings.Contains(accept, "text/html") || strings.Contains(accept, "text/event-stream"),
			r.Header.Get("Mcp-Session-Id") != "" || r.Header.Get("Last-Event-ID") != "",
			r.URL.Path != "/" && !served(r.URL.Path):
			next.ServeHTTP(w, r)
			return
		}
		path := r.URL.Path
		if !served(path) {
			path = at
		}
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		address := html.EscapeString(scheme + "://" + r.Host + path)
		head := w.Header()
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Cache-Control", "no-store")
		_, _ = fmt.Fprintf(w, browserPage, address, address, address) // a browser that has gone does not see it
	})
}

const browserPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>An MCP server</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em; color-scheme: light dark }
pre { overflow-x: auto; padding: .7em; border: 1px solid #8888; border-radius: 4px }
</style>
<h1>An MCP server</h1>
<p>This address is for AI applications that speak the Model Context Protocol, not for browsers. Give it to one:</p>
<pre>%s</pre>
<p>On the command line, <code>tools</code> lists what the server has, and <code>install</code> adds it to an application on this machine (cursor, vscode, claude-code and others):</p>
<pre>holdfast tools %s
holdfast install cursor %s</pre>
</html>
`
