// Package process is a stdio MCP server as a backend: every session gets a
// process of its own, in a process group of its own.
//
// # No orphan, ever
//
// What a session's process started ends with the session, in three ways:
//
//   - When a conversation ends, by whichever side, its process group is killed.
//   - On Linux, every process carries a tag in its environment
//     (HOLDFAST_PROCESS_TAG), and what left the group by setsid is found by it.
//   - A guard, a small shell in a session of its own, does the same when this
//     process dies without a word.
//
// A descendant escapes only if it both left its group and removed or overwrote
// its environment, or runs as a user that we may not signal. On Unix systems
// other than Linux leaving the group is enough; on other systems only the
// process itself is killed.
package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
)

// tagVariable names the environment variable that marks a session's processes.
const tagVariable = "HOLDFAST_PROCESS_TAG"

// ownVariables begins the names of those that set up Holdfast.
const ownVariables = "HOLDFAST_"

// ErrClosed is what Open gives after Close.
var ErrClosed = errors.New("backend is closed")

// Options are the choices that have a default. The zero value is useful.
type Options struct {
	// Dir is the working directory; "" means this process's own. A command that
	// is a relative path is looked for there, as with [exec.Cmd].
	Dir string
	// Env is the whole environment ("KEY=value"); nil means this process's own,
	// without the variables that Holdfast itself is set up with (HOLDFAST_*), which
	// are no business of the server's.
	Env []string
	// Logger gets the server's stderr and what goes wrong; nil means
	// [slog.Default].
	Logger *slog.Logger
	// Grace is how long a process is given from the end of its stdin to SIGTERM,
	// and again from there to SIGKILL. 0 means 2 s.
	Grace time.Duration
	// MaxMessage bounds a line on the server's stdout, in bytes. A longer one
	// ends the conversation. 0 means 64 MiB.
	MaxMessage int64
	// MaxQueue bounds what waits for the server to read its stdin, in bytes; what
	// goes beyond it is refused. A larger message is taken if nothing else waits.
	// 0 means 8 MiB.
	MaxQueue int64
}

// A Backend starts one process per session. Its methods may be called
// concurrently.
type Backend struct {
	path string   // absolute
	args []string // as the process sees them, with its name
	opts Options
	tag  string // of everything that this backend starts

	guard   guard
	sweeper sweeper
	wait    sync.WaitGroup // one for each Open under way or conversation alive

	mu     sync.Mutex
	closed bool
	opened int // conversations so far
	conns  map[*conn]struct{}
}

// New makes a backend of a command: a program, which must exist, and its
// arguments. opts may be nil. No process is started before the first Open.
func New(command []string, opts *Options) (*Backend, error) {
	if len(command) == 0 || command[0] == "" {
		return nil, errors.New("make a process backend: the command is empty")
	}
	b := &Backend{args: slices.Clone(command), tag: rand.Text(), conns: make(map[*conn]struct{})}
	if opts != nil {
		b.opts = *opts
	}
	b.opts.setDefaults()
	path, err := find(command[0], b.opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the server's command: %w", err)
	}
	b.path = path
	b.guard = guard{log: b.opts.Logger, mark: tagVariable + "=" + b.tag + "."}
	return b, nil
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Env == nil {
		o.Env = slices.DeleteFunc((&exec.Cmd{Dir: o.Dir}).Environ(), func(v string) bool { // with PWD, if Dir is given
			return strings.HasPrefix(v, ownVariables)
		})
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

// find returns the absolute path of a program, so that what New found is what
// every Open starts.
func find(name, dir string) (string, error) {
	if dir != "" && filepath.Base(name) != name && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// Open starts a process for one session. It fails if the process can't be
// started, if ctx is done before it is, and with [ErrClosed] after Close.
//
// The Sink must not call Close of the Conn from inside its own methods, because
// Close waits for them.
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
	if err != nil {
		return nil, err
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

// Processes reports that each conversation is a process: see [backend.ProcessStarter].
func (b *Backend) Processes() bool { return true }

// forget ends the accounting of a conversation that Open accepted.
func (b *Backend) forget(c *conn) {
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
	b.wait.Done()
}

// sweep kills what carries the tag, wherever it went.
func (b *Backend) sweep(tag string) {
	if err := b.sweeper.sweep(tag); err != nil {
		b.opts.Logger.Warn("cannot look for descendants that left their process group", "error", err)
	}
}

// Close ends every conversation as their own Close would, at the same time, and
// then the guard. It returns when all of their processes are gone; it may be
// called more than once.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		c.askToEnd()
	}
	b.mu.Unlock()
	b.wait.Wait()
	b.guard.close()
	return nil
}

// environment returns the variables of a process with the given tag. A tag that
// we carry ourselves, being some other Holdfast's child, is replaced.
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
