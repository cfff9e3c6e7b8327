package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestErasTasks has the requester of @modelcontextprotocol/ext-tasks call tools of servers that do not know
// tasks: clients poll the tasks, answer their questions, cancel them, and find a task of another client.
func TestErasTasks(t *testing.T) {
	testlong.Only(t, "its tasks take seconds")
	t.Parallel()
	npm(t, sdk2, extTasks)
	for name, test := range map[string]struct {
		open  func(*testing.T) backend.Backend
		input string
	}{
		"go-sdk":                       {nil, "task completed Ada"},
		"process, go-sdk, legacy only": {eraProcess(os.Args[0], "eras", "legacy"), "task completed Ada"},
		"process, go-sdk":              {eraProcess(os.Args[0], "eras"), "task completed Ada"},
		"remote, go-sdk":               {eraRemote(func(t *testing.T) string { return upstream(t, eraServer(false), nil) }), "task completed Ada"},
		"process, TypeScript 2.x, modern only": {func(t *testing.T) backend.Backend {
			npm(t, tsServer)
			return eraProcess("node", "clients/erasserver.mjs", "stdio", "modern")(t)
		}, "task completed Ada"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servePeer(t, &eraPeer{open: test.open}, &holdfast.Options{TaskAfter: 300 * time.Millisecond, Eras: holdfast.ErasAuto})
			config := mcptest.Must(json.Marshal(map[string]string{"url": url}))(t)
			var got map[string]string
			unmarshal(t, run(t, "node", "clients/exttasks.mjs", string(config)), &got)
			for step, want := range map[string]string{
				"immediate": " completed hi",
				"slow":      "task completed slept",
				"input":     test.input,
				"asked":     " completed Ada",
				"failure":   "task completed true",
				"cancelled": " completed yes",
				"resumed":   "task completed slept",
			} {
				if !strings.HasSuffix(got[step], want) {
					t.Errorf("%s: %q, want %q", step, got[step], want)
				}
			}
		})
	}
}
