//go:build unix

package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// guardPatience is how long the guard may leave a line unread before it counts
// as broken.
const guardPatience = time.Second

// guardScript keeps a set of process groups, as shell variables ("+ PGID" and "- PGID" on
// its stdin). At end of file, which is our death, it kills them, and then every process
// with the mark, $1, in its environment. "quit" ends it.
//
// GNU's grep finds marked processes fast; others (busybox) stop at the first NUL of an
// environment. If grep finds no text after a NUL, the shell itself, which skips NULs, looks
// once more: it makes a system call for each byte. A process between two programs (execve)
// has no environment for a moment, so grep ends after two rounds that find no process.
const guardScript = `
trap '' HUP INT QUIT TERM PIPE
while read -r verb group; do
	case $verb in
	+) eval "holdfast_group_$group=1" ;;
	-) unset "holdfast_group_$group" ;;
	quit) exit 0 ;;
	esac
done
set | while IFS== read -r name value; do
	case $name in
	holdfast_group_*) kill -s KILL -- "-${name#holdfast_group_}" ;;
	esac
done
[ -r /proc/self/environ ] || exit 0
round=0
nobody=0
while [ $round -lt 50 ] && [ $nobody -lt 2 ]; do
	nobody=$((nobody + 1))
	for file in $(grep -lF -e "$1" /proc/[0-9]*/environ); do
		nobody=0
		pid=${file#/proc/}
		kill -s KILL "${pid%/environ}"
	done
	round=$((round + 1))
done
printf 'a\0b' | grep -qF b && exit 0
for file in /proc/[0-9]*/environ; do
	while IFS= read -r line || [ "$line" ]; do
		case $line in
		*"$1"*)
			pid=${file#/proc/}
			kill -s KILL "${pid%/environ}"
			break
			;;
		esac
	done <"$file"
done
`

// A guard is a shell that lives a moment longer than this program, to kill the processes that
// it leaves behind. It is started when it is first needed, and again if it was killed. Without
// a guard everything works as long as this program ends in good order; a warning is logged.
type guard struct {
	log  *slog.Logger
	mark string // a text that the environments of all our processes contain

	// mu keeps the lines in order. It is held while a line is written: lines are a few
	// bytes, and the pipe takes thousands before guardPatience counts.
	mu      sync.Mutex
	groups  map[int]bool
	running *guardProcess // nil: none
	warned  bool
}

// ready starts the guard if it is not running.
func (g *guard) ready() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.send("")
}

// add makes the guard kill a process group when this program dies.
func (g *guard) add(group int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.send(fmt.Sprintf("+ %d\n", group))
	if g.groups == nil {
		g.groups = make(map[int]bool)
	}
	g.groups[group] = true
}

// remove makes the guard forget a process group.
func (g *guard) remove(group int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, group)
	g.send(fmt.Sprintf("- %d\n", group))
}

// close ends the guard and waits for it. No group may be left.
func (g *guard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.running
	g.running = nil
	if p == nil {
		return
	}
	if p.write("quit\n") == nil {
		select {
		case <-p.exited:
		case <-time.After(guardPatience):
		}
	}
	p.kill()
}

// send writes a line to the guard, and starts it if necessary. mu is held.
func (g *guard) send(line string) {
	if p := g.running; p != nil {
		err := p.write(line)
		if err == nil {
			return
		}
		g.log.Warn("the guard of the server processes is gone; starting another", "error", err)
		p.kill()
		g.running = nil
	}
	p, err := startGuard(g.mark)
	for group := range g.groups {
		if err == nil {
			err = p.write(fmt.Sprintf("+ %d\n", group))
		}
	}
	if err == nil {
		err = p.write(line)
	}
	if err == nil {
		g.running = p
		return
	}
	if p != nil {
		p.kill()
	}
	if !g.warned {
		g.warned = true
		g.log.Warn("no guard: server processes may live on if this process is killed", "error", err)
	}
}

// A guardProcess is one life of the guard.
type guardProcess struct {
	process *os.Process
	stdin   *os.File
	exited  chan struct{} // closed: the guard has exited
}

func startGuard(mark string) (*guardProcess, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	defer closePipes(r)
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/bin:/bin"
	}
	// The guard's environment has no tag: not ours, and not that of a Holdfast that may be
	// our parent, or the parent's sweep would kill the guard along with us.
	cmd := &exec.Cmd{
		Path: "/bin/sh", Args: []string{"holdfast-guard", "-c", guardScript, "holdfast-guard", mark},
		Dir: "/", Env: []string{"PATH=" + path, "LC_ALL=C"}, Stdin: r,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		closePipes(w)
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	p := &guardProcess{process: cmd.Process, stdin: w, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended changes nothing
		close(p.exited)
	}()
	return p, nil
}

// write writes a line, or nothing if it is empty, to a guard that is alive.
func (p *guardProcess) write(line string) error {
	select {
	case <-p.exited:
		return errors.New("it has exited")
	default:
	}
	if line == "" {
		return nil
	}
	if err := p.stdin.SetWriteDeadline(time.Now().Add(guardPatience)); err != nil {
		return err
	}
	_, err := p.stdin.WriteString(line)
	return err
}

// kill ends the guard before it sees the end of its stdin, which it would take
// for our death.
func (p *guardProcess) kill() {
	_ = p.process.Kill() // it may have exited
	<-p.exited
	closePipes(p.stdin)
}
