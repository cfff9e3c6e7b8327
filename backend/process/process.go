// Package process is a backend that runs a command that speaks MCP on stdio. Each session has
// a process of its own, in a process group of its own. The stderr of the process is logged.
//
// # No orphans
//
// The processes of a session, and all processes that they have started, end with the
// session:
//
//   - When the conversation ends, the process group is killed.
//   - On Linux each process has a tag in its environment (HOLDFAST_PROCESS_TAG), by which
//     processes are found that have left the group with setsid.
//   - A guard, a small shell in a session of its own, does both if this program is killed.
//
// A descendant survives only if it has left its group and has also removed or overwritten its
// environment, or if this program may not signal processes of its user. On Unix systems other than
// Linux it survives if it has left the group. On other systems only the process itself is killed.
package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/outagelog"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
)

// tagVariable names the environment variable that marks a session's processes.
const tagVariable = "HOLDFAST_PROCESS_TAG"

// ErrClosed is the error of [Backend.Open] after [Backend.Close].
var ErrClosed = errors.New("backend is closed")

// Options configure a [Backend]. The zero value of each field stands for the default given
// with it.
type Options struct {
	// Dir is the working directory of the processes; by default that of this program. A command that
	// is a relative path is looked up in Dir, as with [exec.Cmd], and a name in the PATH of Env.
	Dir string
	// Env is the whole environment of the processes ("KEY=value"). By default it is that
	// of this program without the variables that configure Holdfast (HOLDFAST_*) or hold its
	// credentials for traces (OTEL_EXPORTER_*HEADERS, and OTEL_EXPORTER_* with a password in a URL).
	Env []string
	// Logger logs the stderr of the processes, and failures; slog.Default().
	Logger *slog.Logger
	// StderrToClient adds the last lines of a process's stderr to the error that clients get if
	// it exits by itself. By default they are in the log only.
	StderrToClient bool
	// Grace is how long a process may run after its stdin is closed, before SIGTERM, and
	// after that again, before SIGKILL; 2 s.
	Grace time.Duration
	// MaxMessage is the maximum length of a line on the stdout of a process, in bytes;
	// 64 MiB. A longer line ends the conversation.
	MaxMessage int64
	// MaxQueue is the maximum size of the messages that wait until a process reads its
	// stdin, in bytes; 8 MiB. A message beyond it is refused. A single message may be
	// larger.
	MaxQueue int64
}

// A Backend is a [backend.Backend] that starts one process for each session. Its methods
// may be called concurrently.
type Backend struct {
	path string   // absolute
	args []string // as the process sees them, with its name
	opts Options
	log  *slog.Logger
	tag  string // begins the tags of all processes of this backend

	starts *outagelog.Starts // the handler of log

	guard   guard
	sweeper sweeper
	wait    sync.WaitGroup // one for each Open under way or conversation alive

	mu     sync.Mutex
	closed bool
	opened int // conversations so far
	conns  map[*conn]struct{}
}

