package mcptest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mostLife bounds the life of a process with an output that a test reads: nothing else would end the reading.
const mostLife = 2 * time.Minute

// A Process is a program under test. The end of the test kills it, and shows its log if the test failed.
type Process struct {
	Cmd   *exec.Cmd
	Log   Log           // its stderr, and its stdout if it is not Piped
	Ended chan struct{} // closed when the process has ended
	Err   error         // of exec.Cmd.Wait, once Ended is closed

	t     testing.TB
	in    io.WriteCloser
	lines *bufio.Scanner
}

// Start starts a program. Its output goes to Log.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := newProcess(t, cmd)
	cmd.Stdout = &p.Log
	p.start()
	return p
}

// Piped starts a program that reads messages from stdin, and writes messages to stdout, a line each.
func Piped(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := newProcess(t, cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	out, theirs, err := os.Pipe() // Wait would close a pipe of exec before all is read
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = theirs
	p.lines = bufio.NewScanner(out)
	p.lines.Buffer(nil, 4<<20)
	p.start()
	_ = theirs.Close()
	late := time.AfterFunc(mostLife, p.Kill)
	t.Cleanup(func() {
		late.Stop()
		_ = out.Close()
	})
	return p
}

func newProcess(t testing.TB, cmd *exec.Cmd) *Process {
	p := &Process{Cmd: cmd, Ended: make(chan struct{}), t: t}
	cmd.Stderr = &p.Log
	cmd.WaitDelay = 5 * time.Second // a child of the process may keep its pipes open
	return p
}

func (p *Process) start() {
	p.t.Helper()
	if err := p.Cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		p.Err = p.Cmd.Wait()
		close(p.Ended)
	}()
	p.t.Cleanup(func() {
		p.Kill()
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", strings.Join(p.Cmd.Args, " "), p.Log.String())
		}
	})
}

// Kill kills the process, and waits for its end.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill() // an error: the process has ended
	<-p.Ended
}

// Find waits until the log has a whole line that matches a pattern, and returns the match with its groups; nil: the process
// has ended without such a line.
func (p *Process) Find(pattern *regexp.Regexp) []string {
	p.t.Helper()
	var found []string
	Eventually(p.t, "a log with "+pattern.String(), mostLife, func() bool {
		over := false
		select {
		case <-p.Ended:
			over = true
		default:
		}
		text := p.Log.String()
		for _, line := range linesOf(text[:strings.LastIndexByte(text, '\n')+1], "") {
			if found = pattern.FindStringSubmatch(line); found != nil {
				return true
			}
		}
		return over
	})
	return found
}

// Say sends a message to a process that is [Piped].
func (p *Process) Say(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// Line reads the next message of a process that is [Piped]. ok is false at the end of its stdout.
func (p *Process) Line() (line string, ok bool) {
	ok = p.lines.Scan()
	return p.lines.Text(), ok
}

// Hear reads messages of a process that is [Piped] until one contains all texts, and returns that message.
func (p *Process) Hear(texts ...string) string {
	p.t.Helper()
	for p.lines.Scan() {
		if hasAll(p.lines.Text(), texts) {
			return p.lines.Text()
		}
	}
	p.t.Fatalf("no message with %q: %v", texts, p.lines.Err())
	return ""
}

// CloseStdin closes the stdin of a process that is [Piped].
func (p *Process) CloseStdin() { _ = p.in.Close() }

// Processes calls do for each process, with the text of a file in its directory in /proc. It reads only that file;
// [filepath.Glob] would list each of these directories.
func Processes(file string, do func(pid int, text []byte)) {
	names, _ := os.ReadDir("/proc")
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		if text, err := os.ReadFile(filepath.Join("/proc", name.Name(), file)); err == nil { // on an error the process has ended, or is another user's
			do(pid, text)
		}
	}
}
