package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// browser makes the test binary a browser with a user that agrees to each page. Its arguments are a file and a URL, which it adds
// to the file and opens.
func browser(args []string) {
	f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, args[1])
		_ = f.Close()
	}
	var resp *http.Response
	if err == nil {
		resp, err = http.Get(args[1]) //nolint:noctx // as browsers do
	}
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if err != nil {
		os.Exit(1)
	}
}

// A wantsLogin is a server that demands a login, made with the official TypeScript SDK, and a user with a browser.
type wantsLogin struct {
	t      *testing.T
	url    string
	opened string // a file with the URLs that the browser has opened
	env    []string
}

func newWantsLogin(t *testing.T, settings string) *wantsLogin {
	t.Helper()
	dir := npm(t, sdk1)
	mcptest.Check(t, build())
	self := mcptest.Must(os.Executable())(t)
	cmd := exec.Command("node", "clients/oauthserver.mjs", settings)
	cmd.Env = append(os.Environ(), "HOLDFAST_NPM="+dir)
	listening := mcptest.Start(t, cmd).Find(regexp.MustCompile(`listening url=(.+)$`))
	if listening == nil {
		t.Fatal("the server did not start")
	}
	w := &wantsLogin{t: t, url: listening[1], opened: filepath.Join(t.TempDir(), "opened")}
	w.env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), fmt.Sprintf("BROWSER=%s browser %s", self, w.opened))
	return w
}

// run runs holdfast, and returns its stdout and, if it fails, its stderr.
func (w *wantsLogin) run(args ...string) (string, string, error) {
	w.t.Helper()
	cmd := exec.CommandContext(bounded(w.t, time.Minute), built, args...)
	cmd.Env = w.env
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), string(exit.Stderr), err
	}
	return string(out), "", err
}

// call calls the tool with holdfast call.
func (w *wantsLogin) call(text string) {
	w.t.Helper()
	if out, said, err := w.run("call", w.url, "echo", "--arg", "text="+text); strings.TrimSpace(out) != text || err != nil {
		w.t.Fatalf("call: %q, %v\n%s", out, err, said)
	}
}

// control makes a request to the server's interface for tests.
func (w *wantsLogin) control(method, what string) map[string]int {
	w.t.Helper()
	r := mcptest.Must(mcptest.Exchange(w.t.Context(), method, strings.TrimSuffix(w.url, "/mcp")+"/test/"+what, ""))(w.t)
	counts := map[string]int{}
	if method == http.MethodGet {
		mcptest.Check(w.t, r.Decode(&counts))
	}
	return counts
}

func (w *wantsLogin) want(windows int, counts map[string]int) {
	w.t.Helper()
	opened, _ := os.ReadFile(w.opened) // an error: no window was opened
	if n := strings.Count(string(opened), "\n"); n != windows {
		w.t.Errorf("%d windows of a browser, want %d", n, windows)
	}
	got := w.control(http.MethodGet, "counts")
	for name, n := range counts {
		if got[name] != n {
			w.t.Errorf("%s: %d, want %d: %v", name, got[name], n, got)
		}
	}
}

// host starts holdfast connect, and begins a session over it.
func (w *wantsLogin) host(args ...string) (*officialClient, error) {
	cmd := exec.Command(built, append([]string{"connect", w.url}, args...)...)
	cmd.Env = w.env
	return connectOfficial(bounded(w.t, time.Minute), &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}, "2025-11-25", nil)
}

// From no token to a result: the first command logs in by itself, and the others use its login. An expired token is replaced
// without a browser. When the tokens are revoked, the user gets a message and logs in again. After a logout, calls are refused.
func TestLoginCommands(t *testing.T) {
	t.Parallel()
	w := newWantsLogin(t, `{}`)
	if out, said, err := w.run("tools", w.url); !strings.Contains(out, "echo") || err != nil {
		t.Fatalf("tools: %q, %v\n%s", out, err, said)
	}
	w.call("one")
	w.want(1, map[string]int{"registered": 1, "codes": 1, "refreshed": 0})
	w.control(http.MethodPost, "expire")
	w.call("two")
	w.want(1, map[string]int{"codes": 1, "refreshed": 1})
	w.control(http.MethodPost, "revoke")
	cmd := exec.Command(built, "call", w.url, "echo", "--arg", "text=three")
	cmd.Env = w.env
	if all, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(all), "has ended") || !strings.Contains(string(all), "three") {
		t.Errorf("%v\n%s", err, all)
	}
	w.want(2, map[string]int{"registered": 1, "codes": 2})
	if out, said, err := w.run("login", w.url); !strings.Contains(out, "Logged in at 127.0.0.1") || err != nil {
		t.Errorf("login: %q, %v\n%s", out, err, said)
	}
	w.want(3, nil)
	for _, want := range []string{"Logged out", "no login"} {
		if out, said, err := w.run("logout", w.url); !strings.Contains(out, want) || err != nil {
			t.Errorf("logout: %q, %v\n%s", out, err, said)
		}
	}
	if out, said, err := w.run("call", w.url, "echo", "--arg", "text=x", "--login", "none"); err == nil || !strings.Contains(said, "401") {
		t.Errorf("without a login: %q, %v\n%s", out, err, said)
	}
	w.want(3, nil)
}