// New returns a backend that runs a command: a program and its arguments. The program must
// exist. opts may be nil. No process is started before the first session begins. The
// caller must call [Backend.Close], after the handler's Shutdown.
func New(command []string, opts *Options) (*Backend, error) {
	if len(command) == 0 || command[0] == "" {
		return nil, errors.New("the server's command is empty: give a program and its arguments")
	}
	b := &Backend{args: slices.Clone(command), tag: rand.Text(), conns: make(map[*conn]struct{})}
	if opts != nil {
		b.opts = *opts
	}
	b.opts.setDefaults()
	path, err := find(command[0], b.opts.Dir, b.opts.Env)
	if err != nil {
		return nil, fmt.Errorf("find the server's command: %w%s", err, remedy(command[0], b.opts.Dir, err))
	}
	if err := checkScript(path, b.opts.Dir, b.opts.Env); err != nil {
		return nil, fmt.Errorf("the server's command %q cannot run: %w", command[0], err)
	}
	b.path = path
	b.starts = outagelog.StartsOf(b.opts.Logger)
	b.log = slog.New(b.starts)
	b.guard = guard{log: b.log, mark: tagVariable + "=" + b.tag + "."}
	return b, nil
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Env == nil {
		o.Env = redact.Environ((&exec.Cmd{Dir: o.Dir}).Environ()) // with PWD, if Dir is given
	}
	o.Env = slices.Clone(o.Env)
	if o.Grace <= 0 {
		o.Grace = 2 * time.Second
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.MaxQueue <= 0 {
		o.MaxQueue = 8 << 20
	}
}

// find returns the absolute path of a program, so that every Open starts the program that New has found.
func find(name, dir string, env []string) (string, error) {
	path, own := pathOf(env)
	switch {
	case filepath.Base(name) != name:
		if dir != "" && !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
	case own && path != os.Getenv("PATH"):
		return search(name, dir, path)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// search looks for a program in the folders of a PATH. Relative folders are in dir. The current folder, which a
// PATH may have too, is left out, as by [exec.LookPath].
func search(name, dir, path string) (string, error) {
	failed := exec.ErrNotFound
	for _, in := range filepath.SplitList(path) {
		if in = filepath.Clean(in); in == "." {
			continue
		}
		if !filepath.IsAbs(in) {
			in = filepath.Join(dir, in)
		}
		at, err := exec.LookPath(filepath.Join(in, name))
		if err == nil {
			return filepath.Abs(at)
		}
		if errors.Is(err, fs.ErrPermission) {
			failed = fs.ErrPermission
		}
	}
	return "", &exec.Error{Name: name, Err: failed}
}

// pathOf returns the PATH of an environment. Without one, a program is looked for in the PATH of this program.
func pathOf(env []string) (path string, is bool) {
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if name == "PATH" || runtime.GOOS == "windows" && strings.EqualFold(name, "PATH") {
			path, is = value, true // the last counts, as with [exec.Cmd]
		}
	}
	return path, is
}

// Open implements [backend.Backend]: it starts a process. It fails if the process cannot be
// started, if ctx is done before it has started, and with [ErrClosed] after Close.
//
// The methods of sink must not call Close of the Conn, because Close waits for them.
func (b *Backend) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("start the server: %w", ErrClosed)
	}
	b.opened++
	n := b.opened
	b.wait.Add(1)
	b.mu.Unlock()

	c, err := b.open(ctx, b.tag+"."+strconv.Itoa(n), start, sink)
	if err != nil {
		b.wait.Done()
		return nil, fmt.Errorf("start the server: %w", err)
	}
	return c, nil
}

// open does the work of Open, which counts it as under way.
func (b *Backend) open(ctx context.Context, tag string, start backend.Start, sink backend.Sink) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The guard is ready before the process is there: on Linux it finds the
	// process by its tag even if we die before the next line but one. Elsewhere
	// there is a tiny window between the fork and the guard's knowing the group,
	// in which our death leaves the process alone with the end of its stdin.
	b.guard.ready()
	c, err := b.start(tag, start, sink)
	if err = notRun(err); err != nil {
		b.log.Log(ctx, b.starts.Failed("", err.Error()), "the server cannot be started", "session", start.Session, "command", b.path, "error", err)
		return nil, &protocol.NotStarted{Err: err}
	}
	b.guard.add(c.pid)

	b.mu.Lock()
	err = ctx.Err()
	if err == nil && b.closed {
		err = ErrClosed
	}
	if err == nil {
		b.conns[c] = struct{}{}
	}
	b.mu.Unlock()
	if err != nil {
		c.discard()
		return nil, err
	}
	c.run()
	return c, nil
}

// Processes implements [backend.ProcessStarter]. It returns true.
func (b *Backend) Processes() bool { return true }

// Eras implements [backend.EraSpeaker]. It returns [backend.Unknown]: the answers of a
// command tell which eras it speaks.
func (b *Backend) Eras() backend.Eras { return backend.Unknown }

// forget removes a conversation that has ended.
func (b *Backend) forget(c *conn) {
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
	b.wait.Done()
}

// sweep kills the processes that have the tag, in any process group.
func (b *Backend) sweep(tag string) {
	if err := b.sweeper.sweep(tag); err != nil {
		b.log.Warn("cannot look for descendants that left their process group", "error", err)
	}
}

// Close closes all conversations, concurrently, and returns when their processes are gone.
// It may be called more than once. The error is always nil.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		c.requestEnd()
	}
	b.mu.Unlock()
	b.wait.Wait()
	b.guard.close()
	return nil
}

// environment returns the environment of a process with the given tag. It replaces the tag
// of this program, which may be the child of another Holdfast.
func (b *Backend) environment(tag string) []string {
	return append(withoutTag(b.opts.Env), tagVariable+"="+tag)
}

func withoutTag(env []string) []string {
	kept := make([]string, 0, len(env)+1)
	for _, v := range env {
		if !strings.HasPrefix(v, tagVariable+"=") {
			kept = append(kept, v)
		}
	}
	return kept
}
