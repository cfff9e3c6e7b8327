package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A choosing is a client of the table in docs/eras.md: it returns the revision that it speaks with a
// server, or "refused".
type choosing func(t *testing.T, url string) string

// officialChoice returns the go-sdk's client. through is "library:" for a ClientTransport, "connect:" for
// holdfast connect, or "".
func officialChoice(through, revision string) choosing {
	return func(t *testing.T, url string) string {
		t.Helper()
		var transport mcp.Transport = holdfast.NewClientTransport(url, nil)
		if through != "library:" {
			transport = eraTransport(t, through+url, revision)
		}
		ctx := bounded(t, time.Minute)
		s, err := connectOfficial(ctx, transport, revision, nil)
		if err != nil {
			wantReason(t, err.Error())
			return "refused"
		}
		defer s.Close()
		if _, err := s.ListTools(ctx, nil); err != nil {
			t.Errorf("it lists no tools: %v", err)
		}
		return s.InitializeResult().ProtocolVersion
	}
}

// typeScriptChoice returns a TypeScript client.
func typeScriptChoice(sdk int, mode string, tasks bool) choosing {
	return func(t *testing.T, url string) string {
		t.Helper()
		testlong.Only(t, "it starts node")
		npm(t, sdk1, sdk2)
		config := mcptest.Must(json.Marshal(map[string]any{
			"url": url, "sdk": sdk, "mode": mode, "tasks": tasks, "refusable": true, "checks": map[string]eraCheck{"list": {}},
		}))(t)
		var got struct {
			eraSeen
			Error string
		}
		unmarshal(t, run(t, "node", "clients/eras.mjs", string(config)), &got)
		switch {
		case got.Revision == "refused":
			wantReason(t, got.Error)
		case got.Seen["list"] != "yes":
			t.Errorf("it lists no tools: %v", got.Seen)
		}
		return got.Revision
	}
}

// rawChoice makes a modern request without a request before it.
func rawChoice(t *testing.T, url string) string {
	t.Helper()
	r := mcptest.Post(t, url, mcptest.ModernRequest(1, "tools/list", "{}"))
	switch {
	case r.Status == http.StatusBadRequest:
		wantReason(t, r.Body)
		return "refused"
	case r.Status != http.StatusOK || !strings.Contains(r.Body, `"tools":[`):
		t.Errorf("%d %s", r.Status, r.Body)
	}
	return "2026-07-28"
}

// wantReason checks that the error of a refused client names the flag.
func wantReason(t *testing.T, said string) {
	t.Helper()
	if !strings.Contains(said, "--eras both") {
		t.Errorf("it is told %q", said)
	}
}

// choiceTable returns the table in docs/eras.md: the revisions that clients speak, by the clients'
// names and --eras.
func choiceTable(t *testing.T) map[string]map[string]string {
	t.Helper()
	text := mcptest.Must(os.ReadFile("../docs/eras.md"))(t)
	_, rows, ok := strings.Cut(string(text), "| client | `auto` | `both` | `legacy` | `modern` |\n|---|---|---|---|---|\n")
	if !ok {
		t.Fatal("docs/eras.md has no such table")
	}
	rows, _, _ = strings.Cut(rows, "\n\n")
	table := make(map[string]map[string]string)
	for row := range strings.SplitSeq(strings.TrimSpace(rows), "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		table[cells[0]] = map[string]string{"auto": cells[1], "both": cells[2], "legacy": cells[3], "modern": cells[4]}
	}
	return table
}

