package process

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// drainWait is how long output is awaited after the process is gone: first until other holders
// of the pipe close it, then once more for the bytes that the process itself left in it.
const drainWait = 50 * time.Millisecond

// reasonWait bounds how long a delivery that has failed waits for the reason: the output is read first.
const reasonWait = 20 * drainWait

// A conn is the process of one session. It has these goroutines, which have ended when done
// is closed: supervise, which decides how the process ends; watch, which waits for its exit;
// and write, readMessages and readLog, one for each pipe.
type conn struct {
	b    *Backend
	log  *slog.Logger
	sink backend.Sink

	cmd *exec.Cmd
	pid int // of the process, and the name of its group
	tag string

	stdin          *os.File
	stdout, stderr *output
	queue          queue
	requests       rpc.Table[struct{}]
	unreadable     *rpc.Unreadable // used by readMessages
	spoke          bool            // the process has sent a message; used by readMessages, and after its end
	asked          atomic.Bool     // the process got a request beside initialize and server/discover
	said           tail            // the end of stderr; used by readLog, and after its end
	early          early           // its output before its first message

	closeOnce sync.Once     // closes closing
	closing   chan struct{} // closed: Close was called
	faults    chan fault    // room for one from each goroutine that sends
	exited    chan struct{} // closed: the process has exited, and may be a zombie
	known     chan struct{} // closed: why is set
	why       error         // why the conversation ended; nil: Close was called
	done      chan struct{} // closed: no process and no goroutine is left

	readers, others sync.WaitGroup
	reap            func() string // frees the zombie, and returns how it ended
}

// A fault is a reason to end a conversation other than Close or the exit of the process.
type fault struct {
	why error
	// patient says that the process will probably exit soon, and that its exit status
	// will be the better reason.
	patient bool
}

// start starts a process, without the goroutines of conn.
func (b *Backend) start(tag string, start backend.Start, sink backend.Sink) (*conn, error) {
	c := &conn{
		b: b, sink: sink, tag: tag,
		log:     b.log.With("session", start.Session),
		closing: make(chan struct{}),
		faults:  make(chan fault, 2),
		exited:  make(chan struct{}),
		known:   make(chan struct{}),
		done:    make(chan struct{}),
	}
	c.queue.init(b.opts.MaxQueue)
	c.unreadable = rpc.NewUnreadable(inFlight{c})
	c.early.log, c.early.held = c.log, b.starts.Failing()
	c.cmd = &exec.Cmd{Path: b.path, Args: b.args, Dir: b.opts.Dir, Env: b.environment(tag)}
	c.cmd.SysProcAttr = ownGroup()
	// Not the pipes of os/exec: its Wait closes them before they are read empty.
	var pipes [3][2]*os.File // stdin, stdout, stderr; each a reading and a writing end
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			closePipes(slices.Concat(pipes[0][:], pipes[1][:])...)
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		pipes[i] = [2]*os.File{r, w}
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	c.stdin, c.stdout, c.stderr = pipes[0][1], newOutput(pipes[1][0]), newOutput(pipes[2][0])
	err := c.cmd.Start()
	closePipes(pipes[0][0], pipes[1][1], pipes[2][1]) // the process has its own
	if err != nil {
		closePipes(c.stdin, c.stdout.f, c.stderr.f)
		return nil, err
	}
	c.pid = c.cmd.Process.Pid
	c.reap = sync.OnceValue(func() string {
		if err := c.cmd.Wait(); err != nil && c.cmd.ProcessState == nil {
			return err.Error()
		}
		return c.cmd.ProcessState.String()
	})
	return c, nil
}

// discard ends a process that was never run.
func (c *conn) discard() {
	c.signal(syscall.SIGKILL)
	c.b.guard.remove(c.pid)
	c.reap()
	closePipes(c.stdin, c.stdout.f, c.stderr.f)
	c.b.sweep(c.tag)
}

// signal sends a signal to the whole process group.
func (c *conn) signal(s syscall.Signal) {
	if err := signalGroup(c.cmd.Process, s); err != nil {
		c.log.Warn("cannot signal the server's processes", "pid", c.pid, "signal", s.String(), "error", err)
	}
}

// run starts the goroutines.
func (c *conn) run() {
	c.log.Debug("server process started", "pid", c.pid)
	c.readers.Go(c.readMessages)
	c.readers.Go(c.readLog)
	c.others.Go(c.write)
	c.others.Go(c.watch)
	go c.supervise()
}

