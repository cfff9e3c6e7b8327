package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/bench/tools"
)

// A process is a server under measurement. It is a process of its own so that its CPU and memory
// are not mixed with those of its clients.
type process struct {
	cmd  *exec.Cmd
	addr string
}

// start runs a server on a free port, and waits until it prints its address.
func start(bin string, args ...string) (*process, error) {
	cmd := exec.Command(bin, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	p := &process{cmd: cmd}
	lines := bufio.NewScanner(out)
	for p.addr == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "url=http://"); ok {
			p.addr, _, _ = strings.Cut(rest, "/")
		}
	}
	if p.addr == "" {
		p.stop()
		return nil, fmt.Errorf("start %s: it ended without an address", bin)
	}
	go func() { // until the process ends; its log helps when a run fails
		for lines.Scan() {
			fmt.Fprintf(os.Stderr, "%s: %s\n", bin, lines.Text())
		}
	}()
	return p, nil
}

// stop kills the process, with the calls in flight in it.
func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// cpu returns the CPU time of the process, in user and kernel mode: the sum of the scheduler's
// counts for its threads, in nanoseconds. (/proc/PID/stat counts in hundredths of a second, too
// coarse for rounds this short.)
func (p *process) cpu() (time.Duration, error) { return cpuOf(p.cmd.Process.Pid) }

func cpuOf(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, errors.New("read CPU time: no /proc/PID/task/TID/schedstat here")
	}
	var sum time.Duration
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		first, _, _ := strings.Cut(string(data), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// stats asks the process for its memory, with gc after a collection.
func (p *process) stats(gc bool) (s tools.Stats, err error) {
	url := "http://" + p.addr + "/bench/stats"
	if gc {
		url += "?gc=1"
	}
	res, err := http.Get(url)
	if err != nil {
		return s, fmt.Errorf("stats: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return s, fmt.Errorf("stats: %w", err)
	}
	return s, nil
}

// settle waits until the number of the process's goroutines stays the same: it has opened all
// streams, and noticed the end of all connections. Then it collects garbage.
func (p *process) settle() (tools.Stats, error) {
	last, same := -1, 0
	for range 100 {
		s, err := p.stats(false)
		if err != nil {
			return s, err
		}
		if s.Goroutines != last {
			last, same = s.Goroutines, 0
		} else if same++; same == 3 {
			return p.stats(true)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return tools.Stats{}, errors.New("settle: goroutines still come and go")
}
