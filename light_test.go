package holdfast_test

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// lightModules are the modules that a program links with a package, beside the standard library. Only programs that import
// metrics, traces and engines link them (docs/decisions/0052-by-import.md).
var lightModules = map[string][]string{
	".": {
		"github.com/cenkalti/backoff/v5", "github.com/coder/websocket", "github.com/gofrs/flock", "github.com/google/jsonschema-go",
		"github.com/modelcontextprotocol/go-sdk", "github.com/segmentio/asm", "github.com/segmentio/encoding", "github.com/standard-webhooks/standard-webhooks/libraries",
		"github.com/yosida95/uritemplate/v3", "golang.org/x/oauth2", "golang.org/x/sync", "golang.org/x/sys", "golang.org/x/time",
	},
	"engine": {"golang.org/x/sync"},
	"engine/nats": {
		"github.com/gofrs/flock", "github.com/klauspost/compress", "github.com/nats-io/nats.go", "github.com/nats-io/nkeys", "github.com/nats-io/nuid",
		"golang.org/x/crypto", "golang.org/x/sync", "golang.org/x/sys",
	},
	"engine/redis": {"github.com/cespare/xxhash/v2", "github.com/redis/go-redis/v9", "go.uber.org/atomic", "golang.org/x/sync", "golang.org/x/sys"},
}

// A package links only the modules that its programs need.
func TestLinkedModules(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	all := make(map[string]compiled)
	for _, p := range mcptest.Must(compiledOf())(t) {
		all[p.path] = p
	}
	for pkg, want := range lightModules {
		got := make(map[string]bool)
		for dep := range strings.FieldsSeq(all[path.Join(module, pkg)].deps) {
			if name := all[dep].module; name != "" && name != module {
				got[name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if !slices.Contains(want, name) {
				t.Errorf("%s links %s", pkg, name)
			}
		}
		for _, name := range want {
			if !got[name] {
				t.Errorf("%s links %s no more: take it out of the list", pkg, name)
			}
		}
	}
}
