//go:build !race

// The measured process is built without the race detector.

package bench_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/bench/load"
	"holdfast/internal/testlong"
)

// A server with GOMEMLIMIT=256MiB never has more than 400 MiB in memory, while clients
// make calls of 10,000 events each. Calls that were read to their end are dropped, and
// a call with more messages than there is room for waits for its reader. No call fails.
func TestMemoryUnderStreams(t *testing.T) {
	const mostRSS = 400 << 10 // KiB
	testlong.Only(t, "it keeps the machine busy for 15 s")
	const lasts = 15 * time.Second
	program := filepath.Join(t.TempDir(), "server")
	if out, err := exec.Command("go", "build", "-o", program, "holdfast/bench/server").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	server := exec.Command(program, "-listen", addr, "-backend", "message")
	server.Env = append(os.Environ(), "GOMEMLIMIT=256MiB")
	server.Stderr = t.Output() // it logs the calls that it had to drop
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	var group sync.WaitGroup
	var calls atomic.Int64
	end := time.Now().Add(lasts)
	for range 16 {
		group.Go(func() {
			n, err := stream(addr, end)
			if calls.Add(int64(n)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	peak := peakRSS(t, server.Process.Pid)
	t.Logf("%d calls of 10,000 events each, %d MiB at the most", calls.Load(), peak>>10)
	if calls.Load() < 16 || peak > mostRSS {
		t.Errorf("%d calls, and a resident size of %d KiB", calls.Load(), peak)
	}
}

// stream makes calls with many messages until a time, and at least one call.
func stream(addr string, end time.Time) (calls int, err error) {
	const path = "/mcp-sse"
	var c *load.Client
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // until the server listens
		if c, err = load.Dial(addr); err == nil || time.Since(began) > time.Minute {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	session, err := c.Handshake(path)
	if err != nil {
		return 0, err
	}
	call := load.Post(addr, path, session, `{"jsonrpc":"2.0","id":10000000,"method":"tools/call","params":{"name":"progress","arguments":{"n":10000,"size":64},"_meta":{"progressToken":"t"}}}`)
	for calls == 0 || time.Now().Before(end) {
		res, err := c.Do(call.Next())
		if err != nil {
			return calls, err
		}
		if events := bytes.Count(res.Body, []byte("notifications/progress")); events != 10_000 || !bytes.Contains(res.Body, []byte("done 10000")) {
			return calls, fmt.Errorf("call %d: %d events, and: %.300q", calls, events, res.Body[max(0, len(res.Body)-300):])
		}
		calls++
	}
	return calls, nil
}

// peakRSS returns the peak of a process's resident memory, in KiB.
func peakRSS(t *testing.T, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("the process does not say")
	return 0
}
