package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// packages makes the packages of a release, with the program under test as the program for this platform.
func packages(t *testing.T) (dir string) {
	t.Helper()
	mcptest.Check(t, build())
	program := mcptest.Must(os.ReadFile(built))(t)
	dist := t.TempDir()
	var sums strings.Builder
	for _, arch := range []string{"amd64", "arm64"} {
		var b bytes.Buffer
		g := mcptest.Must(gzip.NewWriterLevel(&b, gzip.BestSpeed))(t)
		w := tar.NewWriter(g)
		of := program
		if arch != runtime.GOARCH {
			of = []byte("of another platform")
		}
		for name, data := range map[string][]byte{"holdfast": of, "LICENSE": []byte("A license\n")} {
			mcptest.Check(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}))
			mcptest.Must(w.Write(data))(t)
		}
		mcptest.Check(t, w.Close())
		mcptest.Check(t, g.Close())
		name := "holdfast_1.2.3_linux_" + arch + ".tar.gz"
		mcptest.Check(t, os.WriteFile(filepath.Join(dist, name), b.Bytes(), 0o600))
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b.Bytes()), name)
	}
	mcptest.Check(t, os.WriteFile(filepath.Join(dist, "checksums.txt"), []byte(sums.String()), 0o600))
	dir = filepath.Join(dist, "packages")
	if out, err := exec.Command("go", "run", "holdfast/deploy/pack", "-partial", "-out", dir, dist).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// A registry serves packages to npm.
type registry struct {
	URL     string
	mu      sync.Mutex
	fetched []string // the names of the packages that were fetched
}

// newRegistry starts a registry with the packages in a directory.
func newRegistry(t *testing.T, dir string) *registry {
	t.Helper()
	mux := http.NewServeMux()
	r := &registry{URL: mcptest.Serve(t, mux)}
	all, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no packages: %v", err)
	}
	for _, file := range all {
		data := mcptest.Must(os.ReadFile(file))(t)
		z := mcptest.Must(gzip.NewReader(bytes.NewReader(data)))(t)
		var manifest map[string]any
		first := tar.NewReader(z)
		if head, err := first.Next(); err != nil || head.Name != "package/package.json" {
			t.Fatalf("%s begins with %v, %v", file, head, err)
		}
		mcptest.Check(t, json.NewDecoder(first).Decode(&manifest))
		sum := sha512.Sum512(data)
		manifest["dist"] = map[string]string{
			"tarball": r.URL + "/files/" + filepath.Base(file), "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
		}
		name, version := manifest["name"].(string), manifest["version"].(string)
		answer := mcptest.Must(json.Marshal(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: manifest},
		}))(t)
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(answer)
		})
		mux.HandleFunc("GET /files/"+filepath.Base(file), func(w http.ResponseWriter, _ *http.Request) {
			r.mu.Lock()
			r.fetched = append(r.fetched, name)
			r.mu.Unlock()
			_, _ = w.Write(data)
		})
	}
	return r
}

// throughACut makes a call, cuts its connection, and reads the rest of the call on another connection.
func throughACut(t *testing.T, p *program) {
	t.Helper()
	c := connect(t, p)
	l := c.count(4, 50*time.Millisecond)
	l.until(2)
	l.Close()
	rest := c.listen("GET", l.LastID, "").rest()
	if want := counted(2, 4); !slices.Equal(rest.received, want) {
		t.Errorf("after the cut: %q, want %q", rest.received, want)
	}
}

