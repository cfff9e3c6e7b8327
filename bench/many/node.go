package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A node is a process of holdfast serve, with the processes of its servers.
type node struct {
	cmd  *exec.Cmd
	addr string
	read chan struct{} // closed when its stderr has ended
}

func startNode(ctx context.Context, program, file string) (*node, error) {
	n := &node{read: make(chan struct{})}
	n.cmd = exec.CommandContext(ctx, program, "serve", "--listen", "127.0.0.1:0", "--config", file, "--max-share", "1", "--max-processes", "1000") //nolint:gosec // it was built here
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	var said strings.Builder
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if _, at, ok := strings.Cut(line, "Serving MCP at http://"); ok && n.addr == "" {
			n.addr, _, _ = strings.Cut(at, "/")
		}
		if strings.HasPrefix(line, "Try it: ") {
			go func() {
				defer close(n.read)
				_, _ = io.Copy(io.Discard, lines)
			}()
			return n, nil
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("the node did not begin: %s", said.String()), n.cmd.Wait())
		}
	}
}

func (n *node) stop() {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.read
	_ = n.cmd.Wait()
}

// processes returns the ids of the node's process and of all its descendants.
func (n *node) processes() []int {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		if fields := statOf(name); len(fields) > 1 {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{n.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// statOf returns the fields of a file /proc/PID/stat that follow the process's name.
func statOf(name string) []string {
	text, _ := os.ReadFile(name) //nolint:gosec // of /proc
	at := strings.LastIndex(string(text), ") ")
	if at < 0 {
		return nil
	}
	return strings.Fields(string(text[at+2:]))
}

// spent returns the CPU time of the node, and of the node with its servers.
func (n *node) spent() (own, all time.Duration) {
	for i, pid := range n.processes() {
		fields := statOf(fmt.Sprintf("/proc/%d/stat", pid))
		if len(fields) < 13 {
			continue
		}
		for _, f := range fields[11:13] { // user and system, in ticks of 10 ms
			ticks, _ := strconv.Atoi(f)
			all += time.Duration(ticks) * 10 * time.Millisecond
		}
		if i == 0 {
			own = all
		}
	}
	return own, all
}

// memory returns the memory of the node and its servers in KiB. Pages that processes share count
// once (proportional set size).
func (n *node) memory() (kib int) {
	for _, pid := range n.processes() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) //nolint:gosec // of /proc
		for line := range strings.Lines(string(text)) {
			var pss int
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &pss); err == nil {
				kib += pss
			}
		}
	}
	return kib
}
