package bridge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/client"
	"holdfast/internal/auth/authtest"
	"holdfast/internal/login"
	"holdfast/internal/mcptest"
)

// A gate is a server that requires a login, in front of another server. The test decides when the user agrees.
type gate struct {
	url   string
	last  atomic.Value // the last token that was taken
	over  atomic.Value // a token that is no longer valid
	shown chan string  // URLs that were opened in a browser
}

func newGate(t *testing.T, behind string) *gate {
	t.Helper()
	g := &gate{shown: make(chan string, 10)}
	to := mcptest.Must(url.Parse(behind))(t)
	pass := mcptest.Early(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	issuer := authtest.New(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/oauth-protected-resource", func(w http.ResponseWriter, _ *http.Request) {
		mcptest.JSON(w, fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q]}`, g.url+"/", issuer.URL))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		switch {
		case strings.HasPrefix(r.URL.Path, "/.well-known/"):
			http.NotFound(w, r)
		case token == "" || token == g.over.Load():
			http.Error(w, "who?", http.StatusUnauthorized)
		default:
			g.last.Store(token)
			pass.ServeHTTP(w, r)
		}
	})
	g.url = mcptest.Serve(t, mux)
	return g
}

// expire ends the login.
func (g *gate) expire() { g.over.Store(g.last.Load()) }

// host starts a bridge that logs in.
func (g *gate) host(t *testing.T) *testHost {
	t.Helper()
	source, err := login.New(g.url+"/", &login.Options{
		Open: func(to string) error { g.shown <- to; return nil }, Tell: func(string) {}, Command: "holdfast login",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	return newHostWith(t, g.url+"/", &Options{Transport: "auto", TaskAfter: taskSoon, Client: client.Options{Auth: source}})
}

// agree plays the user who logs in.
func (g *gate) agree(t *testing.T) {
	t.Helper()
	resp, err := http.Get(<-g.shown) //nolint:noctx // as browsers do
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

// A host with a call that waits for a login is told so, and gets the call's result afterwards.
func TestWaitsForLogin(t *testing.T) {
	t.Parallel()
	url, _ := countServer(t)
	g := newGate(t, url)
	c := g.host(t)
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"caller","version":"1"}}}`)
	if line := c.read(`needs a login`); !strings.Contains(line, `"method":"notifications/message"`) {
		t.Errorf("it is told %s", line)
	}
	g.agree(t)
	c.read(`"id":0,`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.count(5, 1)
	c.read(`"id":5,`)
	g.expire() // the login is no longer valid
	c.count(1, 2)
	if line := c.read(`needs a login`); !strings.Contains(line, `"progressToken":1,"progress":0.000001,`) {
		t.Errorf("it is told %s", line)
	}
	g.agree(t)
	c.read(`"progress":2,`)
	c.read(`"id":1,`)
}

// The same holds for a modern host, also if the bridge first asks the server for its era.
func TestModernWaitsForLogin(t *testing.T) {
	t.Parallel()
	url, _ := countServer(t)
	g := newGate(t, url)
	c := g.host(t)
	c.begin(7, "tools/call", `"name":"count","arguments":{"to":2,"delay_ms":20}`, false)
	if line := c.read(`needs a login`); !strings.Contains(line, `"progressToken":7`) {
		t.Errorf("it is told %s", line)
	}
	g.agree(t)
	c.read(`"id":7,`)
}