// In an empty directory with an empty cache, npx and pip install the packages, and a call survives a cut. npm fetches only the
// package and the program of this platform. The script passes on signals, the exit code and stdin.
func TestPackages(t *testing.T) {
	t.Parallel()
	npx, err := exec.LookPath("npx")
	testlong.Needs(t, err == nil, "npx: install npm")
	python, err := exec.LookPath("python3")
	testlong.Needs(t, err == nil, "python3")
	dir, self := packages(t), mcptest.Must(os.Executable())(t)
	ways := map[string]string{"in place of the script": "", "as a child": "process.execve = undefined"}
	if !*peers {
		delete(ways, "as a child")
	}
	for way, before := range ways {
		t.Run("npx, "+way, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, dir)
			home := t.TempDir()
			project := filepath.Join(home, "project")
			mcptest.Check(t, os.Mkdir(project, 0o700))
			preload := filepath.Join(home, "before.cjs")
			mcptest.Check(t, os.WriteFile(preload, []byte(before), 0o600))
			command := func(program string, args ...string) *exec.Cmd {
				cmd := exec.Command(program, args...)
				cmd.Dir = project
				cmd.Env = append(os.Environ(), "HOME="+home, "npm_config_cache="+filepath.Join(home, "cache"), "npm_config_registry="+r.URL, "npm_config_audit=false", "npm_config_update_notifier=false", "NODE_OPTIONS=--require="+preload)
				return cmd
			}
			began := time.Now()
			p := serveBy(t, command(npx, "--yes", "holdfast", "serve", "--listen", "127.0.0.1:0", "--", self, "stdio"))
			throughACut(t, p)
			t.Logf("from an empty directory to a call through a cut with npx: %.1f s", time.Since(began).Seconds())
			r.mu.Lock()
			slices.Sort(r.fetched)
			if arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]; !slices.Equal(r.fetched, []string{"holdfast", "holdfast-linux-" + arch}) {
				t.Errorf("npm has fetched %q", r.fetched)
			}
			r.mu.Unlock()
			p.signal(t, syscall.SIGTERM) // npx passes the signal on to a shell only
			_ = p.wait(t, time.Minute)   // until all processes that write to its stderr have ended
			if !strings.Contains(p.log.String(), "msg=stopped") {
				t.Errorf("after SIGTERM for npx: %s", p.log.String())
			}

			found, err := filepath.Glob(filepath.Join(home, "cache", "_npx", "*", "node_modules", ".bin", "holdfast"))
			if err != nil || len(found) != 1 {
				t.Fatalf("installed are %q, %v", found, err)
			}
			shim := found[0]
			for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
				p := serveBy(t, command(shim, "serve", "--listen", "127.0.0.1:0", "--", self, "stdio"))
				connect(t, p)
				p.signal(t, signal)
				if err := p.wait(t, time.Minute); err != nil || !strings.Contains(p.log.String(), "msg=stopped") {
					t.Errorf("after %v: %v", signal, err)
				}
			}
			p = serveBy(t, command(shim, "serve", "--listen", "127.0.0.1:0", "--", self, "stdio"))
			p.signal(t, syscall.SIGKILL)
			_ = p.wait(t, time.Minute)
			if conn, err := net.Dial("tcp", p.Addr); err == nil {
				_ = conn.Close()
				t.Error("a program still serves whose script was killed")
			}
			wrong := command(shim, "serve", "--listne", "x")
			if out, _ := wrong.CombinedOutput(); wrong.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "--listen") || strings.Contains(string(out), "Warning") {
				t.Errorf("a wrong flag: %v, %s", wrong.ProcessState, out)
			}
			host := command(shim, "connect", "--", self, "stdio")
			host.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}` + "\n")
			if out, err := host.Output(); err != nil || !strings.Contains(string(out), `"name":"counter"`) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("over stdio: %v, %q", err, out)
			}
		})
	}
	t.Run("the wheel", func(t *testing.T) {
		t.Parallel()
		home := t.TempDir()
		began := time.Now()
		for _, args := range [][]string{
			{python, "-m", "venv", "venv"},
			{"venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-index", "--find-links", dir, "holdfast"},
		} {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%q: %v\n%s", args, err, out)
			}
		}
		installed := time.Since(began)
		cmd := exec.Command("venv/bin/holdfast", "serve", "--listen", "127.0.0.1:0", "--", self, "stdio")
		cmd.Dir = home
		p := serveBy(t, cmd)
		throughACut(t, p)
		t.Logf("from an empty directory to a call through a cut with the wheel: %.1f s, of which the environment and the installation took %.1f s", time.Since(began).Seconds(), installed.Seconds())
	})
}