// TestErasChoice has clients choose their era at holdfast serve: each speaks the revision that docs/eras.md says,
// and the error of a refused client names the flag that serves it. The log has a line for each kind of client.
func TestErasChoice(t *testing.T) {
	t.Parallel()
	table := choiceTable(t)
	clients := map[string]choosing{
		"go-sdk 1.8.0":                                         officialChoice("", ""),
		"go-sdk 1.8.0, 2025-11-25 asked for":                   officialChoice("", "2025-11-25"),
		"go-sdk 1.8.0 over `NewClientTransport`":               officialChoice("library:", ""),
		"go-sdk 1.8.0 through `holdfast connect`":              officialChoice("connect:", ""),
		"TypeScript 1.x":                                       typeScriptChoice(1, "", false),
		"TypeScript 2.x, its default":                          typeScriptChoice(2, "legacy", false),
		"TypeScript 2.x, `auto`":                               typeScriptChoice(2, "auto", false),
		"TypeScript 2.x, `auto`, declares tasks":               typeScriptChoice(2, "auto", true),
		"TypeScript 2.x, pinned to 2026-07-28":                 typeScriptChoice(2, "2026-07-28", false),
		"TypeScript 2.x, pinned to 2026-07-28, declares tasks": typeScriptChoice(2, "2026-07-28", true),
		"a modern request without `server/discover`":           rawChoice,
		"Claude Code 2.1.332":                                  claudeChoice,
	} // by their names in the table
	if len(table) != len(clients) {
		t.Errorf("the table has %d clients, and the test %d", len(table), len(clients))
	}
	for _, eras := range []string{"auto", "both", "legacy", "modern"} {
		t.Run(eras, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--eras", eras, "--demo"}
			if eras == "auto" {
				flags = flags[2:] // auto is the default
			}
			p := serve(t, flags...)
			for name, choose := range clients {
				t.Run(name, func(t *testing.T) {
					if got, want := choose(t, p.URL), table[name][eras]; got != want {
						t.Errorf("it speaks %s, want %s", got, want)
					}
				})
			}
			log := p.log.String()
			for _, want := range map[string][]string{
				"auto":   {"speaks the legacy era", "speaks the modern era"},
				"both":   {"speaks the legacy era", "speaks the modern era"},
				"legacy": {"speaks the legacy era"},
				"modern": {"speaks the modern era"},
			}[eras] {
				// Several clients have this name and version: they get one line. connect has the name of its host.
				if n := len(regexp.MustCompile(want+`" client=official version=1 `).FindAllString(log, -1)); n > 1 || n == 0 && !strings.Contains(want, "modern") {
					t.Errorf("%q is in the log %d times:\n%s", want, n, log)
				}
			}
		})
	}
}

// TestErasLog has a client without an older revision to fall back on come again and again: the log
// has one warning, with the flag that serves it.
func TestErasLog(t *testing.T) {
	t.Parallel()
	p := serve(t, "--eras", "legacy", "--demo")
	for range 10 {
		if got := rawChoice(t, p.URL); got != "refused" {
			t.Errorf("it speaks %s", got)
		}
	}
	mcptest.Eventually(t, "the warning", time.Minute, func() bool { return strings.Contains(p.log.String(), "--eras both") })
	if n := strings.Count(p.log.String(), "--eras both"); n != 1 || !strings.Contains(p.log.String(), "client=mcptest version=1") {
		t.Errorf("it is in the log %d times:\n%s", n, p.log.String())
	}
}

// TestErasCut has the go-sdk's own client make a long call through a proxy that cuts each stream after a
// while: the client gets every step once, from our handler in the place of the go-sdk's, and from
// holdfast serve.
func TestErasCut(t *testing.T) {
	t.Parallel()
	every := testlong.Either(300*time.Millisecond, 700*time.Millisecond)
	count := testlong.Either(15, 60)
	least := testlong.Either(1, 2)
	for name, open := range map[string]func(t *testing.T) string{
		"library": func(t *testing.T) string { return library(t, counterServer(), nil) },
		"program": func(t *testing.T) string { return serve(t, "--retry", "100ms", "--demo").URL },
		"program, --upstream": func(t *testing.T) string {
			return serve(t, "--retry", "100ms", "--upstream", serve(t, "--retry", "100ms", "--demo").URL).URL
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := open(t)
			at := behind(t, address, least, func(request string) Cut {
				if has(request, "mcp-session-id") || strings.Contains(request, "tools/call") {
					return Cut{After: every}
				}
				return Cut{} // not initialize, which no client resumes
			})
			ctx := bounded(t, 2*time.Minute)
			s := mcptest.Must(connectOfficial(ctx, &mcp.StreamableClientTransport{Endpoint: at}, "", nil))(t)
			defer s.Close()
			params := &mcp.CallToolParams{Name: "count", Arguments: map[string]any{"to": count, "delay_ms": 100}}
			params.SetProgressToken("p")
			if r, err := s.CallTool(ctx, params); err != nil || r.IsError {
				t.Fatalf("%+v, %v, after %v", r, err, s.progressOf("p"))
			}
			mcptest.Eventually(t, "all progress", 2*time.Minute, func() bool { return len(s.progressOf("p")) >= count })
			var want []float64
			for i := range count {
				want = append(want, float64(i+1))
			}
			if steps := s.progressOf("p"); !slices.Equal(steps, want) {
				t.Errorf("steps %v", steps)
			}
		})
	}
}