// watch closes exited when the process exits.
func (c *conn) watch() {
	// A zombie keeps its id, so that the name of its group cannot have come to mean another
	// group when that is killed. Hence it is reaped later, if possible.
	if !awaitExit(c.pid) {
		c.reap()
	}
	close(c.exited)
}

// supervise waits for the end of the process, or ends it, and cleans up.
func (c *conn) supervise() {
	why := c.untilExit()
	c.queue.close(errors.New("the server process has ended"))
	closePipes(c.stdin)
	// If it exited by itself, its output is read before its descendants are killed: one
	// of them may be a filter that writes the output.
	if c.closed() || why != nil {
		c.signal(syscall.SIGKILL)
	}
	deadline := time.Now().Add(drainWait)
	c.stdout.endBy(deadline)
	c.stderr.endBy(deadline)
	c.readers.Wait()
	c.unreadable.Close()
	c.signal(syscall.SIGKILL)
	c.b.guard.remove(c.pid)
	status := c.reap()
	c.others.Wait()
	closePipes(c.stdin, c.stdout.f, c.stderr.f)
	c.log.Debug("server process ended", "pid", c.pid, "status", status)
	level := slog.LevelError // other than Debug: the held lines are logged
	if !c.closed() {
		if why == nil {
			exit := &exitError{atStart: !c.spoke && !c.asked.Load(), status: status, stderr: c.said.String(), toClient: c.b.opts.StderrToClient}
			if exit.atStart {
				level = c.endedAtStart(exit)
			}
			why = exit
		}
		c.why = why
	}
	c.early.release(level != slog.LevelDebug)
	close(c.known)
	if c.why != nil {
		c.sink.Closed(c.why, true) // clients see the reason
	}
	c.b.sweep(c.tag)
	c.b.forget(c)
	close(c.done)
}

// untilExit returns nil when the process has exited, by itself or because of Close. If
// untilExit has killed the process because of a fault, it returns why.
func (c *conn) untilExit() error {
	select {
	case <-c.exited:
		return nil
	case <-c.closing:
	case f := <-c.faults:
		if f.patient && c.exitsInTime() {
			return nil
		}
		c.signal(syscall.SIGKILL)
		<-c.exited
		return f.why
	}
	c.queue.close(errors.New("the session is closed"))
	closePipes(c.stdin)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if c.exitsInTime() {
			return nil
		}
		c.signal(s)
	}
	<-c.exited
	return nil
}

// exitsInTime reports whether the process exits within the grace period.
func (c *conn) exitsInTime() bool {
	t := time.NewTimer(c.b.opts.Grace)
	defer t.Stop()
	select {
	case <-c.exited:
		return true
	case <-t.C:
		return false
	}
}

// Deliver queues a message for the stdin of the process. It does not wait. It fails if the
// conversation has ended, or if the process does not read its stdin.
func (c *conn) Deliver(in backend.Inbound) error {
	m := in.Message
	switch {
	case m.Kind == jsonrpc.Request:
		if m.Method != protocol.MethodInitialize && m.Method != protocol.MethodDiscover {
			c.asked.Store(true)
		}
		m = c.requests.Add(m, struct{}{})
	case m.Kind == jsonrpc.Notification && m.Method == protocol.MethodCancelled:
		m = c.requests.Cancelled(m)
	}
	if err := c.queue.put(m.Raw); err != nil {
		if m.Kind == jsonrpc.Request {
			c.requests.End(m.ID)
		}
		return fmt.Errorf("deliver to the server process: %w", c.reason(err))
	}
	return nil
}

// reason returns why the process has ended, if that made a delivery fail; else the error of the delivery.
func (c *conn) reason(err error) error {
	select {
	case <-c.exited:
	default:
		return err
	}
	t := time.NewTimer(reasonWait)
	defer t.Stop()
	select {
	case <-c.known:
	case <-t.C:
		return err
	}
	return cmp.Or(c.why, err)
}

// Close ends the process: it closes its stdin, sends SIGTERM after a grace period and
// SIGKILL after another, and kills its descendants. It returns when all of them are
// gone. It does not cause a call of the sink's Closed. It may be called more than once, but
// not from a method of the sink.
func (c *conn) Close() error {
	c.requestEnd()
	<-c.done
	return nil
}

func (c *conn) requestEnd() { c.closeOnce.Do(func() { close(c.closing) }) }

// closed reports whether Close was called.
func (c *conn) closed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}