// Two hosts that start at the same time open one browser window, and replace an expired token once.
func TestLoginTwoHosts(t *testing.T) {
	t.Parallel()
	w := newWantsLogin(t, `{}`)
	var sessions [2]*officialClient
	both := func(do func(i int) error) {
		var work sync.WaitGroup
		for i := range sessions {
			work.Go(func() {
				if err := do(i); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	both(func(i int) (err error) {
		sessions[i], err = w.host()
		return err
	})
	for _, s := range sessions {
		defer s.Close()
	}
	call := func(i int) error {
		r, err := sessions[i].CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hi"}})
		if err != nil || r.IsError {
			return fmt.Errorf("call: %v, %w", r, err)
		}
		return nil
	}
	both(call)
	w.want(1, map[string]int{"registered": 1, "codes": 1, "refreshed": 0, "calls": 2})
	w.control(http.MethodPost, "expire")
	both(call)
	w.want(1, map[string]int{"codes": 1, "refreshed": 1, "calls": 4})
}

// Logs in at the authorization server of the go-sdk's own tests, and calls a tool of the go-sdk's handler behind its middleware: with
// registration, with a registered client and with a client metadata document. After the token has expired no browser is opened.
func TestLoginGoSDK(t *testing.T) {
	peersOnly(t, "it builds a test of the go-sdk")
	t.Parallel()
	mcptest.Check(t, build())
	self := mcptest.Must(os.Executable())(t)
	copied, modfile := copyGoSDK(t)
	mcptest.Check(t, os.WriteFile(filepath.Join(copied, "internal", "oauthtest", "login_test.go"), []byte(goSDKLogin), 0o600))
	cmd := exec.Command("go", "test", "-modfile", modfile, "-mod=mod", "-timeout", "5m", "-run", "TestLogin", "-v", "github.com/modelcontextprotocol/go-sdk/internal/oauthtest")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "HOLDFAST_PROGRAM="+built, "HOLDFAST_BROWSER="+self+" browser")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "--- PASS: TestLogin/") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
}

// goSDKLogin is the source of a test that is added to the copy of the go-sdk.
const goSDKLogin = `package oauthtest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/internal/oauthtest"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

func TestLogin(t *testing.T) {
	const callback, document = "http://127.0.0.1:18976/callback", "https://example.com/client.json"
	known := map[string]oauthtest.ClientInfo{
		"known":  {Secret: "secret", RedirectURIs: []string{callback}},
		document: {RedirectURIs: []string{callback}},
	}
	for name, tc := range map[string]struct {
		config oauthtest.RegistrationConfig
		flags  []string
		env    string
	}{
		"registration":        {config: oauthtest.RegistrationConfig{DynamicClientRegistrationEnabled: true}},
		"a registered client": {oauthtest.RegistrationConfig{PreregisteredClients: known}, []string{"--client-id", "known", "--callback", callback}, "HOLDFAST_CLIENT_SECRET=secret"},
		"a document":          {config: oauthtest.RegistrationConfig{PreregisteredClients: known, ClientIDMetadataDocumentSupported: true}, flags: []string{"--client-metadata", document, "--callback", callback}},
	} {
		t.Run(name, func(t *testing.T) {
			as := oauthtest.NewFakeAuthorizationServer(oauthtest.Config{RegistrationConfig: &tc.config, IssueRefreshToken: true, AccessTokenTTL: 1})
			as.Start(t)
			server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello"}}}, nil, nil
			})
			mux := http.NewServeMux()
			front := httptest.NewServer(mux)
			defer front.Close()
			metadata := front.URL + "/.well-known/oauth-protected-resource/mcp"
			mux.Handle("/.well-known/oauth-protected-resource/mcp", auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
				Resource: front.URL + "/mcp", AuthorizationServers: []string{as.URL()},
			}))
			verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
				if !strings.HasPrefix(token, "test_access_token") {
					return nil, auth.ErrInvalidToken
				}
				return &auth.TokenInfo{Expiration: time.Now().Add(time.Hour), UserID: "u"}, nil
			}
			mux.Handle("/mcp", auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: metadata})(
				mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)))
			dir := t.TempDir()
			opened := filepath.Join(dir, "opened")
			for range 2 {
				cmd := exec.Command(os.Getenv("HOLDFAST_PROGRAM"), append([]string{"call", front.URL + "/mcp", "hello"}, tc.flags...)...)
				cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir, "BROWSER="+os.Getenv("HOLDFAST_BROWSER")+" "+opened, tc.env)
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), "hello") {
					t.Fatalf("%v: %s", err, out)
				}
				time.Sleep(1100 * time.Millisecond) // the token expires
			}
			if text, err := os.ReadFile(opened); err != nil || strings.Count(string(text), "\n") != 1 {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}
`
