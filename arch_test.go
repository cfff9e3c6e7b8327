package holdfast_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/testlong"
)

// module is the path of this module.
var module = func() string {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		panic(err)
	}
	_, line, _ := strings.Cut(string(text), "module ")
	name, _, _ := strings.Cut(line, "\n")
	return strings.TrimSpace(name)
}()

// layers are the packages of the module, from the lowest up, each with the packages of
// ours that it may import: all of those are in lower layers. "." is the root. A name that
// ends in "/..." stands for all packages below that path. No package imports those.
var layers = []struct {
	name    string
	imports []string
}{
	{"internal/testlong", nil}, // the flag -long of tests
	{"internal/testport", nil}, // ports for tests, and stand-ins for servers
	{"internal/testwork", nil}, // for tests of how work grows with its input
	{"internal/panics", nil},
	{"jsonrpc", nil},
	{"internal/sse", nil},
	{"internal/mcptest", []string{"jsonrpc", "internal/sse"}}, // both ends of MCP, for tests
	{"internal/protocol", []string{"jsonrpc"}},
	{"internal/redact", nil},
	{"internal/lograte", nil},
	{"internal/outagelog", nil},
	{"internal/rpc", []string{"jsonrpc", "internal/protocol", "internal/redact"}},
	{"internal/budget", nil},
	{"internal/defaults", nil},
	{"internal/limit", []string{"internal/defaults"}},
	{"internal/skim", []string{"jsonrpc"}},
	{"stream", nil},
	{"webhook", nil},
	{"internal/webhook", []string{"webhook", "stream"}},
	{"internal/engine/shared", []string{"stream"}},
	{"stream/streamtest", []string{"stream", "internal/engine/shared"}},
	{"internal/cluster", nil},
	{"internal/cluster/bustest", []string{"internal/cluster"}},
	{"internal/cluster/clustertest", []string{"stream", "internal/engine/shared", "internal/cluster", "internal/testport"}},
	{"internal/engine/contest", []string{"stream", "internal/engine/shared"}},
	{"internal/engine/memory", []string{"stream", "internal/budget", "internal/defaults"}},
	{"internal/engine/durable", []string{"stream", "internal/engine/shared", "internal/engine/memory", "internal/cluster", "internal/defaults"}},
	{"internal/engine/durable/logtest", []string{"stream", "internal/engine/durable", "internal/cluster"}},
	{"internal/engine/driver", []string{"stream", "internal/engine/durable"}},
	{"internal/engine/jetstream", []string{"stream", "internal/engine/driver", "internal/engine/durable", "internal/cluster", "internal/defaults"}},
	{"internal/engine/embedded", []string{"internal/engine/durable", "internal/engine/jetstream"}},
	{"internal/engine/jetstream/natstest", []string{"internal/testport"}},
	{"internal/engine/redis", []string{"stream", "internal/engine/driver", "internal/engine/durable", "internal/cluster", "internal/defaults"}},
	{"internal/engine/redis/redistest", []string{"internal/testlong", "internal/testport"}},
	{"engine", []string{"stream", "internal/redact", "internal/engine/memory", "internal/engine/driver", "internal/engine/durable"}},
	{"engine/file", []string{"internal/engine/driver", "internal/engine/embedded"}},
	{"engine/nats", []string{"internal/engine/driver", "internal/engine/jetstream"}},
	{"engine/redis", []string{"internal/engine/driver", "internal/engine/redis"}},
	{"backend", []string{"jsonrpc"}},
	{"backend/message", []string{"backend", "jsonrpc"}},
	{"backend/process", []string{"backend", "jsonrpc", "internal/protocol", "internal/redact", "internal/rpc", "internal/budget", "internal/skim", "internal/outagelog"}},
	{"backend/sdk", []string{"backend", "jsonrpc", "internal/protocol", "internal/panics", "internal/budget"}},
	{"internal/translate", []string{"backend", "jsonrpc", "internal/protocol", "internal/rpc", "internal/panics", "internal/budget"}},
	{"internal/statefile", nil},
	{"internal/sessionid", nil},
	{"internal/revival", []string{"internal/sessionid", "internal/statefile", "stream"}},
	{"internal/ticket", []string{"jsonrpc"}},
	{"internal/caller", nil},
	{"internal/feature/idempotency", []string{"internal/caller", "internal/engine/shared", "internal/protocol", "jsonrpc", "stream"}},
	{"internal/feature/resume", []string{"internal/caller", "internal/engine/shared", "internal/protocol", "internal/ticket", "jsonrpc"}},
	{"internal/feature/hosts", nil},
	{"internal/feature/webhook", []string{"jsonrpc"}},
	{"internal/feature/handofftext", []string{"jsonrpc", "internal/protocol"}},
	{"internal/feature/tasktext", []string{"jsonrpc", "internal/protocol"}},
	{"internal/clientkind", []string{"internal/protocol", "jsonrpc"}},
	{"internal/moves", nil},
	{"internal/processes", nil},
	{"internal/handover", nil},
	{"internal/likeness", []string{"internal/feature/handofftext", "internal/protocol", "jsonrpc"}},
	{"internal/observe", nil},
	{"internal/observe/observetest", []string{"internal/observe"}},
	{"internal/spans", []string{"internal/observe", "internal/protocol", "jsonrpc"}},
	{"internal/journal", []string{"stream"}},
	{"internal/backpressure", []string{"stream"}},
	{"internal/ownprogress", []string{"internal/protocol", "jsonrpc"}},
	{"internal/reading", []string{"internal/journal", "internal/likeness", "internal/observe", "stream"}},
	{"internal/deferred", []string{"internal/journal", "internal/protocol", "internal/reading", "jsonrpc", "stream"}},
	{"internal/again", []string{"internal/likeness", "internal/handover", "internal/reading", "stream", "jsonrpc", "internal/protocol"}},
	{"internal/tools", []string{"internal/panics", "internal/protocol", "jsonrpc"}}, // the tools that servers declare
	{"internal/admission", []string{"internal/caller", "internal/feature/tasktext", "internal/limit", "internal/protocol", "internal/tools", "jsonrpc"}},
	{"internal/whereabouts", []string{"internal/caller", "internal/handover", "internal/engine/shared", "internal/reading", "stream"}},
	{"internal/session", []string{"internal/handover", "internal/backpressure", "internal/ownprogress", "internal/spans", "internal/again", "internal/deferred", "internal/tools", "internal/whereabouts", "internal/admission", "internal/reading", "internal/journal", "internal/clientkind", "internal/moves", "internal/processes", "internal/likeness", "internal/caller", "internal/ticket", "internal/sessionid", "internal/revival", "internal/feature/idempotency", "internal/feature/resume", "internal/feature/hosts", "internal/feature/tasktext", "internal/feature/webhook", "internal/observe", "internal/outagelog", "backend", "internal/budget", "internal/limit", "stream", "internal/engine/shared", "jsonrpc", "internal/protocol", "internal/rpc", "internal/panics", "internal/defaults"}},
	{"internal/feature/legacytask", []string{"internal/caller", "internal/deferred", "internal/feature/tasktext", "internal/protocol", "internal/session", "internal/whereabouts", "internal/ticket", "jsonrpc", "stream"}},
	{"internal/feature/handoff", []string{"internal/tools", "internal/deferred", "internal/caller", "internal/ticket", "internal/feature/handofftext", "internal/feature/hosts", "internal/session", "jsonrpc", "internal/protocol"}},
	{"internal/audit", []string{"internal/observe", "internal/protocol", "jsonrpc"}},
	{"internal/metrics", []string{"internal/observe", "internal/protocol", "stream"}},
	{"internal/traces", []string{"internal/observe", "internal/protocol", "jsonrpc"}},
	{"internal/live", []string{"internal/observe", "internal/protocol", "jsonrpc"}},
	{"internal/server/guard", []string{"jsonrpc"}},
	{"internal/server/watch", []string{"internal/budget"}},
	{"internal/server/stdio", []string{"jsonrpc"}},
	{"internal/server/websocket", []string{"jsonrpc", "internal/protocol"}},
	{"internal/server/modern", []string{"internal/caller", "internal/protocol", "internal/session", "jsonrpc"}},
	{"internal/server/task", []string{"internal/reading", "internal/deferred", "internal/ticket", "internal/feature/tasktext", "internal/panics", "internal/protocol", "internal/server/modern", "internal/session", "jsonrpc"}},
	{"internal/placement", []string{"internal/again", "internal/whereabouts", "internal/reading", "internal/caller", "internal/ticket", "internal/cluster", "internal/limit", "internal/observe", "internal/panics", "internal/protocol", "internal/server/watch", "internal/server/websocket", "internal/session", "internal/sse", "jsonrpc", "stream"}},
	{"internal/server/drain", []string{"internal/handover", "internal/placement", "internal/session"}},
	{"internal/server/answering", []string{"backend", "internal/budget", "internal/feature/idempotency", "internal/feature/resume", "internal/limit", "internal/observe", "internal/outagelog", "internal/panics", "internal/placement", "internal/protocol", "internal/server/guard", "internal/session", "internal/sse", "internal/ticket", "jsonrpc", "stream"}},
	{"internal/server/exchange", []string{"internal/budget", "internal/caller", "internal/feature/handofftext", "internal/limit", "internal/observe", "internal/placement", "internal/protocol", "internal/rpc", "internal/server/answering", "internal/server/modern", "internal/server/watch", "internal/session", "internal/sse", "internal/whereabouts", "jsonrpc", "stream"}},
	{"internal/server/streaming", []string{"internal/caller", "internal/observe", "internal/panics", "internal/placement", "internal/protocol", "internal/reading", "internal/server/answering", "internal/server/exchange", "internal/server/guard", "internal/server/drain", "internal/server/watch", "internal/session", "internal/sse", "internal/ticket", "jsonrpc", "stream"}},
	{"internal/server/modernfront", []string{"internal/caller", "internal/defaults", "internal/feature/resume", "internal/observe", "internal/placement", "internal/protocol", "internal/server/answering", "internal/server/streaming", "internal/server/exchange", "internal/server/drain", "internal/server/modern", "internal/session", "jsonrpc", "stream"}},
	{"internal/server/mux", []string{"internal/budget", "internal/caller", "internal/feature/idempotency", "internal/feature/resume", "internal/limit", "internal/observe", "internal/panics", "internal/placement", "internal/protocol", "internal/reading", "internal/rpc", "internal/server/answering", "internal/server/streaming", "internal/server/exchange", "internal/server/modern", "internal/server/modernfront", "internal/server/stdio", "internal/server/websocket", "internal/session", "internal/sse", "internal/ticket", "internal/whereabouts", "jsonrpc", "stream"}},
	{"internal/server", []string{"internal/budget", "internal/caller", "internal/defaults", "internal/feature/handofftext", "internal/feature/resume", "internal/observe", "internal/panics", "internal/placement", "internal/protocol", "internal/reading", "internal/redact", "internal/rpc", "internal/server/answering", "internal/server/streaming", "internal/server/exchange", "internal/server/guard", "internal/server/drain", "internal/server/modern", "internal/server/modernfront", "internal/server/mux", "internal/server/watch", "internal/server/websocket", "internal/session", "internal/sse", "internal/ticket", "internal/whereabouts", "jsonrpc", "stream"}},
	{"client", []string{"jsonrpc", "internal/sse", "internal/outagelog", "internal/protocol", "internal/redact", "internal/rpc", "internal/panics", "internal/budget", "internal/skim"}},
	{"backend/remote", []string{"backend", "client", "jsonrpc", "internal/outagelog", "internal/protocol", "internal/rpc", "internal/budget", "internal/redact"}},
	{".", []string{"internal/server/modern", "internal/server/modernfront", "internal/caller", "internal/feature/handoff", "internal/feature/legacytask", "internal/feature/hosts", "internal/feature/webhook", "internal/sessionid", "internal/revival", "backend", "internal/audit", "internal/budget", "internal/limit", "internal/live", "internal/lograte", "internal/observe", "internal/outagelog", "internal/server", "internal/server/task", "internal/session", "internal/translate", "client", "backend/sdk", "internal/engine/memory", "stream", "internal/cluster", "jsonrpc", "internal/protocol", "webhook", "internal/webhook", "internal/panics", "internal/defaults"}},
	{"metrics", []string{".", "internal/metrics", "internal/observe"}},
	{"traces", []string{".", "internal/traces", "internal/observe"}},
	{"internal/auth/authtest", nil},
	{"internal/dpop", nil},
	{"internal/auth", []string{"internal/dpop", "internal/protocol"}},
	{"internal/config", []string{"internal/feature/hosts", "internal/limit", "internal/redact"}},
	{"internal/install", nil},
	{"internal/merge", []string{"backend", "jsonrpc", "internal/protocol", "internal/rpc", "internal/budget"}},
	{"internal/servers", []string{"internal/server/exchange", "internal/tools", "internal/auth", "internal/merge", "internal/feature/handofftext", "internal/feature/hosts", "internal/limit", "internal/config", "internal/redact", "backend", "backend/process", "backend/remote", "client", "jsonrpc", "internal/protocol", "internal/server", "internal/session", "internal/translate", "internal/budget", "internal/rpc", "internal/outagelog"}},
	{"internal/login", []string{"internal/dpop", "internal/statefile"}},
	{"internal/terminal", []string{"jsonrpc"}},
	{"internal/followcall", []string{"client", "jsonrpc", "internal/statefile", "internal/terminal"}},
	{"internal/bridge", []string{"backend", "client", "internal/feature/tasktext", "internal/login", "jsonrpc", "internal/protocol", "internal/rpc", "internal/statefile", "internal/translate"}},
	{"internal/torture", []string{".", "backend", "backend/process", "backend/remote", "client", "jsonrpc", "internal/redact"}},
	{"cmd/...", everything},
	{"bench/...", everything},
	{"conformance/...", everything},
	{"deploy/schemas", nil}, // for CI
	{"deploy/pack", nil},    // for a release, as the next ones
	{"deploy/module", nil},
	{"deploy/notes", nil},
	{"internal/transcripts", nil}, // for tests only
	{"e2e", everything},
	{"examples/...", everything},
}

