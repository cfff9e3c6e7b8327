package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// The program serves in a container that has no other files: without capabilities, on a read-only root file
// system, as process 1. SIGTERM ends it with exit code 0. As with the chart and the image, it has an empty
// directory for its state, or for a store.
func TestContainer(t *testing.T) {
	testlong.Only(t, "it needs runc")
	t.Parallel()
	runc, err := exec.LookPath("runc")
	testlong.Needs(t, err == nil && os.Getuid() == 0, "runc, and to be root: run .ci/run tools")
	mcptest.Check(t, build())
	root := t.TempDir()
	programIn(t, root)
	for name, args := range map[string][]string{
		"memory": {"--state-dir", "/var/lib/holdfast"},
		"file":   {"--store", "file:/var/lib/holdfast"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bundle, state := t.TempDir(), t.TempDir()
			mcptest.Check(t, os.Chown(state, 65532, 65532))
			mount := func(to, kind, from string, options ...string) any {
				return map[string]any{"destination": to, "type": kind, "source": from, "options": options}
			}
			c := map[string]any{ // runc's config.json (OCI runtime specification)
				"ociVersion": "1.0.2",
				"process": map[string]any{
					"user": map[string]int{"uid": 65532, "gid": 65532}, "cwd": "/", "noNewPrivileges": true, "capabilities": map[string]any{},
					"args": append([]string{"/holdfast", "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...),
				},
				"root": map[string]any{"path": root, "readonly": true},
				"mounts": []any{
					mount("/proc", "proc", "proc"), mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
					mount("/var/lib/holdfast", "bind", state, "bind", "nosuid", "nodev"),
				},
				// Not "network", as the test connects to it.
				"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}}},
			}
			data := mcptest.Must(json.Marshal(c))(t)
			mcptest.Check(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600))
			id := fmt.Sprintf("holdfast-%s-%d", name, os.Getpid())
			t.Cleanup(func() { _ = exec.Command(runc, "delete", "--force", id).Run() })
			p := serveBy(t, exec.Command(runc, "run", "--bundle", bundle, id))
			out, err := exec.Command(built, "call", p.URL, "count", `{"to":3,"delay_ms":1}`).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "3") {
				t.Errorf("a call: %v: %s", err, out)
			}
			if kept, err := os.ReadDir(state); err != nil || len(kept) == 0 {
				t.Errorf("it keeps nothing in its directory: %v", err)
			}
			if out, err := exec.Command(runc, "kill", id, "TERM").CombinedOutput(); err != nil {
				t.Errorf("runc kill: %v: %s", err, out)
			}
			if err := p.wait(t, time.Minute); err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// programIn copies the program into an empty root file system, with the libraries that this build needs.
func programIn(t *testing.T, root string) {
	t.Helper()
	files := map[string]string{built: "/holdfast"}
	out, _ := exec.Command("ldd", built).Output() // fails for a program that needs no libraries
	for _, m := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		files[m[1]] = m[1]
	}
	for from, to := range files {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"proc", "dev", "var/lib/holdfast"} {
		mcptest.Check(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for dir := root; strings.HasPrefix(dir, os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the container's user must be able to enter it
			t.Fatal(err)
		}
	}
}
