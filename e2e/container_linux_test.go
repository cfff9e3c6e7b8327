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

// A container is the part of runc's config.json that the test writes (OCI runtime specification).
type container struct {
	Version string `json:"ociVersion"`
	Process struct {
		User struct {
			UID int `json:"uid"`
			GID int `json:"gid"`
		} `json:"user"`
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Dir             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
	} `json:"process"`
	Root struct {
		Path     string `json:"path"`
		ReadOnly bool   `json:"readonly"`
	} `json:"root"`
	Mounts []containerMount `json:"mounts"`
	Linux  struct {
		Namespaces []map[string]string `json:"namespaces"`
	} `json:"linux"`
}

type containerMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

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
			var c container
			c.Version = "1.0.2"
			c.Process.User.UID, c.Process.User.GID = 65532, 65532
			c.Process.Args = append([]string{"/holdfast", "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
			c.Process.Dir, c.Process.NoNewPrivileges, c.Process.Capabilities = "/", true, map[string][]string{}
			c.Root.Path, c.Root.ReadOnly = root, true
			c.Mounts = []containerMount{
				{"/proc", "proc", "proc", nil},
				{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
				{"/var/lib/holdfast", "bind", state, []string{"bind", "nosuid", "nodev"}},
			}
			for _, kind := range []string{"pid", "mount", "ipc", "uts"} { // not "network", as the test connects to it
				c.Linux.Namespaces = append(c.Linux.Namespaces, map[string]string{"type": kind})
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