// everything stands for all packages of lower layers.
var everything = []string{"*"}

// modules are the dependencies, and the packages that may import them.
var modules = map[string][]string{
	"github.com/modelcontextprotocol/go-sdk": {".", "backend/sdk", "internal/login", "internal/torture", "cmd/...", "bench/...", "conformance/...", "examples/..."},
	"golang.org/x/oauth2":                    {".", "internal/auth"},
	"github.com/coreos/go-oidc/v3":           {"internal/auth"},
	"github.com/go-jose/go-jose/v4":          {"internal/auth", "internal/auth/authtest", "internal/dpop", "internal/login"},
	"github.com/prometheus/client_golang":    {"metrics", "internal/metrics", "cmd/...", "bench/..."},
	"go.opentelemetry.io/otel":               {"traces", "internal/traces", "cmd/...", "bench/..."},
	"github.com/cenkalti/backoff/v5":         {"client", "internal/webhook"},
	"github.com/nats-io/nats-server/v2":      {"internal/engine/embedded", "internal/engine/jetstream/natstest", "examples/..."},
	"github.com/nats-io/nats.go":             {"internal/engine/jetstream", "internal/engine/jetstream/natstest", "bench/..."},
	"github.com/redis/go-redis/v9":           {"internal/engine/redis", "bench/..."},
	"github.com/coder/websocket":             {"client", "internal/mcptest", "internal/placement", "internal/server/websocket"},
	"github.com/standard-webhooks":           {"internal/webhook"},
	"github.com/coreos/go-systemd/v22":       {"cmd/..."},
	"github.com/spf13/cobra":                 {"cmd/..."},
	"github.com/spf13/pflag":                 {"cmd/..."},
	"github.com/gofrs/flock":                 {"internal/bridge", "internal/followcall", "internal/login", "internal/statefile", "internal/engine/jetstream"},
	"golang.org/x/time":                      {"internal/limit"},
	"golang.org/x/sync":                      {"internal/auth", "internal/engine/durable", "internal/engine/jetstream"},
	"golang.org/x/text":                      {"internal/servers"},
	"github.com/schollz/progressbar/v3":      {"internal/terminal"},
	"golang.org/x/sys":                       {"internal/bridge", "internal/server/watch", "internal/testwork"}, // otherwise for tests only
	"golang.org/x/term":                      {"internal/terminal", "cmd/...", "examples/..."},
	"github.com/tailscale/hujson":            {"internal/config", "internal/install"},
	"github.com/pelletier/go-toml/v2":        {"internal/install"},
	"go.yaml.in/yaml/v3":                     {"deploy/schemas"},                     // otherwise for tests only
	"go.uber.org/goleak":                     {"internal/engine/jetstream/natstest"}, // otherwise for tests only
}

