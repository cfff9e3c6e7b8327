//go:build unix

package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// patience is how long a server may take to start or to end.
const patience = 3 * time.Minute

// A Server is a redis-server on a port of this machine. Its methods may be called
// from any goroutine, one at a time.
type Server struct {
	t    testing.TB
	dir  string
	port int
	args []string

	mu      sync.Mutex
	process *process // the one that runs or ran last
}

// A process is one run of a server.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer  // may be read once ended is closed
	ended  chan struct{} // closed when it is reaped
}

// Start runs a redis-server until the test ends: with an append-only file, synced
// every second, and no eviction. args are more of its options, such as
// "--maxmemory", "10mb". Without -long the test is skipped.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	need(t)
	s := &Server{t: t, dir: t.TempDir()}
	s.args = append([]string{
		"--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--daemonize", "no",
		"--stream-node-max-bytes", "512", "--repl-diskless-sync-delay", "0",
	}, args...)
	s.begin()
	return s
}

// need skips the test unless -long is set; then this machine must have a redis-server.
func need(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("redis-server")
	testlong.Needs(t, err == nil, "redis-server (Redis 7 or Valkey)")
}

// begin starts the server for the first time, and ends it with the test.
func (s *Server) begin() {
	s.t.Helper()
	var err error
	for range 5 { // another process may take the port before the server does
		var ports []int
		if ports, err = testport.Free(1); err != nil {
			break
		}
		s.port = ports[0]
		if err = s.run(); err == nil {
			break
		}
	}
	if err != nil {
		s.t.Fatalf("start redis-server: %v", err)
	}
	s.t.Cleanup(func() {
		s.Kill()
		if log := s.Log(); s.t.Failed() {
			s.t.Logf("redis-server %s wrote at its end:\n%s", s.Addr(), log[max(0, len(log)-4<<10):])
		}
	})
}

// Addr returns the server's host and port.
func (s *Server) Addr() string { return testport.Loopback(s.port) }

// URL returns the server's URL, with database 0.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Kill ends the server with SIGKILL, if it runs, and returns when it has ended.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server with SIGTERM, if it runs, and returns when it has ended.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Restart starts the server again with the same port and directory, after Kill or
// Stop, and returns when it answers.
func (s *Server) Restart() {
	if err := s.run(); err != nil {
		s.t.Errorf("restart redis-server: %v", err)
	}
}

// Pause stops the server's process (SIGSTOP), until [Server.Resume].
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume continues a paused server (SIGCONT).
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *Server) signal(sig syscall.Signal) {
	if p := s.current(); p != nil {
		if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.t.Errorf("%v to redis-server: %v", sig, err)
		}
	}
}

func (s *Server) end(sig syscall.Signal) {
	p := s.current()
	if p == nil {
		return
	}
	s.signal(sig)
	s.signal(syscall.SIGCONT)
	select {
	case <-p.ended:
	case <-time.After(patience):
		s.t.Errorf("redis-server did not end after %v", sig)
	}
}

// run starts a process and returns when it answers.
func (s *Server) run() error {
	p := &process{ended: make(chan struct{})}
	args := append([]string{}, s.args...)
	// A Sentinel's configuration file comes first.
	p.cmd = exec.Command("redis-server", append(args, "--port", strconv.Itoa(s.port))...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.Dir = s.dir
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // an error: it was ended by a signal
	}()
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	deadline := time.Now().Add(patience)
	for {
		answer, err := s.Do("PING")
		if err == nil && answer == "PONG" || err != nil && strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended: %s", p.output.Bytes())
		default:
		}
		if time.Now().After(deadline) {
			_ = p.cmd.Process.Kill()
			<-p.ended
			return fmt.Errorf("no answer: %q, %w: %s", answer, err, p.output.Bytes())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Do sends one command on a connection of its own and returns the answer, its parts
// separated by line ends. An error that the server answers is an error.
func (s *Server) Do(command ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := conn.Write(b.Bytes()); err != nil {
		return "", err
	}
	return answer(bufio.NewReader(conn))
}

// MustDo is [Server.Do] for a command that has to succeed.
func (s *Server) MustDo(command ...string) string {
	s.t.Helper()
	got, err := s.Do(command...)
	if err != nil {
		s.t.Fatalf("%s: %v", strings.Join(command, " "), err)
	}
	return got
}

// answer reads one answer of the RESP2 protocol.
func answer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", io.ErrUnexpectedEOF
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '-':
		return "", errors.New(rest)
	case '$', '*':
	default:
		return rest, nil
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 0 {
		return "", err
	}
	if kind == '$' {
		data := make([]byte, n+2)
		_, err := io.ReadFull(r, data)
		return string(data[:n]), err
	}
	parts := make([]string, n)
	for i := range parts {
		if parts[i], err = answer(r); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, "\n"), nil
}

// Log returns the output of the server's last process once it has ended, and "" before.
func (s *Server) Log() string {
	p := s.current()
	select {
	case <-p.ended:
		return p.output.String()
	default:
		return ""
	}
}

// file writes a file into the server's directory, and returns its path.
func (s *Server) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}
