package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A stdio server gets none of the secrets of the program that starts it: not in its own environment, and not from the
// files in /proc of its parent, unless GOTRACEBACK=crash makes these readable.
func TestServerReadsNoSecrets(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	for _, core := range []string{"single", "crash"} { // of GOTRACEBACK
		dir := t.TempDir()
		program, script := filepath.Join(dir, "holdfast"), `
for file in environ mem maps; do head -c 1 /proc/$PPID/$file >/dev/null 2>&1 && echo $file; done >"$1/tmp"
ls /proc/$PPID/fd >/dev/null 2>&1 && echo fd >>"$1/tmp"
env >"$1/own"
mv "$1/tmp" "$1/read"
exec cat >/dev/null`
		// Another process writes the program: if the test wrote it, a process that another test starts meanwhile would inherit
		// the open file, and the program could not be run.
		if out, err := exec.Command("install", "-m", "755", built, program).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cmd := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", "sh", "-c", script, "sh", dir)
		cmd.Dir = dir
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "GOTRACEBACK=" + core, "OF_THE_SERVER=yes",
			"HOLDFAST_ADMIN_TOKEN=secret-1", "OTEL_EXPORTER_OTLP_HEADERS=authorization=secret-2", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=secret-3",
			"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://user:secret-4@127.0.0.1:9/", "OTEL_SERVICE_NAME=of-all",
		}
		if os.Getuid() == 0 { // root may read everything
			for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
				if err := os.Chmod(d, 0o777); err != nil { //nolint:gosec // as above
					t.Fatal(err)
				}
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		p := serveBy(t, cmd)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		go func() { // the request gets no answer
			_, _ = mcptest.Exchange(ctx, http.MethodPost, p.URL, begins)
		}()
		var read []byte
		mcptest.Eventually(t, "what the server could read", time.Minute, func() bool {
			var err error
			read, err = os.ReadFile(filepath.Join(dir, "read"))
			return err == nil
		})
		stop()
		own := mcptest.Must(os.ReadFile(filepath.Join(dir, "own")))(t)
		if text := string(own); strings.Contains(text, "secret-") || !strings.Contains(text, "OF_THE_SERVER=yes") || !strings.Contains(text, "OTEL_SERVICE_NAME=of-all") {
			t.Errorf("the environment of the server is\n%s", own)
		}
		if got := strings.Fields(string(read)); (len(got) == 0) != (core != "crash") {
			t.Errorf("GOTRACEBACK=%s: the server could read %v of its parent", core, got)
		}
		if err := p.stop(t); err != nil {
			t.Error(err)
		}
	}
}