// pure packages take bytes and values: no clock, network, files or logger.
var (
	pure   = []string{"jsonrpc", "internal/sse", "internal/protocol", "internal/ownprogress", "internal/ticket"}
	impure = []string{"context", "log", "math/rand", "net", "os", "runtime", "sync", "syscall"}
)

// walk calls do with each Go file of this module.
func walk(do func(file string) error) error {
	return filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(file, "go.mod"))
			other := file != "." && err == nil // another module
			if other || name == "testdata" || file != "." && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		return do(file)
	})
}

// sources returns the packages of the module, by directory. Each has its
// imports outside of tests, with the files that import them.
func sources(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := make(map[string]map[string]string)
	err := walk(func(file string) error {
		pkg := path.Dir(filepath.ToSlash(file))
		if all[pkg] == nil {
			all[pkg] = make(map[string]string)
		}
		if strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			all[pkg][imported] = file
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// matches says whether a name in the lists stands for a package.
func matches(pkg, name string) bool {
	below, ok := strings.CutSuffix(name, "/...")
	return pkg == name || ok && (pkg == below || strings.HasPrefix(pkg, below+"/"))
}

// layerOf returns the place of a package in layers, or -1.
func layerOf(pkg string) int {
	for i, f := range layers {
		if matches(pkg, f.name) {
			return i
		}
	}
	return -1
}

// may returns the reason why a package of ours may not import another, or nil.
func may(pkg, imported string) error {
	from, to := layerOf(pkg), layerOf(imported)
	f := layers[from]
	switch {
	case to < 0:
		return fmt.Errorf("which is in no layer")
	case strings.HasSuffix(layers[to].name, "/...") && layers[to].name == f.name:
		return nil // programs have packages of their own
	case strings.HasSuffix(layers[to].name, "/..."):
		return fmt.Errorf("a program's own")
	case imported == "internal/mcptest":
		return fmt.Errorf("which is for tests")
	case to >= from:
		return fmt.Errorf("which is above it: imports point down only")
	case !slices.Contains(f.imports, "*") && !slices.Contains(f.imports, layers[to].name):
		return fmt.Errorf("but may import only %q of ours", f.imports)
	}
	return nil
}

// Imports point down the layers, and only the packages listed use a dependency.
func TestImports(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	all := sources(t)
	for _, pkg := range slices.Sorted(maps.Keys(all)) {
		if layerOf(pkg) < 0 {
			t.Errorf("package %s is in no layer: give it one in arch_test.go", pkg)
			continue
		}
		for imported, file := range all[pkg] {
			if err := allowed(pkg, imported); err != nil {
				t.Errorf("%s: package %s imports %s, %v", file, pkg, imported, err)
			}
		}
	}
}

func allowed(pkg, imported string) error {
	first, _, _ := strings.Cut(imported, "/")
	switch {
	case imported == module:
		return may(pkg, ".")
	case strings.HasPrefix(imported, module+"/"):
		return may(pkg, strings.TrimPrefix(imported, module+"/"))
	case strings.Contains(first, "."):
		for other, users := range modules {
			if imported != other && !strings.HasPrefix(imported, other+"/") {
				continue
			}
			if !slices.ContainsFunc(users, func(user string) bool { return matches(pkg, user) }) {
				return fmt.Errorf("which only %q may", users)
			}
			return nil
		}
		return fmt.Errorf("a dependency that arch_test.go does not know")
	case slices.Contains(pure, pkg):
		for _, p := range impure {
			if imported == p || strings.HasPrefix(imported, p+"/") {
				return fmt.Errorf("but is pure: bytes and values, no clock, network, files or logger")
			}
		}
	}
	return nil
}

// The lists above name no package that is gone, and every
// layer imports only lower ones.
func TestLayers(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	all := sources(t)
	for i, f := range layers {
		found := false
		for pkg := range all {
			found = found || matches(pkg, f.name)
		}
		if !found {
			t.Errorf("there is no package %s", f.name)
		}
		for _, name := range f.imports {
			if j := layerOf(name); name != "*" && (j < 0 || j >= i) {
				t.Errorf("%s is said to import %s, which does not stand below it", f.name, name)
			}
		}
	}
	for other, users := range modules {
		used := false
		for pkg, imports := range all {
			for imported := range imports {
				used = used || (imported == other || strings.HasPrefix(imported, other+"/")) &&
					slices.ContainsFunc(users, func(user string) bool { return matches(pkg, user) })
			}
		}
		if !used {
			t.Errorf("nobody imports %s", other)
		}
	}
}

// The rules refuse the imports that they are made for.
func TestImportRules(t *testing.T) {
	t.Parallel()
	for _, bad := range [][2]string{
		{"jsonrpc", module + "/internal/protocol"},
		{"internal/sse", "net/http"},
		{"internal/protocol", "log/slog"},
		{"stream", module + "/internal/session"},
		{"stream", module + "/jsonrpc"},
		{"internal/engine/memory", module + "/internal/session"},
		{"internal/engine/memory", module + "/engine"},
		{"internal/session", module + "/internal/server"},
		{"internal/session", module + "/internal/sse"},
		{"internal/session", module + "/engine"},
		{"backend/sdk", module + "/internal/server"},
		{"backend/process", module + "/backend/message"},
		{"internal/placement", module + "/internal/server"},
		{"internal/server", module + "/internal/cluster"}, // messages to other nodes belong to placement
		{"internal/session", module + "/internal/placement"},
		{"internal/server", module},
		{"internal/server", module + "/backend/sdk"},
		{"internal/server", "github.com/modelcontextprotocol/go-sdk/mcp"},
		{"internal/session", "github.com/spf13/cobra"},
		{".", "github.com/spf13/cobra"},
		{".", module + "/engine"},
		{".", module + "/internal/metrics"}, // it imports Prometheus
		{".", "github.com/prometheus/client_golang/prometheus"},
		{".", "go.opentelemetry.io/otel/trace"},
		{".", "example.com/new"},
		{"engine", module + "/internal/engine/redis"}, // only programs that import its driver link it
		{"internal/engine/jetstream", module + "/internal/engine/embedded"},
		{"engine", module + "/bench/tools"},
		{"cmd/holdfast", module + "/bench/tools"},
		{"cmd/holdfast", module + "/internal/mcptest"}, // it is for tests
		{"e2e", module + "/internal/mcptest"},
		{"engine", module + "/attic"},
	} {
		if allowed(bad[0], bad[1]) == nil {
			t.Errorf("%s may import %s", bad[0], bad[1])
		}
	}
	for _, good := range [][2]string{
		{"jsonrpc", "encoding/json"},
		{"internal/sse", "time"},
		{"internal/session", "net/http"},
		{"internal/session", module + "/internal/protocol"},
		{".", module + "/internal/server"},
		{"cmd/holdfast", module},
		{"cmd/holdfast", "github.com/spf13/cobra"},
		{"bench/server", module + "/bench/tools"},
		{"backend/sdk", "github.com/modelcontextprotocol/go-sdk/jsonrpc"},
	} {
		if err := allowed(good[0], good[1]); err != nil {
			t.Errorf("%s imports %s, %v", good[0], good[1], err)
		}
	}
}

// Each package with tests knows the flag -long. Without it "go test ./... -long" would fail in the package.
func TestLongFlag(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	known := make(map[string]bool) // whether its tests import testlong, by directory
	err := walk(func(file string) error {
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(file))
		known[dir] = known[dir] || slices.ContainsFunc(parsed.Imports, func(spec *ast.ImportSpec) bool {
			return spec.Path.Value == `"holdfast/internal/testlong"`
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(known)) {
		if !known[dir] {
			t.Errorf(`%s: no test imports _ "holdfast/internal/testlong": put it into long_test.go`, dir)
		}
	}
}
