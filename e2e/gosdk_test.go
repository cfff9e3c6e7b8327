package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// notAlike has the go-sdk's own tests that find a difference between the handlers, and the difference. Those that docs/go-sdk.md
// does not mention check texts, members of capabilities, or internals of the go-sdk's handler.
var notAlike = map[string]string{
	"ExampleStreamableHTTPHandler":                              "capabilities name what Holdfast adds",
	"TestSessionHijackingPrevention":                            "404, not 403, for another user's session",
	"TestStreamable405AllowHeader":                              "Allow has OPTIONS",
	"TestStreamableGETWithoutEventStreamAccept":                 "406, not 400",
	"TestStreamableGETWithoutSession":                           "the text of the error",
	"TestStreamableMaxRequestBodyBytes":                         "there is always a limit",
	"TestStreamableMcpHeaderValidation":                         "the text of the error",
	"TestStreamableMcpHeaderValidationErrorFormat":              "the text of the error",
	"TestStreamableMcpHeaderVersionGating":                      "capabilities name what Holdfast adds, and an event has an id and no message",
	"TestStreamableOriginProtection":                            "pages of other origins are refused: AllowedOrigins",
	"TestStreamableServerTransport":                             "capabilities name what Holdfast adds; it answers roots/list for a client that declares no roots",
	"TestStreamableSessionTimeout":                              "it looks into the handler",
	"TestStreamableStateful_DiscoverDoesNotLeakSession":         "the server's session may end shortly after the answer to DELETE",
	"TestStreamableStateful_AcceptsDiscover":                    "server/discover is refused where there is one era",
	"TestStreamableStateful_RejectsNewProtocol_LegacyPlainText": "the media type of the error",
	"TestStreamableStateless":                                   "an error without an id is no message to the go-sdk's decoder",
	"TestStreamableStateless_NewProtocolSession_NoFakeInit":     "the session of a modern client is of 2025-11-25; its requests are of 2026-07-28",
	"TestStreamableStateless_NotificationMetaValidation":        "requestID is refused: it is requestId",
	"TestStreamableSupportedProtocolVersions_Header":            "the revision in the header of initialize is ignored",
	"Test_ExportErrSessionMissing":                              "it looks into the handler",
}

// FAILURES 26: the go-sdk's own tests of its handler and of its client run with Holdfast's handler in its place. The module is
// copied, and its StreamableHTTPHandler passes requests on to Holdfast's.
func TestFailure26OwnTests(t *testing.T) {
	peersOnly(t, "it builds the go-sdk's tests")
	t.Parallel()
	copied, modfile := copyGoSDK(t)
	edit := func(file string, mode os.FileMode, change func(string) string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		_ = os.Remove(file) // the file may be read-only
		mcptest.Check(t, os.WriteFile(file, []byte(change(string(text))), mode))
	}
	insert := func(after, what string) func(string) string {
		return func(text string) string {
			if strings.Count(text, after) != 1 {
				t.Fatalf("the go-sdk has %d times %q", strings.Count(text, after), after)
			}
			return strings.Replace(text, after, after+what, 1)
		}
	}
	handler := filepath.Join(copied, "mcp", "streamable.go")
	edit(handler, 0o600, insert("type StreamableHTTPHandler struct {\n", "\tmoved http.Handler\n"))
	edit(handler, 0o600, insert("\th.opts.Logger = ensureLogger(h.opts.Logger)\n", "\tif Moved != nil {\n\t\th.moved = Moved(getServer, opts)\n\t}\n"))
	edit(handler, 0o600, insert("func (h *StreamableHTTPHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {\n",
		"\tif h.moved != nil {\n\t\th.moved.ServeHTTP(w, req)\n\t\treturn\n\t}\n"))
	edit(filepath.Join(copied, "mcp", "moved.go"), 0o600, func(string) string {
		return "package mcp\n\nimport \"net/http\"\n\nvar Moved func(func(*http.Request) *Server, *StreamableHTTPOptions) http.Handler\n"
	})
	edit(filepath.Join(copied, "mcp", "moved_test.go"), 0o600, func(string) string { return movedHook })
	cmd := exec.Command("go", "test", "-modfile", modfile, "-mod=mod", "-timeout", "5m", "-json", "github.com/modelcontextprotocol/go-sdk/mcp")
	cmd.Dir = ".."
	out, _ := cmd.Output() // an error says that some tests fail
	said, passed, failed := make(map[string]string), 0, make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			continue
		}
		name, _, _ := strings.Cut(event.Test, "/")
		said[name] += event.Output
		switch {
		case event.Test == "" || event.Test != name:
		case event.Action == "pass":
			passed++
		case event.Action == "fail":
			failed[name] = true
		}
	}
	if passed < 250 {
		t.Errorf("only %d tests pass: %s", passed, said[""])
	}
	for name := range failed {
		if notAlike[name] == "" {
			t.Errorf("%s fails:\n%.3000s", name, said[name])
		}
	}
}

// copyGoSDK returns a copy of the go-sdk that the test may change, and a file in the place of go.mod that uses the copy.
func copyGoSDK(t *testing.T) (dir, modfile string) {
	t.Helper()
	from := mcptest.Must(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/go-sdk").Output())(t)
	tmp := t.TempDir()
	dir, modfile = filepath.Join(tmp, "go-sdk"), filepath.Join(tmp, "go.mod")
	mcptest.Check(t, os.CopyFS(dir, os.DirFS(strings.TrimSpace(string(from)))))
	for _, name := range []string{"go.mod", "go.sum"} {
		text := mcptest.Must(os.ReadFile(filepath.Join("..", name)))(t)
		if name == "go.mod" {
			text = append(text, "\nreplace github.com/modelcontextprotocol/go-sdk => "+dir+"\n"...)
		}
		mcptest.Check(t, os.WriteFile(filepath.Join(tmp, name), text, 0o600))
	}
	return dir, modfile
}

// movedHook puts Holdfast's handler in the place of the go-sdk's, with options as in docs/go-sdk.md.
const movedHook = `package mcp_test

import (
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

func init() {
	mcp.Moved = func(getServer func(*http.Request) *mcp.Server, o *mcp.StreamableHTTPOptions) http.Handler {
		ours := &holdfast.Options{Logger: slog.New(slog.DiscardHandler)}
		if o != nil {
			ours.Stateless, ours.SessionTTL, ours.MaxBody = o.Stateless, o.SessionTimeout, o.MaxRequestBodyBytes
			if o.JSONResponse {
				ours.Response = holdfast.ResponseJSON
			}
			if o.DisableLocalhostProtection {
				ours.AllowedHosts = []string{"*"}
			}
		}
		return holdfast.NewHandler(getServer, ours)
	}
}
`
