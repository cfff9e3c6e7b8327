package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"holdfast/backend"
	"holdfast/backend/process"
	"holdfast/backend/remote"
	"holdfast/client"
	"holdfast/internal/config"
	"holdfast/internal/outagelog"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
)

// A runner is a backend that can be closed.
type runner interface {
	backend.Backend
	backend.EraSpeaker
	close()
}

// newRunner returns the runner of a server.
func newRunner(conf *config.Server, log *slog.Logger) runner {
	if conf.Type == config.Stdio {
		starts := outagelog.StartsOf(log)
		return &command{conf: conf, log: slog.New(starts), starts: starts}
	}
	transport := map[string]client.Transport{config.Any: client.Auto, config.HTTP: client.HTTP, config.SSE: client.SSE}[conf.Type]
	if strings.HasPrefix(conf.URL, "ws") {
		transport = client.Auto
	}
	return elsewhere{remote.New(conf.URL, &remote.Options{Header: conf.Header, PassAuthorization: needsToken(conf), HTTPClient: Network(conf.URL, conf.Auth.Token, log), Transport: transport, Logger: log})}
}

// elsewhere is a server over HTTP.
type elsewhere struct{ *remote.Backend }

func (elsewhere) close() {}

// command is a server that is a process for each session. The command need not exist before
// it is needed: it may be installed later, and other servers do not suffer.
type command struct {
	conf   *config.Server
	log    *slog.Logger
	starts *outagelog.Starts // the handler of log: the process backend has it, too

	mu     sync.Mutex
	inner  *process.Backend // nil until it is needed
	closed bool
}

// Eras implements [backend.EraSpeaker].
func (*command) Eras() backend.Eras { return backend.Unknown }

// Processes implements [backend.ProcessStarter]: a command writes all its messages to one pipe.
func (*command) Processes() bool { return true }

// Open implements [backend.Backend].
func (c *command) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	b, err := c.backend()
	if err != nil {
		return nil, err
	}
	conn, err := b.Open(ctx, start, sink)
	if not, ok := errors.AsType[*protocol.NotStarted](err); ok {
		return nil, &protocol.NotStarted{Server: c.conf.Name, Err: not.Err}
	}
	return conn, err
}

func (c *command) backend() (*process.Backend, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil || c.closed {
		if c.closed {
			return nil, process.ErrClosed
		}
		return c.inner, nil
	}
	b, at, err := newProcess(c.conf, c.log)
	if err != nil {
		c.log.Log(context.Background(), c.starts.Failed("", err.Error()), "the server cannot be started", "command", c.conf.Command[0], "at", at.String(), "error", err)
		return nil, &protocol.NotStarted{Server: c.conf.Name, Err: err}
	}
	c.inner = b
	return b, nil
}

// tellNotRunnable logs why the command cannot run, as far as that is known without running it. The same error is not logged
// again when a client meets it.
func (c *command) tellNotRunnable() {
	b, at, err := newProcess(c.conf, nil)
	if err == nil {
		_ = b.Close() // always nil
		return
	}
	c.log.Log(context.Background(), c.starts.Failed("", err.Error()), "a server cannot start for now, others are served", "error", notRunnable(c.conf, at, err))
}

func (c *command) close() {
	c.mu.Lock()
	c.closed = true
	b := c.inner
	c.mu.Unlock()
	if b != nil {
		_ = b.Close() // always nil
	}
}

// environment returns the whole environment of a command: this program's, without its own
// variables ([redact.Environ]), and the variables of the file.
func environment(conf *config.Server) []string {
	env := slices.DeleteFunc(redact.Environ(os.Environ()), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, replaced := conf.Env[name]
		return replaced || name == "PWD" && conf.Dir != ""
	})
	if conf.Dir != "" {
		env = append(env, "PWD="+conf.Dir)
	}
	for _, name := range slices.Sorted(maps.Keys(conf.Env)) {
		env = append(env, name+"="+conf.Env[name])
	}
	return env
}

// Runnable returns why a server cannot run, as far as that is known without running it. The error has the place
// in the file.
func Runnable(conf *config.Server) error {
	if conf.Type != config.Stdio {
		return nil
	}
	b, at, err := newProcess(conf, nil)
	if err != nil {
		return notRunnable(conf, at, err)
	}
	return b.Close()
}

func notRunnable(conf *config.Server, at config.Place, err error) error {
	return fmt.Errorf("%v: the server %q cannot start: %w", at, conf.Name, err)
}

// newProcess returns the backend of a command. The error says what to do; at is its place in the file.
func newProcess(conf *config.Server, log *slog.Logger) (b *process.Backend, at config.Place, err error) {
	if conf.Dir != "" {
		if is, err := os.Stat(conf.Dir); err != nil || !is.IsDir() {
			return nil, conf.DirAt, fmt.Errorf("its working directory %s is not there: make it, or set another with \"cwd\"", conf.Dir)
		}
	}
	b, err = process.New(conf.Command, &process.Options{Dir: conf.Dir, Env: environment(conf), Logger: log, StderrToClient: conf.StderrToClient})
	if errors.Is(err, exec.ErrNotFound) && conf.Env["PATH"] != "" {
		err = fmt.Errorf("%w (the file sets the $PATH of the server)", err)
	}
	return b, conf.RunsAt, err
}
