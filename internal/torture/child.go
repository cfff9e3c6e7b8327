package torture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
)

// The answers of a [post].
const (
	wordOn   = "on"
	wordKill = "kill"
)

// A post listens for reports of the calls that have reached the stdin of servers' processes, and answers whether to kill
// the process.
type post struct {
	l    net.Listener
	a    *arrivals
	wait sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil: closed
}

// newPost listens for processes that [Child] runs.
func newPost(a *arrivals) (*post, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &post{l: l, a: a, conns: make(map[net.Conn]struct{})}
	p.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wait.Go(func() { p.take(c) })
		}
	})
	return p, nil
}

func (p *post) addr() string { return p.l.Addr().String() }

func (p *post) close() {
	_ = p.l.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *post) take(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	if p.conns == nil {
		p.mu.Unlock()
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		word := wordOn
		if p.a.add(lines.Text()) {
			word = wordKill
		}
		if _, err := fmt.Fprintln(c, word); err != nil {
			return
		}
	}
}

// Child runs a command with this program's stdin and stdout, and reports to the post at addr each call before it reaches
// the command's stdin. It kills the command, and itself, when the post says so. It returns the exit code. This program
// must be in a process group of its own.
func Child(addr string, command []string) (int, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the user's
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		defer in.Close()
		deliver(os.Stdin, in, c, func() { killAll(cmd) })
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// deliver copies the lines of from to the stdin of a server. Before each call it sends the call's tag over c. If the
// answer is wordKill, it kills the server as soon as the server has the call.
func deliver(from io.Reader, in io.Writer, c io.ReadWriter, kill func()) {
	words := bufio.NewReader(c)
	for lines := bufio.NewReader(from); ; {
		text, end := lines.ReadBytes('\n')
		word := ""
		if tag := tagIn(text); tag != "" {
			if _, err := fmt.Fprintln(c, tag); err != nil {
				return
			}
			word, _ = words.ReadString('\n') // without an answer the torture is over
		}
		if _, err := in.Write(text); err != nil {
			return
		}
		if word == wordKill+"\n" {
			kill()
		}
		if end != nil {
			return
		}
	}
}
