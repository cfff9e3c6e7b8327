package e2e

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/process"
	remotebackend "holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

var erasTable = flag.String("eras.table", "", "where TestErasMatrix writes what it has seen, as a table for docs/eras.md")

// An eraPeer is a server of the matrix: a command on stdio, a server over HTTP, or, with neither, the go-sdk's server in the library.
type eraPeer struct {
	name    string
	needs   []string // files of npm packages
	command []string // an argument that begins with node_modules is a file of a npm package
	url     func(t *testing.T) string
	checks  map[string]eraCheck
	// missing has the checks that fail because the server or the client lacks a feature, with
	// the text that the client sees instead. It is keyed by "legacy", "modern" or a client's
	// name, and then by the check's name.
	missing map[string]map[string]string
	short   bool   // the server is tested without -long too
	only    string // "legacy" or "modern", if clients that reach the server directly find one era
}

// fixture returns the checks for an eraServer and for erasserver.mjs.
func fixture() map[string]eraCheck {
	return map[string]eraCheck{
		"list":             {},
		"call":             {Tool: "echo", Arguments: []byte(`{"message":"hi"}`), Want: "hi"},
		"progress":         {Tool: "count", Arguments: []byte(`{}`), Want: "[1,2,3]"},
		"elicitation":      {Tool: "ask", Arguments: []byte(`{}`), Want: "Ada"},
		"sampling":         {Tool: "sample", Arguments: []byte(`{}`), Want: "hello"},
		"roots":            {Tool: "roots", Arguments: []byte(`{}`), Want: "file:///home"},
		"log":              {Tool: "log", Arguments: []byte(`{}`), Want: `["high"]`},
		"subscription":     {Tool: "touch", Arguments: []byte(`{}`), Want: eraWatched},
		"list_changed":     {Tool: "grow", Arguments: []byte(`{}`)},
		"cancellation":     {Tool: "wait", Arguments: []byte(`{"id":"ID","ms":60000}`)},
		"ping":             {},
		"failure":          {Tool: "fail", Arguments: nil, Want: "no luck"},
		"unknown tool":     {},
		"unknown resource": {},
		"meta":             {Tool: "meta", Arguments: []byte(`{}`), Want: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"header":           {Tool: "region", Arguments: []byte(`{"region":"eu, \u00e9"}`), Want: "eu, é"},
	}
}

// everythingChecks returns the checks that server-everything can pass.
func everythingChecks() map[string]eraCheck {
	return map[string]eraCheck{
		"list":             {},
		"call":             {Tool: "echo", Arguments: []byte(`{"message":"hi"}`), Want: "Echo: hi"},
		"progress":         {Tool: "trigger-long-running-operation", Arguments: []byte(`{"duration":0.3,"steps":3}`), Want: "some"}, // the server loses some by itself
		"elicitation":      {Tool: "trigger-elicitation-request", Arguments: []byte(`{}`), Want: "Ada"},
		"sampling":         {Tool: "trigger-sampling-request", Arguments: []byte(`{"prompt":"hi"}`), Want: "hello"},
		"roots":            {Tool: "get-roots-list", Arguments: []byte(`{}`), Want: "file:///home"},
		"ping":             {},
		"unknown tool":     {},
		"unknown resource": {},
	}
}

// noParams is for servers that send input requests without params: the go-sdk's client cannot
// read these. Those of Holdfast have params.
var noParams = map[string]map[string]string{"go-sdk": {"roots": "unexpected end of JSON input"}}

// eraClients returns the clients of the matrix. The TypeScript clients are for -long.
func eraClients() map[string]eraClient {
	return map[string]eraClient{
		"go-sdk":                 officialEraClient(""),
		"go-sdk, 2025-11-25":     officialEraClient("2025-11-25"),
		"TypeScript 1.x":         typeScriptEra(1, ""),
		"TypeScript 2.x, auto":   typeScriptEra(2, "auto"),
		"TypeScript 2.x, pinned": typeScriptEra(2, "2026-07-28"),
		"TypeScript 2.x, legacy": typeScriptEra(2, "legacy"),
	}
}

// isLegacy reports whether a client of the matrix speaks older revisions only.
func isLegacy(who string) bool {
	return strings.Contains(who, "2025") || strings.Contains(who, "legacy") || strings.Contains(who, "1.x")
}

// TestErasMatrix has official clients of both eras use servers of both eras through each kind of backend. With
// -long there are also TypeScript clients and more servers: a server meets two of the four TypeScript clients, and
// with -peers all.
func TestErasMatrix(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]map[string]eraSeen) // by server and client
	few := make(chan struct{}, 3)               // node starts slowly, and a server has 5 s to say which eras it speaks
	t.Run("cells", func(t *testing.T) {
		typeScript := []string{tsServer}
		for i, peer := range []eraPeer{
			{name: "go-sdk", checks: fixture(), short: true},
			{name: "process, go-sdk", checks: fixture(), command: []string{os.Args[0], "eras"}},
			{name: "process, go-sdk, legacy only", checks: fixture(), command: []string{os.Args[0], "eras", "legacy"}},
			{name: "process, server-everything", checks: everythingChecks(), needs: []string{everything}, command: []string{"node", everything, "stdio"}},
			{name: "process, TypeScript 2.x", checks: fixture(), needs: typeScript, command: []string{"node", "clients/erasserver.mjs", "stdio", "both"}, missing: noParams},
			{name: "process, TypeScript 2.x, modern only", checks: fixture(), needs: typeScript, command: []string{"node", "clients/erasserver.mjs", "stdio", "modern"}, missing: noParams},
			{name: "remote, go-sdk", checks: fixture(), short: true, url: legacyLibrary},
			{name: "remote, go-sdk, no sessions", checks: fixture(), short: true, url: modernLibrary},
			{name: "remote, server-everything", checks: everythingChecks(), needs: []string{everything}, url: everythingURL},
			{name: "remote, TypeScript 2.x", checks: fixture(), needs: typeScript, url: eraTypeScriptURL("both"), missing: noParams},
			{name: "remote, TypeScript 2.x, modern only", checks: fixture(), needs: typeScript, url: eraTypeScriptURL("modern"), missing: noParams},
		} {
			t.Run(peer.name, func(t *testing.T) {
				if !peer.short {
					testlong.Only(t, "it starts many processes")
					npm(t, peer.needs...)
				}
				t.Parallel()
				few <- struct{}{}
				defer func() { <-few }()
				// Modern clients cancel by closing the connection, which takes effect after CutGrace.
				url := servePeer(t, &peer, &holdfast.Options{Eras: holdfast.ErasBoth, CutGrace: time.Second})
				all := make(map[string]eraSeen)
				for who, client := range eraClients() {
					if strings.Contains(who, "TypeScript") {
						half := strings.HasSuffix(who, "1.x") || strings.HasSuffix(who, "pinned")
						if !testlong.Wanted() || half != (i%2 == 0) && !*peers && *erasTable == "" {
							continue
						}
						npm(t, sdk1, sdk2)
					}
					all[who] = peer.meets(t, who, client, url)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[peer.name] = all
			})
		}
	})
	if *erasTable != "" {
		if err := os.WriteFile(*erasTable, []byte(tableOf(seen)), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// servePeer puts a Holdfast in front of a server, and returns its URL.
func servePeer(t *testing.T, peer *eraPeer, o *holdfast.Options) string {
	t.Helper()
	var h *holdfast.Handler
	switch {
	case peer.url != nil:
		h = holdfast.NewBackendHandler(remotebackend.New(peer.url(t), nil), o)
	case peer.command != nil:
		command := slices.Clone(peer.command)
		if strings.HasPrefix(command[1], "node_modules/") {
			command[1] = filepath.Join(npm(t), command[1])
		}
		b := mcptest.Must(process.New(command, &process.Options{Env: append(os.Environ(), "HOLDFAST_NPM="+os.Getenv("HOLDFAST_NPM"))}))(t)
		t.Cleanup(func() { _ = b.Close() })
		h = holdfast.NewBackendHandler(b, o)
	default:
		server := eraServer(false)
		h = holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, o)
	}
	web := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, 2*time.Second)
	return web
}

// meets has a client use a server, and checks the client's results.
func (peer *eraPeer) meets(t *testing.T, who string, client eraClient, url string) eraSeen {
	t.Helper()
	checks := maps.Clone(peer.checks)
	era := "modern"
	if isLegacy(who) {
		era = "legacy"
	} else {
		delete(checks, "ping") // the revision has no ping
	}
	missing := func(name string) (instead string, ok bool) {
		if instead, ok = peer.missing[era][name]; !ok {
			instead, ok = peer.missing[who][name]
		}
		return instead, ok
	}
	if c, ok := checks["cancellation"]; ok {
		args := strings.Replace(string(c.Arguments), "ID", who, 1)
		if _, ok := missing("cancellation"); ok {
			args = strings.Replace(args, "60000", "2000", 1)
		}
		c.Arguments = []byte(args)
		checks["cancellation"] = c
	}
	for name, c := range checks {
		c.Patience = 30_000
		if instead, _ := missing(name); strings.HasPrefix(instead, "no ") {
			c.Patience = testlong.Either(300, 2_000) // no notification comes
		}
		checks[name] = c
	}
	s := client(t, url, checks)
	if (era == "legacy") == (s.Revision == "2026-07-28") {
		t.Errorf("%s: the revision is %q", who, s.Revision)
	}
	for name := range checks {
		want := "yes"
		if instead, ok := missing(name); ok {
			want = instead
		}
		if got := s.Seen[name]; !strings.Contains(got, want) {
			t.Errorf("%s: %s: %s, want %s", who, name, got, want)
		}
	}
	return s
}

// legacyLibrary serves the go-sdk's server with sessions.
func legacyLibrary(t *testing.T) string { return upstream(t, eraServer(false), nil) }

// modernLibrary serves the go-sdk's server without sessions.
func modernLibrary(t *testing.T) string {
	return upstream(t, eraServer(true), &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
}

// everythingURL runs server-everything over HTTP.
func everythingURL(t *testing.T) string { return everythingOver(t, "streamableHttp", "/mcp").url }

// eraTypeScriptURL returns a function that runs a TypeScript server over HTTP.
func eraTypeScriptURL(eras string) func(t *testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		cmd := exec.Command("node", "clients/erasserver.mjs", "http", eras)
		cmd.Env = append(os.Environ(), "HOLDFAST_NPM="+npm(t))
		found := mcptest.Start(t, cmd).Find(regexp.MustCompile(`on port (\d+)$`))
		if found == nil {
			t.Fatal("the TypeScript server does not start")
		}
		return "http://127.0.0.1:" + found[1] + "/mcp"
	}
}

// tableOf returns the results as a table in Markdown: a row for each server, a column for each
// client.
func tableOf(seen map[string]map[string]eraSeen) string {
	clients := slices.Sorted(maps.Keys(eraClients()))
	var b strings.Builder
	fmt.Fprintf(&b, "| server | %s |\n|%s\n", strings.Join(clients, " | "), strings.Repeat("---|", len(clients)+1))
	for _, server := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(&b, "| %s |", server)
		for _, who := range clients {
			var not []string
			all := seen[server][who].Seen
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if all[name] != "yes" {
					not = append(not, name)
				}
			}
			switch {
			case all == nil:
				b.WriteString(" not tried |")
			case not == nil:
				fmt.Fprintf(&b, " all %d |", len(all))
			default:
				fmt.Fprintf(&b, " all %d but %s |", len(all), strings.Join(not, ", "))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
