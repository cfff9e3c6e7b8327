package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestErasTasks has the requester of @modelcontextprotocol/ext-tasks call tools of servers that do not know
// tasks: clients poll the tasks, answer their questions, cancel them, and find a task of another client.
func TestErasTasks(t *testing.T) {
	testlong.Only(t, "its tasks take seconds")
	t.Parallel()
	npm(t, sdk2, extTasks)
	for name, peer := range map[string]eraPeer{
		"go-sdk":                               {},
		"process, go-sdk, legacy only":         {command: []string{os.Args[0], "eras", "legacy"}},
		"process, go-sdk":                      {command: []string{os.Args[0], "eras"}},
		"remote, go-sdk":                       {url: legacyLibrary},
		"process, TypeScript 2.x, modern only": {needs: []string{tsServer}, command: []string{"node", "clients/erasserver.mjs", "stdio", "modern"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			npm(t, peer.needs...)
			url := servePeer(t, &peer, &holdfast.Options{TaskAfter: 300 * time.Millisecond, Eras: holdfast.ErasAuto})
			config := mcptest.Must(json.Marshal(map[string]string{"url": url}))(t)
			var got map[string]string
			unmarshal(t, run(t, "node", "clients/exttasks.mjs", string(config)), &got)
			for step, want := range map[string]string{
				"immediate": " completed hi",
				"slow":      "task completed slept",
				"input":     "task completed Ada",
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
