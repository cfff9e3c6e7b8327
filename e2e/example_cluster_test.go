package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// The report of examples/cluster says that nodes were killed, and that calls were answered.
var exampleWorked = regexp.MustCompile(`(?s)[1-9]\d*  nodes were killed\n.*[1-9]\d*  were answered`)

// TestExampleCluster runs the example as in its README, for a few seconds. The example exits with 1 if a call was lost or run twice.
func TestExampleCluster(t *testing.T) {
	testlong.Only(t, "it runs an example for seconds; other tests have all that it shows")
	t.Parallel()
	program := filepath.Join(t.TempDir(), "cluster")
	if out, err := exec.Command("go", "build", "-o", program, "holdfast/examples/cluster").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for duration := 4 * time.Second; ; duration *= 2 {
		out, err := exec.CommandContext(t.Context(), program, "-duration", duration.String(), "-clients", "10", "-kill-every", "1s").CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Fatal(err)
		}
		if exampleWorked.Match(out) {
			return
		}
		// On a machine that stalls the time is over before a node was killed or a call answered.
		if duration > 30*time.Second {
			t.Fatal("no call was answered, or no node was killed")
		}
	}
}
